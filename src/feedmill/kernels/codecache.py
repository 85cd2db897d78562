"""Where compiled code is kept from one process to the next, and whether what lies there may be run.

Kept are kernels (`feedmill.kernels.native`) and what numba compiles (`njit`), beside the sources, as Python's own
compiled files are; where that may not be written, in the user's cache folder; and where there is none either (a package
that is read-only and no home, as in containers), in a folder of the user's among the temporary files. All of it is run
as it is found, so nothing is taken from a folder or a file that anybody but this user and root may have written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any


def folders() -> Iterator[Path]:
    """Yield where compiled code may lie, the best place first; none of them need be there."""
    yield Path(__file__).parent / "__pycache__"
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(caches):  # a user without a home has none
        yield Path(caches) / "feedmill" / "kernels"
    yield Path(os.environ.get("TMPDIR") or "/tmp") / f"feedmill-{os.geteuid()}"


def trusted(about: os.stat_result) -> bool:
    """Return whether nobody but this user and root can have written a file or folder."""
    return about.st_uid in (0, os.geteuid()) and not about.st_mode & 0o022


def read(path: Path) -> bytes:
    """Return a file of one of the folders. Raises `OSError`, also if it is not trusted."""
    with open(path, "rb") as file:
        if not (trusted(os.lstat(path.parent)) and trusted(os.fstat(file.fileno()))):
            raise PermissionError(f"others may write {path}")
        return file.read()


def writable(folder: Path) -> bool:
    """Return whether files may be kept in one of the folders; it is made where it does not exist."""
    try:
        folder.mkdir(mode=0o755 if folder.name == "__pycache__" else 0o700, parents=True, exist_ok=True)
        return trusted(os.lstat(folder)) and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


def write(path: Path, data: bytes) -> None:
    """Make a file in one of the folders, which others may read. Raises `OSError`."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
        file.write(data)


class Turn:
    """Whose turn it is to compile, so that processes with an empty cache do not all do the same work.

    A lock of the folder itself, in which files are kept: no file is left behind. It only saves work, so where there is
    none to be had (no folder, a file system without locks) it is this process's turn.
    """

    def __init__(self) -> None:
        self._folder: int | None = None
        with contextlib.suppress(OSError):
            self._folder = os.open(next(filter(writable, folders()), ""), os.O_RDONLY | os.O_DIRECTORY)

    def mine(self) -> bool:
        """Return whether it is this process's turn, which it stays until `close`."""
        if self._folder is None:
            return True
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Let others have theirs."""
        if self._folder is not None:
            with contextlib.suppress(OSError):  # closing alone would leave it to a child that was forked meanwhile
                fcntl.flock(self._folder, fcntl.LOCK_UN)
            os.close(self._folder)
            self._folder = None


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `numba.njit` with ``nogil`` and ``cache``, but that the cache is in the first of our folders that will do.

    numba itself refuses to compile where it has no place for its cache.
    """
    import numba

    def compiled(function: Callable[..., Any]) -> Any:
        theirs = numba.config.CACHE_DIR  # what the user says, for all that numba compiles
        kept = theirs or _for_numba()
        numba.config.CACHE_DIR = kept or ""
        try:
            return numba.njit(nogil=True, cache=kept is not None, **options)(function)
        finally:
            numba.config.CACHE_DIR = theirs

    return compiled


@cache
def _for_numba() -> str | None:
    return next(map(str, filter(writable, folders())), None)
