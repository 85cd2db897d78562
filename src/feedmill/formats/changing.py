"""One process at a time changes a dataset, and none while a change of its shards is half in place.

A prepared folder is locked by ``.nv-meta/feedmill.work/lock``, a file by ``.<name>.feedmill-lock`` beside it. The
system releases a lock when its process dies. Datasets in object stores have no lock of this kind.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import orjson
import xxhash

from feedmill.errors import ConfigError, NotFound
from feedmill.storage import LocalStore, Store
from feedmill.storage.cache import cache_folder
from feedmill.storage.locks import FileLock

FOLDER = ".nv-meta/feedmill.work"
JOB = "job.json"
_mine: set[tuple[int, str]] = set()
"""Thread and path of what is locked here: `repair` prepares what it has repaired."""


def work_place(store: Store) -> LocalStore:
    """The folder of unfinished work on a dataset, which may be absent; of a remote one in the cache folder."""
    if isinstance(store, LocalStore):
        return store.below(FOLDER)
    return LocalStore(cache_folder()).below(f"work-{xxhash.xxh3_64_hexdigest(store.url.encode())}")


def take(store: Store) -> FileLock:
    """Lock the folder of a dataset. Raises `StorageError` (kind ``busy``) where another process is changing it."""
    return work_place(store).lock("lock", what="another process is writing this dataset", file=store.url)


def clear(store: Store) -> None:
    """Remove the folder of unfinished work, and ``.nv-meta`` where it holds nothing else."""
    place = work_place(store)
    place.remove_folder()
    with contextlib.suppress(OSError):
        Path(place.root).parent.rmdir()


@contextlib.contextmanager
def changing(store: Store, name: str = "") -> Iterator[None]:
    """A block in which nobody else changes a local dataset: a folder, or the file `name` in it.

    Raises:
        StorageError: another process is changing it.
        ConfigError: shards are half in place (see `refuse_half`).
    """
    own = threading.get_ident(), store.locate(name)
    if own in _mine or not isinstance(store, LocalStore) or not os.path.isdir(store.root):
        yield
        return
    if name:
        lock = f".{name}.feedmill-lock"
        context: contextlib.AbstractContextManager[object] = store.alone(
            lock, what="another process is writing this dataset", file=store.locate(name)
        )
    else:
        context = _folder(store)
    with context:
        _mine.add(own)
        try:
            yield
        finally:
            _mine.discard(own)


@contextlib.contextmanager
def _folder(store: LocalStore) -> Iterator[None]:
    with take(store):
        try:
            refuse_half(store)
            yield
        finally:
            if not work_place(store).exists(JOB):
                clear(store)


def refuse_half(store: Store) -> None:
    """Raise `ConfigError` where a killed process has put some of its changed shards in place, and not all."""
    try:
        job = orjson.loads(work_place(store).read(JOB))
    except (NotFound, orjson.JSONDecodeError):
        return
    if isinstance(job, dict) and job.get("swapping"):
        raise half(store, job)


def half(store: Store, job: dict[str, object]) -> ConfigError:
    """The error for a change that was interrupted while it put shards in place."""
    return ConfigError(
        f"a '{job.get('verb')}' was interrupted while it put changed shards in place",
        file=store.url,
        kind="unfinished-change",
        fix="Run that command again, as it was: it finishes in a moment.",
    )
