"""Writing of local files: never through links, durably, and with the leftovers of killed processes removed.

**Links.** A dataset may come from somebody else, with links in it. `refuse_links` looks at every folder between a
place that the user has named and a file of ours; what is opened in place is opened with ``O_NOFOLLOW`` as well.

**Staged files.** A file is written as ``.<name>.<12 hex digits>.feedmill-tmp`` beside its final name, made with
``O_EXCL``, and renamed when it is whole. Its writer holds a lock on it (``flock``), which the system releases when the
process dies. The first time that a process writes into a folder, and again for each job, it removes the staged files
there that nobody has locked. Where a file system has no locks they stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator

from feedmill.errors import StorageError
from feedmill.storage.locks import FileLock

TEMPORARY_SUFFIX = ".feedmill-tmp"
_TRIES = 100
_PLAIN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # the last one: a pipe under our name is no reason to wait
_swept: set[str] = set()
"""Folders that this process has looked through."""


def refuse_links(path: str, top: str) -> None:
    """Raise `StorageError` if a component of `path` below the folder `top` is a link; absent components pass."""
    at = top.rstrip("/")
    for name in path[len(at) :].split("/"):
        if not name:
            continue
        at = f"{at}/{name}"
        try:
            mode = os.lstat(at).st_mode
        except OSError:
            return
        if stat.S_ISLNK(mode):
            raise StorageError(
                "this is a link: files in a dataset are not written through links",
                file=at,
                kind="link",
                fix="Remove the link, or replace it by its target.",
            )


def open_in_place(path: str, flags: int) -> int:
    """Open one of our files that is not staged, such as a journal or a lock; it is created if absent.

    Raises:
        StorageError: it is a link, no regular file, or a file with another name.
        OSError: it cannot be opened.
    """
    refuse_links(path, os.path.dirname(path))
    descriptor = os.open(path, flags | os.O_CREAT | _PLAIN, 0o644)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    what = "a second name of another file (a hard link)" if stat.S_ISREG(status.st_mode) else "no regular file"
    raise StorageError(f"this is {what}, which cannot be written to", file=path, kind="link", fix="Remove it.")


def make_folder(path: str) -> None:
    """Create a folder and its parents; each new one is durable. Raises `OSError`."""
    for left in reversed(range(_TRIES)):
        try:
            return _make_missing(path)
        except (FileExistsError, FileNotFoundError) as error:
            if not left or (isinstance(error, FileExistsError) and _is_no_folder(error.filename)):
                raise
            # else other processes make folders here and remove them once they are empty
    raise AssertionError("unreachable")


def _is_no_folder(path: str) -> bool:
    return os.path.lexists(path) and not os.path.isdir(path)


def _make_missing(path: str) -> None:
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
        else:
            sync(os.path.dirname(folder))


def sync(path: str) -> None:
    """Wait until a file or folder is on the disk. Raises `OSError`."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def staged(final: str) -> Iterator[str]:
    """Create a staged file beside `final`; it is removed at the end of the block unless it was renamed. Raises
    `OSError`."""
    sweep(os.path.dirname(final))
    temporary, lock = new_staged(final)
    try:
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # gone already when it was renamed
        lock.close()


def new_staged(final: str) -> tuple[str, FileLock]:
    """Create a staged file beside `final`; return its path and the lock that says that its process is alive. Raises
    `OSError`."""
    while True:
        temporary = temporary_beside(final)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _PLAIN, 0o666)
        with contextlib.suppress(BlockingIOError):
            lock = FileLock.of(descriptor)
            if lock.is_on(temporary):
                return temporary, lock
            lock.close()  # it was swept before it was locked


def temporary_beside(final: str) -> str:
    """Return a new hidden name in the folder of `final`; stores skip such names when they list files."""
    folder, name = os.path.split(final)
    short = name if len(name) <= 50 else os.fsdecode(os.fsencode(name)[:200])  # file systems take 255 bytes
    return os.path.join(folder, f".{short}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")


def look_again() -> None:
    """Make each folder be swept again, for a new job: processes may have been killed since the last one."""
    _swept.clear()


def sweep(folder: str) -> None:
    """Remove the staged files of processes that are dead from a folder, unless this process has done so."""
    if folder in _swept:
        return
    _swept.add(folder)
    with contextlib.suppress(OSError):
        with os.scandir(folder or ".") as entries:
            left = [e.path for e in entries if e.name.startswith(".") and e.name.endswith(TEMPORARY_SUFFIX)]
        for path in left:
            remove_dead(path)


def remove_dead(path: str) -> bool:
    """Remove a staged file if its process is dead; return whether it was removed."""
    with contextlib.suppress(OSError), dead(path) as file:
        if file is not None:
            os.unlink(path)
            return True
    return False


@contextlib.contextmanager
def dead(path: str) -> Iterator[int | None]:
    """Open and lock a staged file in a block; None if its process is alive, it is gone, or there are no locks here."""
    try:
        descriptor = os.open(path, os.O_RDWR | _PLAIN)
    except OSError:  # removed meanwhile, of another user, or a link
        yield None
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = stat.S_ISREG(os.fstat(descriptor).st_mode)
        except OSError:
            found = False
        yield descriptor if found else None
    finally:
        os.close(descriptor)
