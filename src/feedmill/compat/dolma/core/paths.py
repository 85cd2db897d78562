r"""Dolma's functions over paths and URLs. A backslash before ``*``, ``?``, ``[`` or ``]`` escapes it.

>>> split_path("s3://bucket/documents/*.gz")
('s3', ('bucket', 'documents', '*.gz'))
>>> split_glob("s3://bucket/documents/*/0.gz")
('s3://bucket/documents', '*/0.gz')
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from feedmill.documents.find import matches
from feedmill.storage import open_store, split_url

__all__ = [
    "add_suffix",
    "glob_path",
    "is_dir",
    "is_file",
    "is_glob",
    "join_path",
    "make_relative",
    "mkdir_p",
    "parent",
    "partition_path",
    "split_ext",
    "split_glob",
    "split_path",
    "sub_prefix",
    "sub_suffix",
]

_WILD = re.compile(r"(?<!\\)[*?\[\]]")
_STAND_INS = dict(zip("*?[]", "\u2581\u2582\u2583\u2584", strict=True))


def _escape_glob(s: str | os.PathLike[str]) -> str:
    """Return a path with a character of its own for each wildcard, as Dolma has it in a `PurePath`."""
    return _WILD.sub(lambda match: _STAND_INS[match[0]], os.fspath(s))


def _unescape_glob(s: str | os.PathLike[str]) -> str:
    """Return the path from which `_escape_glob` made this one."""
    return os.fspath(s).translate({ord(stand_in): wild for wild, stand_in in _STAND_INS.items()})


def _pathify(path: str | os.PathLike[str]) -> tuple[str, Path]:
    """Return the protocol of a path, and the rest with escaped wildcards."""
    protocol, parts = split_path(_escape_glob(path))
    return protocol, Path(*parts)


def is_glob(path: str) -> bool:
    """Return whether a path has wildcards."""
    return _WILD.search(path) is not None


def split_path(path: str) -> tuple[str, tuple[str, ...]]:
    """Return the protocol of a path ("" for local ones), and its parts; of an absolute one the first is ``/``."""
    protocol, slashes, rest = path.rpartition("://") if "://" in path else ("", "", path)
    return protocol, PurePosixPath(rest.lstrip("/") if slashes else rest).parts


def join_path(protocol: str | None, *parts: str | Iterable[str]) -> str:
    """Return the path of a protocol and parts; an absolute part discards those before it."""
    flat = [part for given in parts for part in ([given] if isinstance(given, str) else given)]
    own, _ = split_path(flat[0])
    path = str(PurePosixPath(*(os.path.join(*split_path(part)[1]) if split_path(part)[1] else "" for part in flat)))
    return _url(protocol or own, path)


def _url(protocol: str, path: str) -> str:
    return f"{protocol}://{path.lstrip('/')}" if protocol else path


def partition_path(path: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the protocol of a path, its parts before the first one with a wildcard, and those after that one."""
    protocol, parts = split_path(path)
    first = next((k for k, part in enumerate(parts) if is_glob(part)), len(parts))
    return protocol, parts[:first], parts[first + 1 :]


def split_glob(path: str) -> tuple[str, str]:
    """Return the folder before the first part with a wildcard, and the rest."""
    protocol, before, _ = partition_path(path)
    rest = split_path(path)[1][len(before) :]
    if not rest:
        return path, ""
    return (join_path(protocol, before) if before else protocol), join_path("", rest)


def split_ext(path: str) -> tuple[str, tuple[str, ...], str]:
    """Return the protocol of a path, its parts, the last one without suffixes, and all suffixes."""
    protocol, parts = split_path(path)
    if not parts:
        return protocol, (), ""
    name, dot, rest = parts[-1].partition(".") if parts[-1][:1] != "." else (parts[-1], "", "")
    return protocol, (*parts[:-1], name), dot + rest


def parent(path: str) -> str:
    """Return the folder of a path; that of a path with one part is the path."""
    protocol, parts = split_path(path)
    return path if len(parts) == 1 else join_path(protocol, parts[:-1])


def add_suffix(a: str, b: str) -> str:
    """Return the path `b` in the folder `a`. Raises `ValueError` if `b` has a protocol."""
    protocol, parts = split_path(a)
    return join_path(protocol, *parts, *_relative(b))


def sub_suffix(a: str, b: str) -> str:
    """Return `a` without `b` at its end. Raises `ValueError` if `b` has a protocol."""
    protocol, parts = split_path(a)
    path, end = str(PurePosixPath(*parts)), str(PurePosixPath(*_relative(b)))
    path = path.removesuffix(end)
    return _url(protocol, path if path == "/" and not protocol else path.rstrip("/"))


def _relative(path: str) -> tuple[str, ...]:
    protocol, parts = split_path(path)
    if protocol:
        raise ValueError(f"{path} is not a relative path")
    return parts


def sub_prefix(a: str, b: str) -> str:
    """Return `a` relative to the folder `b`, or `a` if it is not in it. Raises `ValueError` if protocols differ."""
    (first, parts), (second, folder) = split_path(a), split_path(b)
    if first != second:
        raise ValueError(f"the protocols of {a} and {b} differ")
    if parts[: len(folder)] != folder:
        return join_path(first, parts)
    return join_path("", parts[len(folder) :]) if len(parts) > len(folder) else "."


def make_relative(paths: Sequence[str]) -> tuple[str, list[str]]:
    """Return the deepest folder that all paths have in common before wildcards, and the paths in it.

    Raises:
        ValueError: there are no paths, or their protocols differ.
    """
    if not paths:
        raise ValueError("no paths were given")
    split = [partition_path(path)[:2] for path in paths]
    if len({protocol for protocol, _ in split}) > 1:
        raise ValueError("the protocols of the paths differ")
    protocol, common = split[0]
    while any(parts[: len(common)] != common for _, parts in split):
        common = common[:-1]
    if not common:
        return (f"{protocol}://" if protocol else ""), [join_path("", split_path(path)[1]) for path in paths]
    base = join_path(protocol, common)
    return base, [sub_prefix(path, base) for path in paths]


def glob_path(
    path: str | os.PathLike[str],
    hidden_files: bool = False,
    autoglob_dirs: bool = True,
    recursive_dirs: bool = False,
    yield_dirs: bool = True,
) -> Iterator[str]:
    """Yield what a pattern matches; for a folder, what is directly in it."""
    pattern = os.fspath(path)
    if autoglob_dirs and is_dir(pattern):
        pattern = add_suffix(pattern, "*")
    for file, folder in matches(pattern):
        if not hidden_files and file.path.rpartition("/")[2].startswith("."):
            continue
        if folder and recursive_dirs:
            yield from glob_path(file.name, hidden_files, autoglob_dirs, recursive_dirs, yield_dirs)
        if not folder or yield_dirs:
            yield file.name


def is_dir(path: str) -> bool:
    """Return whether a path is a folder; of an object store, whether it has objects."""
    store = open_store(path)
    return os.path.isdir(path) if store.is_local else next(iter(store.files()), None) is not None


def is_file(path: str) -> bool:
    """Return whether a path is a file."""
    folder, name = split_url(path)
    return bool(name) and not (os.path.isdir(path)) and open_store(folder).exists(name)


def mkdir_p(path: str) -> None:
    """Create a local folder and those above it. Raises `ValueError` if the path has wildcards."""
    if is_glob(path):
        raise ValueError(f"the folder {path} has wildcards")
    if "://" not in path:
        os.makedirs(path, exist_ok=True)
