"""Lasting local copies of remote files that are opened by path, such as SQLite indices."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from feedmill.storage.base import Entry, Store
from feedmill.storage.folders import cache_folder
from feedmill.storage.hashed import hash_file
from feedmill.storage.local import LocalStore, publish, storage_error
from feedmill.storage.locks import FileLock
from feedmill.storage.staging import make_folder, staged

if TYPE_CHECKING:
    from feedmill.storage.range_store import RangeStore

logger = logging.getLogger("feedmill")

_HASHED = 16 << 20
"""Bytes up to which a copy is hashed whenever it is asked for: some milliseconds."""


def cached_copy(store: Store, path: str) -> Path:
    """Return a file as a path on this machine: itself if the store is local, else a copy that later calls reuse.

    A copy is named after the URL and the version, so a changed file is fetched again. Its hash lies beside it (see
    `_whole`), so a corrupt copy is fetched again, too. If several processes need it at once, one downloads and the
    others wait. Leftovers of killed downloads are removed. Raises `NotFound` and `StorageError`.
    """
    if store.is_local:
        with store.local_copy(path) as here:
            return here
    from feedmill.storage.range_store import RangeStore

    assert isinstance(store, RangeStore)
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
    """Return whether a copy is unchanged since its download: its hash, or the modification time of a large one, is that
    in ``<copy>.hash``."""
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


def _download(store: RangeStore, path: str, folder: Path) -> Path:
    with staged(str(folder / "download")) as temporary:
        with open(temporary, "wb") as f:
            entry = store.download(path, f)  # the file may have changed since `entry` was read
        copy, digest = _name(folder, store, entry), hash_file(temporary)
        publish(temporary, str(copy))
        _note(copy, digest)
        return copy


@contextlib.contextmanager
def one_at_a_time(copy: Path) -> Iterator[None]:
    """Hold this file's lock, which the system releases when a process dies; no lock if the file system has none."""
    with FileLock(f"{copy}.lock", wait=True):
        yield
