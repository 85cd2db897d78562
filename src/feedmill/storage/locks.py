"""Locks between processes, which the system releases when their holder dies.

Journals, work folders and staged files use `FileLock` (``flock``). The files of the cache folder, which may be absent
while they are locked, have a byte each of one file: `ByteLock`.

Which boot of the machine this is: what was not synced before another one may be lost.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import weakref
from types import TracebackType
from typing import Self


class FileLock:
    """A lock on a file, which is created if absent; a context manager.

    Forked children do not inherit the lock, because they would keep it after this process was killed. On a file system
    without locks the lock is always granted.

    Args:
        path: the file.
        wait: wait until another process releases the lock.
        shared: let other processes have it at the same time, if they share it too.

    Raises:
        BlockingIOError: another process has the lock, and `wait` is False.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], *, wait: bool = False, shared: bool = False) -> None:
        self._take(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644), wait, shared)

    @classmethod
    def of(cls, descriptor: int, *, wait: bool = False, shared: bool = False) -> Self:
        """Lock a file that is open for writing. Closing the lock closes the file. Raises `BlockingIOError`."""
        lock = cls.__new__(cls)
        lock._take(descriptor, wait, shared)
        return lock

    def _take(self, descriptor: int, wait: bool, shared: bool) -> None:
        self._file: int | None = descriptor
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(descriptor, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            self.close()
            raise
        except OSError:  # the file system has no locks
            pass
        _held.add(self)

    @property
    def held(self) -> bool:
        """Return whether the lock is still held."""
        return self._file is not None

    def fileno(self) -> int:
        """Return the descriptor of the locked file. Raises `ValueError` if the lock was released."""
        if self._file is None:
            raise ValueError("the lock was released")
        return self._file

    def is_on(self, path: str | os.PathLike[str]) -> bool:
        """Return whether the locked file still has this path: another process may have deleted it."""
        with contextlib.suppress(OSError):
            return self._file is not None and os.path.samestat(os.fstat(self._file), os.stat(path))
        return False

    def close(self) -> None:
        """Release the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ByteLock:
    """Locks on bytes of a file, which may lie beyond its end; a context manager.

    They belong to an *open file description* (``F_OFD_SETLK``), so two objects exclude each other as two processes do.
    They are released together: by `close`, at garbage collection, or by the kernel when the process dies. Forked
    children do not inherit them.

    Args:
        fd: descriptor of the file. It is opened again through ``/proc``, which works for files of deleted folders.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, fd: int) -> None:
        self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._fd)
        _held.add(self)

    def take(self, byte: int, *, wait: bool, shared: bool = False) -> bool:
        """Lock a byte; return whether it was locked. Raises `OSError` if the file system has no such locks."""
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, _flock(kind, byte, 1))
        except OSError as error:
            if not wait and error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def drop(self, byte: int) -> None:
        """Release the lock on a byte."""
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, byte, 1))

    def close(self) -> None:
        """Release all locks. A second call does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _flock(kind: int, begin: int, length: int) -> bytes:
    """Return the C structure ``flock``."""
    return struct.pack("@hhqqi0q", kind, os.SEEK_SET, begin, length, 0)


_held: weakref.WeakSet[FileLock | ByteLock] = weakref.WeakSet()


def _release_in_child() -> None:
    """Release the parent's locks in a forked child."""
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.close()


os.register_at_fork(after_in_child=_release_in_child)


def boot_id() -> str:
    """Return an id of this boot of the machine; empty if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip()
    except OSError:
        return ""
