"""Which document files a run takes, and where their attributes lie.

A pattern names a file, a folder, or files by ``*`` (within a name), ``**`` (any folders), ``?`` and ``[...]``; where a
file or folder of this machine has that very name, it is meant. The part of a file's path before ``documents`` is the
dataset's root; attributes are below the same root. Wildcards may stand for that folder and the root, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.documents import DOCUMENTS, attribute_path
from feedmill.storage import Entry, Store, is_local_folder, join_url, open_store, real_place, split_url
from feedmill.storage.base import refuse_odd_names

_MAGIC = re.compile(r"[*?\[]")
_PIECES = re.compile(r"\*\*/?|\*|\?|\[!?\]?[^\]]*\]|[^*?\[]+|\[")


@dataclass(frozen=True, slots=True)
class DocumentFile:
    """A file of documents: the dataset's root, the path below it (with the documents folder), size and version.

    `pattern` is the root as the user wrote it, so that names in outputs do not depend on the working folder.
    """

    root: str
    path: str
    size: int
    version: str

    @property
    def name(self) -> str:
        """The path as the user would write it."""
        return f"{self.root.rstrip('/')}/{self.path}" if self.root not in ("", ".") else self.path

    def store(self) -> Store:
        """The dataset's store."""
        return open_store(self.root or ".")

    def attributes(self, name: str, documents: str = DOCUMENTS) -> str:
        """Where its attributes lie, below the same root."""
        return attribute_path(self.path, name, documents)


def find_documents(
    patterns: Sequence[str], documents: str = DOCUMENTS, warnings: list[str] | None = None
) -> list[DocumentFile]:
    """The files of all patterns, in the order of the patterns, by path within each; a file that several match once,
    however they spell its dataset.

    Args:
        documents: the name of the folder in which documents are kept.
        warnings: called for patterns that match nothing; without it such a pattern is an error.

    Raises:
        ConfigError: nothing matches a pattern, or the files lie in no such folder.
    """
    found: dict[tuple[str, str], DocumentFile] = {}
    real: dict[str, str] = {}
    for pattern in patterns:
        matched = _files(pattern, documents)
        if not matched and warnings is None:
            raise _no_files(pattern)
        if not matched and warnings is not None:
            warnings.append(f"no file matches {pattern}")
        for file in matched:
            refuse_odd_names(file.name)
            if file.root not in real:
                real[file.root] = real_place(file.root or ".")
            found.setdefault((real[file.root], file.path), file)
    if not found:
        raise _no_files(", ".join(patterns) or "an empty list of patterns")
    return list(found.values())


def _no_files(patterns: str) -> ConfigError:
    return ConfigError(
        f"no document file matches {patterns}",
        kind="no-documents",
        fix="Give files, folders or patterns such as 'data/documents/**/*.jsonl.gz'.",
    )


def by_root(files: Iterable[DocumentFile]) -> dict[str, list[DocumentFile]]:
    """The files of each dataset."""
    found: dict[str, list[DocumentFile]] = {}
    for file in files:
        found.setdefault(file.root, []).append(file)
    return found


def _files(pattern: str, documents: str) -> list[DocumentFile]:
    if pattern.startswith("file://"):
        pattern = join_url(*split_url(pattern))
    scheme, separator, rest = pattern.partition("://")
    root, below = _split(rest if separator else pattern, documents)
    if below is None or (_MAGIC.search(root) and (separator or not is_local_folder(root))):
        return _spread(pattern, documents)
    root = f"{scheme}://{root}" if separator else root
    return [DocumentFile(root, entry.path, entry.size, entry.version) for entry in _matches(root, below)]


def _split(path: str, documents: str) -> tuple[str, str | None]:
    """The root and the path below it; no such path where no folder has the name of that for documents."""
    parts = path.split("/")
    if documents not in parts:
        return "", None
    at = parts.index(documents)
    root = "/".join(parts[:at])
    if path.startswith("/") and not root:
        root = "/"
    return root, "/".join(part for part in parts[at:] if part not in ("", "."))


def _spread(pattern: str, documents: str) -> list[DocumentFile]:
    """The files of a pattern that leaves the folder of documents, or the root, to wildcards: each file says which."""
    wild = _MAGIC.search(pattern)
    base = pattern[: wild.start()].rpartition("/")[0] if wild else ""
    parts = pattern.split("/")[:-1]
    if not wild or base.endswith(":/") or not any("**" in part or _named(part, documents) for part in parts):
        raise _no_folder(pattern, documents)
    base = base or ("/" if pattern.startswith("/") else "")
    found = []
    for entry in _matches(base, pattern[len(base) :].lstrip("/")):
        scheme, separator, rest = f"{base.rstrip('/')}/{entry.path}".partition("://")
        whole = rest if separator else scheme
        root, path = _split(whole if base else whole.lstrip("/"), documents)
        if path is None:
            raise _no_folder(whole, documents)
        found.append(DocumentFile(f"{scheme}://{root}" if separator else root, path, entry.size, entry.version))
    return found


def _named(part: str, name: str) -> bool:
    """Whether a part of a pattern may be this name."""
    return re.fullmatch(expression(part), name) is not None


def _no_folder(path: str, documents: str) -> ConfigError:
    return ConfigError(
        f"the path {path!r} has no folder {documents!r}, so it is not clear where attributes belong",
        kind="no-documents-folder",
        fix=f"Keep documents in a folder {documents!r}.",
    )


def _matches(root: str, path: str) -> list[Entry]:
    store = open_store(root or ".")
    if not _MAGIC.search(path) or (store.is_local and store.exists(path)):
        try:
            return [store.stat(path)] if not _is_folder(store, path) else _visible(store.files(path))
        except NotFound:
            return []
    parts = path.split("/")
    literal = next(i for i, part in enumerate(parts) if _MAGIC.search(part))
    wanted = re.compile(expression(path))
    try:
        entries = list(store.files("/".join(parts[:literal])))
    except NotFound:
        return []
    if not parts[-1].startswith("."):
        entries = _visible(entries)
    return sorted((e for e in entries if wanted.fullmatch(e.path)), key=lambda entry: entry.path.split("/"))


def _visible(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if not entry.path.rpartition("/")[2].startswith(".")]


def _is_folder(store: Store, path: str) -> bool:
    try:
        next(iter(store.files(path)), None)
    except NotFound:
        return False
    return not store.is_local or is_local_folder(store.locate(path))


def expression(pattern: str) -> str:
    """A pattern as a regular expression over whole paths."""
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
            out.append("[" + ("^" if piece[1] == "!" else "") + piece[1:].lstrip("!").replace("\\", r"\\"))
        else:
            out.append(re.escape(piece))
    return "".join(out)
