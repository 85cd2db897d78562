"""Descriptors of regular files that stay open, for all stores of the process.

A descriptor is shared as long as its file is still what the path leads to; a file that was replaced since gets a new
one. The last `MOST` stay open, or a quarter of what the process may open where that is less, so that enough are left
for what it writes: a store that finds its own closed opens the path again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
import weakref
from typing import NamedTuple, Self

from feedmill.errors import StorageError

MOST = 256


class State(NamedTuple):
    """By what one file, in one state, is known: device, inode, bytes, time of its last change in nanoseconds."""

    device: int
    inode: int
    size: int
    changed: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Return the state that a `stat` gave."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def continues(self, before: State) -> bool:
        """Return whether what stood there before still does: nothing changed, or more was appended.

        Inodes alone tell nothing: some network file systems give a file another one each time.
        """
        grown = self[:2] == before[:2] and self.size > before.size
        return grown or self[2:] == before[2:]


class OpenFile:
    """An open descriptor that closes itself when nobody has it any more.

    Attributes:
        kept: whether it may still be taken for new reads.
    """

    __slots__ = ("__weakref__", "fd", "full", "kept", "state")

    def __init__(self, full: str) -> None:
        self.full, self.kept = full, True
        self.fd = open_regular(full)
        # Not by `__del__`: while that runs, another thread may still take the file by a weak reference.
        weakref.finalize(self, os.close, self.fd).atexit = False
        self.state = State.of(os.fstat(self.fd))


_kept: dict[OpenFile, None] = {}
"""What stays open, oldest first. Single dict operations are atomic, so threads need no lock."""

_current: dict[str, OpenFile] = {}
"""Full path -> the one of `_kept` that was last opened for it."""

_replaced = 0
"""Counts replaced and deleted files, so that a descriptor opened meanwhile is not kept."""


def opened(full: str) -> OpenFile:
    """Return a descriptor of the file that is now at a path. Raises OSError, and `StorageError` for what is no file."""
    before = _replaced
    file = _current.get(full)
    if file is not None and file.state == State.of(os.stat(full)):
        return file
    file = OpenFile(full)
    most = _most()
    while len(_kept) >= most:
        with contextlib.suppress(StopIteration, RuntimeError, KeyError):  # another thread was faster
            _drop(next(iter(_kept)))
    _kept[file] = None
    _current[full] = file
    if before != _replaced:
        _drop(file)
    return file


def _most() -> int:
    """Return how many stay open; asked each time, as the limit may change (`more_files`)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if limit == resource.RLIM_INFINITY else max(1, min(MOST, limit // 4))


def forget(full: str) -> None:
    """This process replaced or deleted the file: whoever reads it next opens it again."""
    global _replaced
    _replaced += 1
    for file in [file for file in list(_kept) if file.full == full]:
        _drop(file)


def _drop(file: OpenFile) -> None:
    file.kept = False
    _kept.pop(file, None)
    if _current.get(file.full) is file:
        _current.pop(file.full, None)


def open_regular(path: str) -> int:
    """A descriptor for reading a regular file. Raises OSError, and `StorageError` for a device, pipe or socket, at
    once: opening a pipe would wait for whoever writes to it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            refuse_special(path, _UNREADABLE)
        raise
    try:
        refuse_special(path, _UNREADABLE, os.fstat(descriptor))
    except StorageError:
        os.close(descriptor)
        raise
    return descriptor


_UNREADABLE = "cannot be read by offset"
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def refuse_special(path: str, what: str, status: os.stat_result | None = None) -> None:
    """Raise `StorageError` if this is a device, pipe or socket; absent paths, files and folders pass."""
    if status is None:
        with contextlib.suppress(OSError):
            status = os.stat(path)
    kind = None if status is None else _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        raise StorageError(
            f"this is {kind}, which {what}; a regular file was expected",
            file=path,
            kind="not-a-file",
            fix="Name a regular file.",
        )
