"""One process at a time changes a dataset, and none while a change of its shards is half in place.

A prepared folder is locked by ``.nv-meta/feedmill.work/lock``, a file by ``.<name>.feedmill-lock`` beside it. The
system releases a lock when its process dies. What is in an object store is locked by an object
(`feedmill.storage.claims`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import orjson
import xxhash

from feedmill.errors import DataError, NotFound
from feedmill.storage import LocalStore, Store
from feedmill.storage.cache import cache_folder
from feedmill.storage.claims import Claim
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
    """A block in which nobody else changes a dataset: a folder, or the file `name` in it.

    Raises:
        StorageError: another process is changing it.
        DataError: shards are half in place (see `refuse_half`).
    """
    own = threading.get_ident(), store.locate(name)
    if not isinstance(store, LocalStore):
        with Claim(store, name):
            yield
        return
    if own in _mine or not os.path.isdir(store.root):
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
    above = Path(work_place(store).root).parent
    fresh = not above.exists()
    with take(store):
        try:
            refuse_half(store)
            yield
        finally:
            if not work_place(store).exists(JOB):
                work_place(store).remove_folder()
                with contextlib.suppress(OSError):
                    if fresh:
                        above.rmdir()  # where nothing was written


def refuse_half(store: Store) -> None:
    """Raise `DataError` where a killed process has put some of its changed shards in place, and not all."""
    job = unfinished_job(store)
    if job is not None and job.get("swapping"):
        raise interrupted(store, job)


def unfinished_job(store: Store) -> dict[str, object] | None:
    """The note of a change or a write that is not finished; None where there is none, or what is there is no JSON,
    which its writer tells."""
    try:
        job = orjson.loads(work_place(store).read(JOB))
    except (NotFound, orjson.JSONDecodeError):
        return None
    return job if isinstance(job, dict) else {}


def interrupted(store: Store, job: dict[str, object]) -> DataError:
    """The error, for readers and writers, for what would be read as another dataset: some shards are old and some new,
    or some have no index."""
    half = bool(job.get("swapping"))
    return DataError(
        f"a '{job.get('verb', 'write')}' is {'putting changed shards in place' if half else 'writing this'},"
        " or was interrupted",
        file=store.url,
        kind="unfinished-change" if half else "unfinished-write",
        fix="Wait; if nothing is running, run that command again, as it was: it finishes what is left.",
    )
