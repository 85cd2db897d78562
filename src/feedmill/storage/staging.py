"""Write local files safely: never through links, durably, and without leftovers of killed processes.

`LocalStore` writes all files through this module; code that writes to the cache folder uses it directly.

**Links.** A dataset from others may have links in it. `refuse_links` checks every folder between the folder that the
user passed and the file that is written. A file that is opened in place is opened with ``O_NOFOLLOW`` as well.

**Staged files.** A file is written as ``.<name>.<12 hex digits>.feedmill-tmp`` beside its final name, created with
``O_EXCL``, and renamed when it is complete. Its writer holds a lock on it (``flock``), which the system releases when
the process dies. When a process first writes into a folder, and again for each job, it deletes the staged files there
that no process has locked. On a file system without locks they are kept.

Start write-back early: large files go to the disk while they are still being written.

A large file is synced before it gets its final name. Without early write-back most of it is still in memory then, and
the sync takes a quarter of a second for a gigabyte on a fast disk, and many seconds on a slow one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import io
import os
import stat
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from feedmill.errors import StorageError
from feedmill.storage.base import storage_error
from feedmill.storage.locks import FileLock

if TYPE_CHECKING:
    from pathlib import Path


TEMPORARY_SUFFIX = ".feedmill-tmp"
_TRIES = 100
_CALM_TRIES = 20
"""Tries before the first wait: a folder that others remove again and again is met between two of their turns."""
_PLAIN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK: opening a pipe would wait for its other end
_BY_EFFECTIVE_IDS = os.access in os.supports_effective_ids  # those that writing is checked with
_swept: set[str] = set()
"""Folders whose staged files this process has checked."""


def refuse_links(path: str, top: str) -> None:
    """Raise `StorageError` if a component of `path` below the folder `top` is a link. Components may be absent."""
    current = top.rstrip("/")
    for name in path[len(current) :].split("/"):
        if not name:
            continue
        current = f"{current}/{name}"
        try:
            mode = os.lstat(current).st_mode
        except OSError:
            return
        if stat.S_ISLNK(mode):
            raise StorageError(
                "this is a link: files in a dataset are not written through links",
                file=current,
                kind="not-a-file",
                fix="Remove the link, or replace it by its target.",
            )


def open_in_place(path: str, flags: int) -> int:
    """Open a file that is not staged, such as a journal or a lock file; it is created if absent.

    Args:
        flags: flags of `os.open`, such as ``os.O_RDWR``.

    Returns:
        A descriptor.

    Raises:
        StorageError: the path is a link, is not a regular file, or is a hard link of another file.
        OSError: the file cannot be opened.
    """
    refuse_links(path, os.path.dirname(path))
    descriptor = os.open(path, flags | os.O_CREAT | _PLAIN, 0o644)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    what = "a second name of another file (a hard link)" if stat.S_ISREG(status.st_mode) else "not a regular file"
    raise StorageError(f"this is {what}, which cannot be written to", file=path, kind="not-a-file", fix="Remove it.")


def make_folder(path: str) -> None:
    """Create a folder and its parents, durably. Raises `OSError`."""
    for last in tries():
        try:
            return _make_missing(path)
        except (FileExistsError, FileNotFoundError) as error:
            if last or (isinstance(error, FileExistsError) and _is_no_folder(error.filename)):
                raise
            # else another process created or removed the same folder meanwhile


def tries() -> Iterator[bool]:
    """Yield whether this is the last try, for what fails while others create and remove the same folders.

    The last try must raise. Later tries come after random waits, half a second in all.
    """
    for number in range(_TRIES):
        if number >= _CALM_TRIES:
            import random

            time.sleep(random.SystemRandom().uniform(0, 0.012))
        yield number == _TRIES - 1


def refuse_unwritable(folder: str) -> None:
    """Raise `StorageError` if this user may not create files in a folder, or the folder itself if it is missing.

    Changes nothing: what `access` cannot see, such as a full disk, is found by the real run only.
    """
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder) or os.access(folder, os.W_OK | os.X_OK, effective_ids=_BY_EFFECTIVE_IDS):
        return
    read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    raise storage_error(OSError(errno.EROFS if read_only else errno.EACCES, "", folder))


def _is_no_folder(path: str) -> bool:
    """Return whether a path exists, but is not a folder (nor a link to one)."""
    try:
        mode = os.lstat(path).st_mode  # one look only: between two, others may create the folder or remove it
    except OSError:
        return False
    return not (stat.S_ISDIR(mode) or (stat.S_ISLNK(mode) and os.path.isdir(path)))


def _make_missing(path: str) -> None:
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    made = []
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
        else:
            made.append(folder)
    for folder in made:  # after all of them: an empty folder that waits for the disk is one that others may remove
        sync(os.path.dirname(folder))


def sync(path: str) -> None:
    """Write a file or folder to the disk, and wait for it (``fsync``). Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def staged(final: str) -> Iterator[str]:
    """Create a staged file beside `final`; it is deleted at the end of the block unless it was renamed.

    Raises:
        OSError: it cannot be created.
    """
    sweep(os.path.dirname(final))
    temporary, lock = new_staged(final)
    try:
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # fails if it was renamed
        lock.close()


def new_staged(final: str) -> tuple[str, FileLock]:
    """Create a staged file beside `final`; return its path, and the lock that shows that its process is alive.

    Raises:
        OSError: it cannot be created.
    """
    while True:
        temporary = temporary_beside(final)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _PLAIN, 0o666)
        with contextlib.suppress(BlockingIOError):
            lock = FileLock.of(descriptor)
            if lock.is_on(temporary):
                return temporary, lock
            lock.close()  # another process swept it before it was locked


def temporary_beside(final: str) -> str:
    """Return a new hidden path in the folder of `final`; stores skip such files when they list a folder."""
    folder, name = os.path.split(final)
    short = name if len(name) <= 50 else os.fsdecode(os.fsencode(name)[:200])  # names have at most 255 bytes
    return os.path.join(folder, f".{short}.{os.urandom(6).hex()}{TEMPORARY_SUFFIX}")


def sweep_again() -> None:
    """Make `sweep` check all folders again, for a new job: processes may have been killed since the last one."""
    _swept.clear()


def sweep(folder: str) -> None:
    """Delete the staged files of dead processes from a folder, once per job."""
    if folder in _swept:
        return
    _swept.add(folder)
    with contextlib.suppress(OSError):
        with os.scandir(folder or ".") as entries:
            staged_files = [e.path for e in entries if e.name.startswith(".") and e.name.endswith(TEMPORARY_SUFFIX)]
        for path in staged_files:
            remove_dead(path)


def remove_dead(path: str) -> bool:
    """Delete a staged file if its process is dead; return whether it was deleted."""
    with contextlib.suppress(OSError), dead(path) as file:
        if file is not None:
            os.unlink(path)
            return True
    return False


@contextlib.contextmanager
def dead(path: str) -> Iterator[int | None]:
    """Open and lock a staged file of a dead process in a block.

    The block gets its descriptor; None if the process is alive, the file is absent, or the file system has no locks.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | _PLAIN)
    except OSError:  # it was deleted meanwhile, belongs to another user, or is a link
        yield None
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_dead = stat.S_ISREG(os.fstat(descriptor).st_mode)
        except OSError:
            is_dead = False
        yield descriptor if is_dead else None
    finally:
        os.close(descriptor)


STEP = 32 << 20
"""Number of bytes after which write-back is started."""
_WRITE = 2  # SYNC_FILE_RANGE_WRITE: start, without waiting


class WriteBehind(io.FileIO):
    """A raw file for writing. On Linux, write-back starts while the file is still being written."""

    _begun = _waiting = 0

    def write(self, data: Any) -> int:
        """Write bytes; return their number. Raises `OSError`."""
        count = super().write(data)
        self._waiting += count
        if self._waiting >= STEP:
            start_writing(self.fileno(), self._begun, self._waiting)
            self._begun, self._waiting = self._begun + self._waiting, 0
        return count


class NamedWriteBehind(WriteBehind):
    """A raw file for writing, whose errors have the final name instead of the temporary one."""

    def __init__(self, temporary: Path, final: str) -> None:
        super().__init__(temporary, "w")
        self._final = final

    def write(self, data: Any) -> int:
        """Write bytes. Raises `StorageError`."""
        try:
            return super().write(data)
        except OSError as error:
            raise storage_error(error, self._final) from None


def start_writing(descriptor: int, offset: int = 0, size: int = 0) -> None:
    """Start write-back of a range of a file, by default of all of it."""
    call = _sync_file_range()
    if call is not None:
        call(descriptor, offset, size, _WRITE)  # errors are ignored: the sync at the end reports them


@cache
def _sync_file_range() -> Callable[..., int] | None:
    """Return ``sync_file_range`` of the C library; None if the system has none."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        function = ctypes.CDLL(None).sync_file_range
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
        return function
    return None
