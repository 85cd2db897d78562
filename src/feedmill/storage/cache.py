"""Lasting local copies of remote files that are opened by path, such as SQLite indices."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from feedmill.storage.base import Entry, Store
from feedmill.storage.hashed import hash_file
from feedmill.storage.local import LocalStore, publish, storage_error
from feedmill.storage.locks import FileLock
from feedmill.storage.staging import make_folder, staged

if TYPE_CHECKING:
    from feedmill.storage.remote import RemoteStore

logger = logging.getLogger("feedmill")

_HASHED = 16 << 20
"""Bytes up to which a copy is hashed whenever it is asked for: some milliseconds."""


def cache_folder() -> Path:
    """``$FEEDMILL_CACHE_DIR``, or ``~/.cache/feedmill``; where no home can be written to, `temporary_folder`."""
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
    """A folder of this user below the system's temporary folder, the same in every process; None if somebody else
    has taken its name. Raises `OSError`."""
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
        "%s cannot be written to: caches and the records of unfinished work are kept in %s, where another machine, or"
        " this one after a restart, does not find them. Set FEEDMILL_CACHE_DIR to a folder that lasts.",
        folder,
        instead,
    )


def cached_copy(store: Store, path: str) -> Path:
    """A file as a path on this machine: itself where the store is local, else a copy that later calls find again.

    A copy is named after the URL and the version, so a changed file is fetched again; beside it stands a hash (see
    `_whole`), so a damaged one is, too. Of several processes that ask at once, one downloads and the others wait for
    it. What killed downloads have left is removed. Raises `NotFound` and `StorageError`.
    """
    if store.is_local:
        with store.local_copy(path) as here:
            return here
    from feedmill.storage.remote import RemoteStore

    assert isinstance(store, RemoteStore)
    folder = cache_folder()
    entry = store.stat(path)
    copy = _name(folder, store, entry)
    try:
        make_folder(os.path.abspath(folder))
        with one_at_a_time(copy):
            return copy if _whole(copy, entry) else _download(store, path, folder)
    except OSError as error:
        translated = storage_error(error, str(folder))
        translated.fix = "Set FEEDMILL_CACHE_DIR to a folder with room that may be written to."
        raise translated from None


def _name(folder: Path, store: Store, entry: Entry) -> Path:
    word = hashlib.sha256(f"{store.locate(entry.path)}\n{entry.version}".encode()).hexdigest()[:32]
    return folder / f"{word}-{entry.path.rpartition('/')[2]}"


def _whole(copy: Path, entry: Entry) -> bool:
    """Whether a copy is as it was when it came: its hash is that in ``<copy>.hash``, or, for a large one, the time of
    its last change is still the one noted there."""
    noted = _note_of(copy)
    try:
        status = copy.stat()
        size, changed, digest = noted.read_text().split()
    except (FileNotFoundError, ValueError):
        return False
    if not status.st_size == entry.size == int(size):
        return False
    if status.st_size > _HASHED and str(status.st_mtime_ns) == changed:
        return True
    if hash_file(str(copy)) != digest:
        logger.warning("%s: this copy of a remote file is damaged, it is fetched again", copy)
        return False
    if str(status.st_mtime_ns) != changed:
        _note(copy, digest)
    return True


def _note_of(copy: Path) -> Path:
    return copy.with_name(f"{copy.name}.hash")


def _note(copy: Path, digest: str) -> None:
    status = copy.stat()
    LocalStore(copy.parent).write_note(_note_of(copy).name, f"{status.st_size} {status.st_mtime_ns} {digest}".encode())


def _download(store: RemoteStore, path: str, folder: Path) -> Path:
    with staged(str(folder / "download")) as temporary:
        with open(temporary, "wb") as f:
            entry = store.download(path, f)  # the version that came, should the file have changed since
        copy, digest = _name(folder, store, entry), hash_file(temporary)
        publish(temporary, str(copy))
        _note(copy, digest)
        return copy


@contextlib.contextmanager
def one_at_a_time(copy: Path) -> Iterator[None]:
    """Hold this file's lock; the system frees it when a process dies. Where locks do not work, go without."""
    with FileLock(f"{copy}.lock", wait=True):
        yield
