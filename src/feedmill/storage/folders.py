"""Folders of Feedmill on this machine: the cache folder, and folders below the temporary folder.

The cache folder has caches, journals and records that later runs read. A private folder is for files of one process, if
the cache folder cannot be used.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import logging
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from feedmill.errors import FeedmillError
from feedmill.storage.base import storage_error

logger = logging.getLogger("feedmill")

_FOLDER = ".d"
"""Suffix of private folders, after the name of their staged file."""


def cache_folder() -> Path:
    """Return ``$FEEDMILL_CACHE_DIR``, or ``~/.cache/feedmill``, or `temporary_folder` if no home is writable."""
    setting = os.environ.get("FEEDMILL_CACHE_DIR")
    try:
        folder = Path(setting or "~/.cache/feedmill").expanduser()
    except RuntimeError:  # a user without a home, as in containers
        folder = Path("/nonexistent/.cache/feedmill")
    if setting or _can_be_written(folder):
        return folder
    private = temporary_folder()
    if private is None:
        return folder  # writing to it raises the error
    _warn_once(str(folder), str(private))
    return private / "cache"


def temporary_folder() -> Path | None:
    """Return the folder of this user below the system's temporary folder, the same in every process.

    Returns:
        The folder; None if another user owns its name.

    Raises:
        OSError: it cannot be created.
    """
    import tempfile

    folder = Path(tempfile.gettempdir()) / f"feedmill-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    return folder if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() else None


def _can_be_written(folder: Path) -> bool:
    """Return whether a folder, or the nearest existing folder above it, is writable."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


@functools.cache
def _warn_once(folder: str, instead: str) -> None:
    logger.warning(
        "%s is not writable: caches and journals of unfinished work are stored in %s, where another machine, or this"
        " one after a reboot, cannot find them. Set FEEDMILL_CACHE_DIR to a persistent folder.",
        folder,
        instead,
    )


def private_folder(name: str) -> Path:
    """Return a folder below `temporary_folder` that only this process uses, and that is removed when it ends.

    Folders of killed processes are removed by the next process: beside each lies a staged file that its process locks.

    Args:
        name: purpose of the folder; later calls with the same name return the same folder.

    Raises:
        OSError: it cannot be created.
    """
    with _guard:
        path = _private.get((os.getpid(), name))
        if path is None or not path.is_dir():
            path = _private[os.getpid(), name] = _make_private(name)
        return path


_guard = threading.Lock()
_private: dict[tuple[int, str], Path] = {}
_locks: list[object] = []


def _make_private(name: str) -> Path:
    from feedmill.storage.staging import new_staged, remove_dead

    base = temporary_folder()
    if base is None:
        import tempfile

        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), tempfile.gettempdir())
    for folder in base.glob(f".{name}.*{_FOLDER}"):
        marker = str(folder).removesuffix(_FOLDER)
        if remove_dead(marker) or not os.path.lexists(marker):
            shutil.rmtree(folder, ignore_errors=True)
    marker, lock = new_staged(str(base / name))
    folder = Path(marker + _FOLDER)
    folder.mkdir(mode=0o700)
    _locks.append(lock)
    atexit.register(_remove, os.getpid(), folder, marker)
    return folder


def _remove(process: int, folder: Path, marker: str) -> None:
    if os.getpid() == process:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(marker)


@contextlib.contextmanager
def spool_folder() -> Iterator[Path]:
    """Create a folder in this machine's temporary folder for a block; it is removed at the end.

    That of a killed process is removed by a later one (see `private_folder`).
    """
    try:
        folder = tempfile.mkdtemp(dir=private_folder("spool"))
    except OSError as error:
        raise spool_error(error) from None
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def spool_error(error: OSError) -> FeedmillError:
    """Return the error for a failure of the local disk, not of the store."""
    translated = storage_error(error, tempfile.gettempdir())
    if translated.kind in ("enospc", "edquot"):
        translated.fix = "Free some space there, or set TMPDIR to a folder on a larger disk."
    return translated
