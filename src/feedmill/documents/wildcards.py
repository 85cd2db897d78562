"""Match patterns with wildcards to files and folders, on disks and in object stores."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from feedmill.documents.file import DocumentFile, is_hidden
from feedmill.errors import ConfigError, NotFound
from feedmill.storage import open_store, refuse_secrets

_MAGIC = re.compile(r"[*?\[]")
_PIECES = re.compile(r"\*\*/?|\*|\?|\[!?\]?[^\]]*\]|[^*?\[]+|\[")


Match = tuple[DocumentFile, bool]
"""A file or folder that a wildcard matches, and whether it is a folder."""


def is_pattern(path: str) -> bool:
    """Return whether an input is a pattern. The name of an existing file or folder is never a pattern."""
    return bool(_MAGIC.search(path)) and ("://" in path or not os.path.exists(path))


def matches(pattern: str) -> list[Match]:
    """Return what a pattern matches, sorted by path."""
    return _remote(pattern) if "://" in pattern else _local(pattern)


def expression(pattern: str) -> str:
    """Return a pattern as a regular expression over whole paths."""
    out = []
    for piece in _PIECES.findall(pattern):
        if piece == "**/":
            out.append(r"(?:[^/]+/)*")
        elif piece == "**":
            out.append(r".*")
        elif piece == "*":
            out.append(r"[^/]*")
        elif piece == "?":
            out.append(r"[^/]")
        elif piece.startswith("[") and len(piece) > 1:
            inside = re.sub(r"([\[&~|\\])", r"\\\1", piece[1:-1].removeprefix("!"))
            out.append("[" + ("^" if piece[1] == "!" else "") + inside + "]")
        else:
            out.append(re.escape(piece))
    return "".join(out)


def listed_by_datatrove(paths: Iterable[str], pattern: str, recursive: bool = True) -> list[str]:
    """Return the files of a folder that datatrove lists for a pattern, by the rules of fsspec's ``glob``.

    Args:
        paths: the files, relative to the folder.
        pattern: ``*`` stops at ``/``, ``**`` does not; without a wildcard, the end of a name in the folder itself.
        recursive: without it, ``**`` stands for the folder before it.

    Raises:
        ConfigError: the pattern is invalid.
    """
    whole = (pattern if glob.has_magic(pattern) else f"*{pattern}").removeprefix("./").rstrip("/")
    try:
        if any("**" in part and part != "**" for part in whole.split("/")):
            raise re.error("'**' must be a whole name between slashes")
        fits = re.compile(expression(whole))
    except re.error as error:
        raise ConfigError(f"invalid pattern {pattern!r}: {error}", kind="bad-pattern", fix="Change it.") from None
    before, stars, _ = whole.partition("**")
    deepest = before.count("/") if stars and not recursive else None
    return [path for path in paths if fits.fullmatch(path) and (deepest is None or path.count("/") <= deepest)]


def stated(folder: str, path: str) -> DocumentFile | None:
    """Return a file with its size and version; None if it does not exist."""
    store = open_store(folder or ".")
    if store.is_local and not os.path.isfile(store.locate(path)):
        return None
    try:
        entry = store.stat(path)
    except NotFound:
        return None
    return DocumentFile(folder, path, "", entry.size, entry.version)


def _base(pattern: str) -> str:
    """Return the folders of a pattern before its first wildcard. Names of existing local folders are not wildcards."""
    parts = pattern.split("/")[:-1]
    count = 0
    while count < len(parts):
        if _MAGIC.search(parts[count]) and ("://" in pattern or not os.path.isdir("/".join(parts[: count + 1]))):
            break
        count += 1
    base = "/".join(parts[:count])
    return "/" if not base and pattern.startswith("/") else base


def _local(pattern: str) -> list[Match]:
    base = _base(pattern)
    cut = len(base.rstrip("/")) + 1 if base else 0
    matched: list[Match] = []
    above = _folders_from(base)
    for path in sorted(glob.glob(glob.escape(pattern[:cut]) + pattern[cut:], recursive=True)):
        below = path[cut:]
        is_folder = os.path.isdir(path)
        if above(below.rstrip("/") if is_folder else below.rpartition("/")[0]) is None:
            continue  # the same files match without the link
        if is_folder:
            if not pattern.endswith("**"):
                matched.append((DocumentFile(base, below.rstrip("/"), "", 0, ""), True))
        elif (file := stated(base, below)) is not None:
            matched.append((file, False))
    return matched


def _folders_from(base: str) -> Callable[[str], frozenset[tuple[int, int]] | None]:
    """Return a function from a path below `base` to the identities of its folders; None if a link leads to one above.

    Without it, glob follows such a link forty times.
    """

    @cache
    def folders(below: str) -> frozenset[tuple[int, int]] | None:
        above = folders(below.rpartition("/")[0]) if below else frozenset()
        status = os.stat(os.path.join(base, below) or ".")
        identity = status.st_dev, status.st_ino
        return None if above is None or identity in above else above | {identity}

    return folders


def _remote(pattern: str) -> list[Match]:
    refuse_secrets(pattern)  # the query of a URL looks like a wildcard
    base = _base(pattern)
    name = pattern[len(base) + 1 :]
    wanted = re.compile(expression(name))
    dots = name.startswith(".") or "/." in name
    try:
        entries = [entry for entry in open_store(base).files() if dots or not is_hidden(entry.path)]
    except NotFound:
        return []
    matched: dict[str, Match] = {}
    for entry in entries:
        if wanted.fullmatch(entry.path):
            matched[entry.path] = DocumentFile(base, entry.path, "", entry.size, entry.version), False
            continue
        folder = next((folder for folder in _above(entry.path) if wanted.fullmatch(folder)), None)
        if folder is not None:
            matched[folder] = DocumentFile(base, folder, "", 0, ""), True
    return [matched[path] for path in sorted(matched)]


def _above(path: str) -> Iterator[str]:
    """Yield the folders of a path, the outermost first."""
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)
