"""List the folder of a `FileCache`: copies of remote files with their notes, and derived files; and describe them."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from feedmill.storage.staging import TEMPORARY_SUFFIX, remove_dead

NOTE = ".hash"
"""Suffix of the note of a copy."""
DERIVED = ("shards", "costs", "lines", "frames", "packing", "unpacked")
"""Subfolders with derived files."""
_WHOLE = ("packing", "unpacked")
"""Those whose subfolders are evicted as a whole."""
_COPY = re.compile(r"[0-9a-f]{32}-.+", re.DOTALL)


class Cached(NamedTuple):
    """One object of a cache.

    Attributes:
        url: URL of the object.
        version: version of the object.
        present: number of its bytes in the cache.
        size: size of the object in bytes.
        last_use: time of the last read or write, in seconds since 1970; 0 if nothing is present.
        kind: ``data``; ``index`` and ``derived`` in a `FileCache`.
    """

    url: str
    version: str
    present: int
    size: int
    last_use: float
    kind: str = "data"


class Note(msgspec.Struct):
    """The facts about a copy that are stored beside it.

    Attributes:
        url, version: URL and version of the remote file.
        size: its size in bytes.
        changed: modification time of the copy, in nanoseconds.
        digest: 128-bit xxh3 of the copy, in hex.
        kind: ``index``, or ``data`` for other files that are used as a whole.
    """

    url: str
    version: str
    size: int
    changed: int
    digest: str
    kind: str = "index"


class Item(NamedTuple):
    """A file or folder that is evicted as a whole.

    Attributes:
        name: its path in the cache folder.
        size: its size in bytes.
        taken: its size with that of its note.
        last_use: time of the last use, in nanoseconds since 1970.
        url, version: URL and version of a copied file; empty without a note.
        kind: as in `Note`; ``derived`` for derived files; ``none`` for copies without a note.
    """

    name: str
    size: int
    taken: int
    last_use: int
    url: str = ""
    version: str = ""
    kind: str = "derived"


def read_note(copy: Path) -> Note | None:
    """Return the note of a copy; None if it is absent or invalid."""
    try:
        return msgspec.json.decode(copy.with_name(copy.name + NOTE).read_bytes(), type=Note)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def count(folder: Path) -> int:
    """Return the bytes that the files of a cache folder take, including staged files.

    It is called for each download, so it reads no notes.
    """
    items, staged = scan(folder, notes=False)
    return staged + sum(item.taken for item in items)


def scan(folder: Path, *, notes: bool = True) -> tuple[list[Item], int]:
    """Return the files of a cache folder, and the bytes of staged files. Staged files of dead processes are removed.

    Args:
        notes: whether to read the notes of copies; without them, copies have the kind ``none``.
    """
    files, staged = _files(folder)
    items = []
    for name, status in files.items():
        if not _COPY.fullmatch(name) or (name.endswith(NOTE) and name.removesuffix(NOTE) in files):
            continue
        note, size = read_note(folder / name) if notes else None, status.st_size
        note_status = files.get(name + NOTE, _Status(0, 0))
        taken = size + note_status.st_size
        if note is None:  # a leftover of a killed process
            items.append(Item(name, size, taken, 0, kind="none"))
        else:
            items.append(Item(name, size, taken, note_status.st_mtime_ns, note.url, note.version, note.kind))
    for kind in DERIVED:
        derived, staged_below = _folders(folder / kind) if kind in _WHOLE else _files(folder / kind)
        staged += staged_below
        items += [
            Item(f"{kind}/{name}", status.st_size, status.st_size, status.st_mtime_ns)
            for name, status in derived.items()
        ]
    return items, staged


class _Status(NamedTuple):
    """Size and modification time of a file or folder."""

    st_size: int
    st_mtime_ns: int


def _files(folder: Path) -> tuple[dict[str, _Status], int]:
    """Return the regular files of a folder by name, and the bytes of staged files of living processes."""
    files: dict[str, _Status] = {}
    staged = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if folder.is_symlink() and folder.name in DERIVED:
            return files, 0
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if not entry.name.startswith("."):
                        files[entry.name] = _Status(status.st_size, status.st_mtime_ns)
                    elif entry.name.endswith(TEMPORARY_SUFFIX) and not remove_dead(entry.path):
                        staged += status.st_size
    return files, staged


def _folders(folder: Path) -> tuple[dict[str, _Status], int]:
    """Return the subfolders of a folder by name, with the size of their files, and the bytes of staged files."""
    folders: dict[str, _Status] = {}
    staged = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if folder.is_symlink():
            return folders, 0
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        files, staged_below = _files(Path(entry.path))
                        size = sum(status.st_size for status in files.values())
                        folders[entry.name] = _Status(size, entry.stat(follow_symlinks=False).st_mtime_ns)
                        staged += staged_below
    return folders, staged


def eviction_order(items: list[Item]) -> list[Item]:
    """Return files in the order of their eviction: leftovers and old versions first, then by their last use."""
    newest: dict[str, int] = {}
    for item in items:
        newest[item.url] = max(newest.get(item.url, 0), item.last_use)

    def key(item: Item) -> tuple[bool, int]:
        useless = item.kind == "none" or (item.url != "" and item.last_use < newest[item.url])
        return not useless, item.last_use

    return sorted(items, key=key)


def existing_parent(folder: Path) -> Path:
    """Return a folder, or the nearest folder above it that exists."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def free_bytes(folder: Path) -> int | None:
    """Return the free space of the disk for this user in bytes; None if the file system does not report it."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize if status.f_blocks else None
