"""What lies in a `FileCache`: copies of remote files with their notes, and derived files."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from feedmill.storage.staging import TEMPORARY_SUFFIX, remove_dead

NOTE = ".hash"
DERIVED = ("shards", "costs", "packing")
_COPY = re.compile(r"[0-9a-f]{32}-.+", re.DOTALL)


class Note(msgspec.Struct):
    """What is recorded beside a copy.

    Attributes:
        url, version: of the object.
        size: its bytes.
        changed: modification time of the copy, in nanoseconds.
        digest: its 128-bit xxh3, in hex.
        kind: ``index``, or ``data`` for other files that are used as a whole.
    """

    url: str
    version: str
    size: int
    changed: int
    digest: str
    kind: str = "index"


class Item(NamedTuple):
    """What is evicted at once: a file or folder by its path in the cache folder.

    Attributes:
        size: its bytes; `taken` with those of its note.
        url: of the object; empty if there is no note.
    """

    name: str
    size: int
    taken: int
    last_use: int
    url: str = ""
    version: str = ""
    kind: str = "derived"


def read_note(copy: Path) -> Note | None:
    """Return what is recorded beside a copy; None if it is absent or invalid."""
    try:
        return msgspec.json.decode(copy.with_name(copy.name + NOTE).read_bytes(), type=Note)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def count(folder: Path) -> int:
    """Return the bytes that the files of a cache folder take, staged ones included. Reads no notes: it is called for
    each download."""
    items, staged = scan(folder, notes=False)
    return staged + sum(item.taken for item in items)


def scan(folder: Path, *, notes: bool = True) -> tuple[list[Item], int]:
    """Return the files of a cache folder, and the bytes of staged ones; those of dead processes are removed."""
    here, staged = _files(folder)
    items = []
    for name, status in here.items():
        if not _COPY.fullmatch(name) or (name.endswith(NOTE) and name.removesuffix(NOTE) in here):
            continue
        note, size = read_note(folder / name) if notes else None, status.st_size
        beside = here.get(name + NOTE, _Status(0, 0))
        taken = size + beside.st_size
        if note is None:  # the rest of a killed process, or of an earlier release
            items.append(Item(name, size, taken, 0, kind="none"))
        else:
            items.append(Item(name, size, taken, beside.st_mtime_ns, note.url, note.version, note.kind))
    for kind in DERIVED:
        found, more = _folders(folder / kind) if kind == "packing" else _files(folder / kind)
        staged += more
        items += [
            Item(f"{kind}/{name}", status.st_size, status.st_size, status.st_mtime_ns) for name, status in found.items()
        ]
    return items, staged


class _Status(NamedTuple):
    """What is needed of a file's or folder's status."""

    st_size: int
    st_mtime_ns: int


def _files(folder: Path) -> tuple[dict[str, _Status], int]:
    """Return the plain files of a folder by name, and the bytes of staged ones of living processes."""
    found: dict[str, _Status] = {}
    staged = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if folder.is_symlink() and folder.name in DERIVED:
            return found, 0
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if not entry.name.startswith("."):
                        found[entry.name] = _Status(status.st_size, status.st_mtime_ns)
                    elif entry.name.endswith(TEMPORARY_SUFFIX) and not remove_dead(entry.path):
                        staged += status.st_size
    return found, staged


def _folders(folder: Path) -> tuple[dict[str, _Status], int]:
    """Return the folders of a folder by name, with the bytes of their files, and the bytes of staged files in them."""
    found: dict[str, _Status] = {}
    staged = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if folder.is_symlink():
            return found, 0
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        files, more = _files(Path(entry.path))
                        size = sum(status.st_size for status in files.values())
                        found[entry.name] = _Status(size, entry.stat(follow_symlinks=False).st_mtime_ns)
                        staged += more
    return found, staged


def by_use(items: list[Item]) -> list[Item]:
    """Return files in the order of their eviction: rests and old versions first, then the least recently used."""
    newest: dict[str, int] = {}
    for item in items:
        newest[item.url] = max(newest.get(item.url, 0), item.last_use)

    def key(item: Item) -> tuple[bool, int]:
        useless = item.kind == "none" or (item.url != "" and item.last_use < newest[item.url])
        return not useless, item.last_use

    return sorted(items, key=key)


def existing_parent(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def free_bytes(folder: Path) -> int | None:
    """Return the bytes that the disk has free for this user; None if the file system does not know."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize if status.f_blocks else None
