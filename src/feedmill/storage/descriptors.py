"""Descriptors of regular files that stay open between reads, shared by all local stores of the process.

A descriptor is shared as long as its path leads to the same file; after the file is replaced, `opened` returns a new
one. The last `MOST` descriptors stay open, or a quarter of the process's limit if that is less, so that enough are left
for writing. A store whose descriptor was closed opens the path again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource
import stat
import weakref
from typing import NamedTuple, Self

from feedmill.errors import StorageError

MOST = 256
"""Maximum number of descriptors that stay open."""


class State(NamedTuple):
    """The identity of a file in one state: device, inode, size in bytes, modification time in nanoseconds."""

    device: int
    inode: int
    size: int
    changed: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Return the state of a `stat` result."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def continues(self, before: State) -> bool:
        """Return whether the file still has the content of an earlier state: nothing changed, or data was appended.

        Inodes are not compared alone, because some network file systems report another one each time.
        """
        grown = self[:2] == before[:2] and self.size > before.size
        return grown or self[2:] == before[2:]


class OpenFile:
    """An open file whose descriptor is closed when the last reference is released.

    Attributes:
        full: full path of the file.
        fd: descriptor.
        kept: whether new reads may use it.
        state: state of the file when it was opened.
    """

    __slots__ = ("__weakref__", "fd", "full", "kept", "state")

    def __init__(self, full: str) -> None:
        self.full, self.kept = full, True
        self.fd = open_regular(full)
        # Not in `__del__`: while it runs, another thread can still get the file through a weak reference.
        weakref.finalize(self, os.close, self.fd).atexit = False
        self.state = State.of(os.fstat(self.fd))


_kept: dict[OpenFile, None] = {}
"""Files that stay open, oldest first. Single dict operations are atomic, so threads need no lock."""

_current: dict[str, OpenFile] = {}
"""By full path, the file of `_kept` that was opened last."""

_replaced = 0
"""Number of replaced and deleted files: a descriptor that was opened during such a change is not kept."""


def opened(full: str) -> OpenFile:
    """Return the open file that is now at a path.

    Raises:
        OSError: it cannot be opened.
        StorageError: it is a device, pipe or socket.
    """
    before = _replaced
    file = _current.get(full)
    if file is not None and file.state == State.of(os.stat(full)):
        return file
    file = OpenFile(full)
    limit = _limit()
    while len(_kept) >= limit:
        with contextlib.suppress(StopIteration, RuntimeError, KeyError):  # another thread dropped it first
            _drop(next(iter(_kept)))
    _kept[file] = None
    _current[full] = file
    if before != _replaced:
        _drop(file)
    return file


def _limit() -> int:
    """Return the number of files that stay open; computed each time, because `raise_file_limit` changes the limit."""
    return max(1, min(MOST, file_limit() // 4))


def forget(full: str) -> None:
    """Drop the descriptors of a file that this process replaced or deleted, so that the next read opens it again."""
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
    """Return a descriptor for reading a regular file, without blocking: opening a pipe would wait for its writer.

    Raises:
        OSError: the file cannot be opened.
        StorageError: it is a device, pipe or socket.
    """
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


def read_regular(path: str, offset: int = 0) -> bytes:
    """Return the bytes of a regular file from an offset to its end, with as few calls as possible. Raises as above."""
    descriptor = open_regular(path)
    try:
        left = max(0, os.fstat(descriptor).st_size - offset)
        data = os.pread(descriptor, left + 1, offset)
        if len(data) == left:  # fewer bytes than requested: the end
            return data
        blocks = [data]
        while data:  # it grows, one call returns at most 2 GiB, or files like those of /proc, which have no size
            offset += len(data)
            data = os.pread(descriptor, max(1 << 20, left), offset)
            blocks.append(data)
        return b"".join(blocks)
    finally:
        os.close(descriptor)


_UNREADABLE = "cannot be read by offset"
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def refuse_special(path: str, what: str, status: os.stat_result | None = None) -> None:
    """Raise `StorageError` if this is a device, pipe or socket. Files, folders and absent paths are accepted.

    Args:
        path: the path.
        what: what is wrong with such a file here, for the message.
        status: `stat` result of the path, if it is known.
    """
    if status is None:
        with contextlib.suppress(OSError):
            status = os.stat(path)
    kind = None if status is None else _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        raise StorageError(
            f"this is {kind}, which {what}; a regular file was expected",
            file=path,
            kind="not-a-file",
            fix="Use a regular file.",
        )


_MAX_FILES, _MANY_FILES = 65_536, 4_096
"""Highest limit of open files that is set, and the lowest that is enough to keep small files mapped."""


@functools.lru_cache(maxsize=1)
def raise_file_limit() -> bool:
    """Raise the limit on open files of this process as far as the system allows. Call it before mapping many files.

    Each mapped file has a descriptor. Most systems allow a process 1,024 of them by default and many more on request,
    and a dataset may have thousands of files.

    Returns:
        Whether thousands of files can be open; if not, small files should be read instead of mapped.
    """
    with contextlib.suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        target = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
        if soft != resource.RLIM_INFINITY and soft < target:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
        return soft == resource.RLIM_INFINITY or soft >= _MANY_FILES
    return True


def file_limit() -> int:
    """Return how many files this process may have open, at most `_MAX_FILES`."""
    with contextlib.suppress(OSError, ValueError):
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return _MAX_FILES if soft == resource.RLIM_INFINITY else min(soft, _MAX_FILES)
    return _MAX_FILES
