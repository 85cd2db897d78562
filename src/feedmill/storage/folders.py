"""Folders of this machine: where caches and journals lie, and a private one below the temporary folder."""

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
from pathlib import Path

logger = logging.getLogger("feedmill")

_FOLDER = ".d"


def cache_folder() -> Path:
    """Return ``$FEEDMILL_CACHE_DIR``, or ``~/.cache/feedmill``, or `temporary_folder` if no home is writable."""
    asked = os.environ.get("FEEDMILL_CACHE_DIR")
    try:
        folder = Path(asked or "~/.cache/feedmill").expanduser()
    except RuntimeError:  # a user without a home, as in containers
        folder = Path("/nonexistent/.cache/feedmill")
    if asked or _can_be_written(folder):
        return folder
    private = temporary_folder()
    if private is None:
        return folder  # what needs it will report it
    _warn_once(str(folder), str(private))
    return private / "cache"


def temporary_folder() -> Path | None:
    """Return a folder of this user below the system's temporary folder, the same in every process; None if another user
    owns that name. Raises `OSError`."""
    folder = Path(tempfile.gettempdir()) / f"feedmill-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    return folder if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() else None


def _can_be_written(folder: Path) -> bool:
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
    """Return a folder below `temporary_folder` that only this process uses and that is removed when it ends.

    Those of killed processes are removed by the next one: each has a staged file beside it that its process has locked.
    Raises `OSError`.
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
