"""On-disk cache of compiled code, and the check that cached code is safe to run.

The cache holds kernels (`feedmill.kernels.native`) and what numba compiles (`njit`). It lies next to the sources, like
Python's own compiled files. If that folder is not writable, the user's cache folder is used. If there is none either (a
read-only package and no home, as in containers), a per-user temporary folder is used. Cached code is run as it is, so
folders and files that anyone but this user and root could have written are not trusted.
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
    """Yield the cache folders, the preferred one first; they need not exist."""
    yield Path(__file__).parent / "__pycache__"
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(caches):  # a user without a home has none
        yield Path(caches) / "feedmill" / "kernels"
    yield Path(os.environ.get("TMPDIR") or "/tmp") / f"feedmill-{os.geteuid()}"  # noqa: S108 - read only if `trusted`  # nosec B108


def trusted(about: os.stat_result) -> bool:
    """Return whether only this user and root can have written a file or folder."""
    return about.st_uid in (0, os.geteuid()) and not about.st_mode & 0o022


def read(path: Path) -> bytes:
    """Return the bytes of a file in a cache folder.

    Raises:
        OSError: the file cannot be read or is not trusted.
    """
    with open(path, "rb") as file:
        if not (trusted(os.lstat(path.parent)) and trusted(os.fstat(file.fileno()))):
            raise PermissionError(f"{path} is not trusted: other users may have written it or its folder")
        return file.read()


def writable(folder: Path) -> bool:
    """Return whether a cache folder is trusted and writable; create it if it does not exist."""
    try:
        folder.mkdir(mode=0o755 if folder.name == "__pycache__" else 0o700, parents=True, exist_ok=True)
        return trusted(os.lstat(folder)) and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


def write(path: Path, data: bytes) -> None:
    """Create a file in a cache folder, readable by other users.

    Raises:
        OSError: the file exists or cannot be written.
    """
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
        file.write(data)


class Turn:
    """Lock that lets one process compile at a time, so that processes with an empty cache do not repeat the work.

    The cache folder itself is locked, so no lock file is left over. The lock only saves work: without one (no folder,
    or a file system without locks), every process may compile.
    """

    def __init__(self) -> None:
        self._folder: int | None = None
        with contextlib.suppress(OSError):
            self._folder = os.open(next(filter(writable, folders()), ""), os.O_RDONLY | os.O_DIRECTORY)

    def mine(self) -> bool:
        """Return whether this process holds the lock, after trying to take it; `close` releases it."""
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
        """Release the lock."""
        if self._folder is not None:
            with contextlib.suppress(OSError):  # after a mere close, a child forked meanwhile would keep the lock
                fcntl.flock(self._folder, fcntl.LOCK_UN)
            os.close(self._folder)
            self._folder = None


def njit(function: Callable[..., Any], **options: Any) -> Any:
    """Apply `numba.njit` with ``nogil`` and ``cache``, caching in the first writable folder of `folders`.

    numba itself raises an error if it finds no folder for its cache; this compiles without a cache then.
    """
    import numba

    theirs = numba.config.CACHE_DIR  # set by the user for all that numba compiles
    kept = theirs or _for_numba()
    numba.config.CACHE_DIR = kept or ""
    try:
        return numba.njit(nogil=True, cache=kept is not None, **options)(function)
    finally:
        numba.config.CACHE_DIR = theirs


@cache
def _for_numba() -> str | None:
    return next(map(str, filter(writable, folders())), None)
