"""Locks on byte ranges of a file, which the kernel releases when their holder dies; and holes in files.

The page cache claims, writes, pins and evicts pages under these locks, so a killed process never blocks others.
Locks belong to an *open file description* (``F_OFD_SETLK``), so two threads of a process exclude each other as two
processes do. Each `RangeLock` therefore opens the file again. It does so through ``/proc``, which needs no path
and works for memory files and for files whose folder was deleted.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Self

Range = tuple[int, int]

_FLOCK = struct.Struct("@hhqqi0q")
_BUSY = (errno.EAGAIN, errno.EACCES)
_KEEP_SIZE_AND_PUNCH = 0x01 | 0x02
_held: weakref.WeakSet[RangeLock] = weakref.WeakSet()


def _request(kind: int, begin: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, begin, length, 0)


def set_lock(fd: int, kind: int, begin: int, length: int, *, wait: bool = False) -> bool:
    """Lock, convert or release bytes of a file for the open file description of `fd`.

    Args:
        fd: descriptor of the file.
        kind: ``fcntl.F_RDLCK``, ``F_WRLCK`` or ``F_UNLCK``.
        begin: first byte; it may lie beyond the end of the file.
        length: number of bytes, at least 1.
        wait: wait while another description has a conflicting lock.

    Returns:
        Whether the lock was taken; always True with `wait`.

    Raises:
        OSError: the file system has no such locks.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, _request(kind, begin, length))
    except OSError as error:
        if not wait and error.errno in _BUSY:
            return False
        raise
    return True


def is_locked(fd: int, begin: int, length: int) -> bool:
    """Return whether an open file description other than that of `fd` has a lock in a range of bytes."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _request(fcntl.F_WRLCK, begin, length))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


class RangeLock:
    """Locks of one open file description.

    They are released together: by `release`, at the end of a ``with`` block, at garbage collection, or by the kernel
    when the process dies.
    """

    def __init__(self, fd: int) -> None:
        """Open the file of the descriptor `fd` again. Raises `OSError`."""
        self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        self._close: Callable[[], object] = weakref.finalize(self, os.close, self.fd)
        _held.add(self)

    def take(self, kind: int, begin: int, length: int, *, wait: bool = False) -> bool:
        """Lock a range as `set_lock` does."""
        return set_lock(self.fd, kind, begin, length, wait=wait)

    def drop(self, begin: int, length: int) -> None:
        """Release a range of the locked bytes."""
        set_lock(self.fd, fcntl.F_UNLCK, begin, length)

    @contextlib.contextmanager
    def holding(self, kind: int, begin: int, length: int) -> Iterator[None]:
        """Hold a lock on a range in a block; wait for it if needed."""
        self.take(kind, begin, length, wait=True)
        try:
            yield
        finally:
            self.drop(begin, length)

    def take_parts(self, kind: int, base: int, begin: int, end: int) -> list[Range]:
        """Lock the bytes of a range that nobody else has locked.

        A range that others have partly locked is halved, so the number of system calls grows with the number of
        conflicts, not with the length.

        Args:
            kind: as for `set_lock`.
            base: offset from which `begin` and `end` count.

        Returns:
            The ranges that were locked, ascending.
        """
        if begin >= end:
            return []
        if self.take(kind, base + begin, end - begin):
            return [(begin, end)]
        if end - begin == 1:
            return []
        middle = (begin + end) // 2
        left, right = self.take_parts(kind, base, begin, middle), self.take_parts(kind, base, middle, end)
        if left and right and left[-1][1] == right[0][0]:
            return [*left[:-1], (left[-1][0], right[0][1]), *right[1:]]
        return left + right

    def release(self) -> None:
        """Release all locks. A second call does nothing."""
        # Closing is not enough: a forked child may have inherited the description.
        with contextlib.suppress(OSError):
            if self._close.alive:  # type: ignore[attr-defined]
                set_lock(self.fd, fcntl.F_UNLCK, 0, 1 << 62)
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Claim(contextlib.AbstractContextManager["Claim"]):
    """Pages that the holder will fetch, until `release`, the end of the ``with`` block, or the end of its process.

    Attributes:
        lock: its locks.
        mine: missing byte ranges that the holder must fetch.
        others: missing byte ranges that others are fetching.
    """

    def __init__(self, lock: RangeLock, mine: list[Range], others: list[Range]) -> None:
        self.lock, self.mine, self.others = lock, mine, others

    def release(self) -> None:
        """Release the claim. A second call does nothing."""
        self.lock.release()

    def __exit__(self, *_: object) -> None:
        self.release()


class SharedLock:
    """An exclusive lock on one byte of a file that the threads of this process and other processes take by turns.

    Unlike `locked`, it opens the file only once.
    """

    def __init__(self, fd: int, byte: int) -> None:
        self._fd, self._byte = fd, byte
        self.reset()
        _shared.add(self)

    def reset(self) -> None:
        """Forget the open file: it was closed, or belongs to the parent of a forked child."""
        self._turn = threading.Lock()
        self._lock: RangeLock | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the lock in a block; wait for it if needed. Raises `OSError`."""
        with self._turn:
            if self._lock is None:
                self._lock = RangeLock(self._fd)
            with self._lock.holding(fcntl.F_WRLCK, self._byte, 1):
                yield


_shared: weakref.WeakSet[SharedLock] = weakref.WeakSet()


def _close_inherited() -> None:
    """Close the parent's locks in a forked child, which would keep them after the parent's death."""
    for lock in list(_held):
        lock._close()
    for shared in list(_shared):
        shared.reset()


os.register_at_fork(after_in_child=_close_inherited)


@contextlib.contextmanager
def locked(fd: int, begin: int, length: int = 1) -> Iterator[None]:
    """Hold an exclusive lock on a range in a block; wait for it if needed."""
    with RangeLock(fd) as lock:
        lock.take(fcntl.F_WRLCK, begin, length, wait=True)
        yield


def punch_hole(fd: int, begin: int, length: int) -> bool:
    """Free the disk space of a range. Its bytes read as zeros, and the file keeps its size.

    Returns:
        Whether it was freed; False if the file system or the C library does not support holes.

    Raises:
        OSError: the system call failed for another reason.
    """
    fallocate = _fallocate()
    if fallocate is None:
        return False
    if fallocate(fd, _KEEP_SIZE_AND_PUNCH, begin, length) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(code, os.strerror(code))


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return ``fallocate`` of the C library, or None: Python only has `os.posix_fallocate`, which cannot make holes."""
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int
    return function
