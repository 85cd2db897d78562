"""Locks between processes (``flock``), which the system releases when their holder dies.

Journals, work folders and staged files use `FileLock`. The page cache needs locks on byte ranges, which
`cache/page_locks.py` has.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
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


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _release_in_child() -> None:
    """Release the parent's locks in a forked child."""
    for lock in list(_held):
        with contextlib.suppress(OSError):
            lock.close()


os.register_at_fork(after_in_child=_release_in_child)
