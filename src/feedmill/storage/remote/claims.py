"""Locks in object stores: only one process of all machines may write to a location at a time.

Every job that writes to a remote dataset takes a `Claim` first. The lock is an object, ``.feedmill/lock`` below the
prefix (``.feedmill/lock-<name>`` for a single file). It is put on the condition that it is absent
(``If-None-Match: *``), and deleted when the work ends. It contains its owner::

    {"owner": "<32 hex>", "run": "<32 hex>", "host": "node7", "process": 4711, "since": "2026-11-22T20:24:10Z"}

`owner` is an id in the cache folder, which also has the unfinished work on remote datasets. A process with the same
cache folder takes over the lock of a killed process once it has the local lock in that folder, which proves that no
other process is at work. Other machines cannot know whether a process is alive: they get an error that explains how to
remove the lock.

If the server has no conditional writes, a warning is logged, and the lock is only checked before it is put.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import orjson

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage.base import Store
from feedmill.storage.locks import FileLock

if TYPE_CHECKING:
    from feedmill.storage.local import LocalStore
    from feedmill.storage.remote.range_store import RangeStore

logger = logging.getLogger("feedmill")

LOCK = ".feedmill/lock"


@dataclass
class _Held:
    """A lock of this process.

    Attributes:
        local: lock that excludes other processes with this cache folder.
        run: id of the lock in the store.
        times: number of claims that share it.
    """

    local: FileLock
    run: str
    times: int = 0


_held: dict[str, _Held] = {}
"""Locks by URL. Claims of one process share a lock, because a job may be a part of another job."""
_guard = threading.Lock()


def claim_path(name: str = "") -> str:
    """Return the path of the lock of a folder, or of the file `name` in it."""
    return f"{LOCK}-{name.replace('/', '-')}" if name else LOCK


class Claim:
    """The right to write below a store's prefix, or to one file of it; a context manager.

    Does nothing for a local disk, which has locks of its own, and for a web server, which is not written to.

    Args:
        name: a file of the store; by default the whole prefix.

    Raises:
        StorageError: another process has it (kind ``busy``), or a request failed.
    """

    def __init__(self, store: Store, name: str = "") -> None:
        self._path = claim_path(name)
        self._store: RangeStore | None = None
        if store.is_local:
            return
        from feedmill.storage.remote.files import RemoteFiles
        from feedmill.storage.remote.range_store import RangeStore

        if not isinstance(store, RangeStore) or store.target.startswith("http"):
            return
        url = store.request_url(self._path)
        with _guard:
            if url not in _held:
                local = _lock_here(store, url, name)
                try:
                    run = _take(store, self._path, name)
                except BaseException:
                    local.close()
                    raise
                _held[url] = _Held(local, run)
            _held[url].times += 1
        self._store = store
        if isinstance(store, RemoteFiles):
            from feedmill.storage.remote.upload import abort_abandoned, check_again

            check_again(store)
            abort_abandoned(store)

    def close(self) -> None:
        """Release the lock."""
        store, self._store = self._store, None
        if store is None:
            return
        with _guard:
            url = store.request_url(self._path)
            held = _held[url]
            held.times -= 1
            if not held.times:
                del _held[url]
                try:
                    self._delete(store, held.run)
                except FeedmillError as error:
                    logger.warning("the lock could not be deleted; delete it before another machine writes: %s", error)
                finally:
                    held.local.close()

    def _delete(self, store: RangeStore, run: str) -> None:
        """Delete the lock, unless somebody deleted it meanwhile: then it may be that of another writer."""
        if (_read(store, self._path) or {}).get("run") == run:
            store.delete(self._path)
        else:
            logger.warning(
                "%s: the lock of this process was removed while it was writing, so another process may have written at"
                " the same time: check the result",
                store.locate(self._path),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _take(store: RangeStore, path: str, name: str) -> str:
    """Put the lock, or take over that of a dead process of this cache folder; return its id. Raises `StorageError`."""
    owner, run = _owner(), secrets.token_hex(16)
    since = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"owner": owner, "run": run, "host": os.uname().nodename, "process": os.getpid(), "since": since}
    data = orjson.dumps(content)
    current = _read(store, path)
    if current is None:
        try:
            if store.put_new(path, data):
                return run
        except StorageError as error:
            if error.kind != "not-supported":
                raise
            logger.warning("%s: this server does not support conditional writes: two writers may overlap", store.url)
            store.write_bytes(path, data)
            return run
        current = _read(store, path) or {}
    if current.get("run") == run:
        return run  # our own: the answer to the first try was lost, and the retry found the lock
    if current.get("owner") != owner:
        raise _busy(store, path, name, current)
    store.write_bytes(path, data)
    return run


def _read(store: RangeStore, path: str) -> dict[str, Any] | None:
    """Return the content of a lock; None if it is absent, an empty dict if it is invalid."""
    try:
        content = orjson.loads(store.read(path))
    except NotFound:
        return None
    except orjson.JSONDecodeError:
        return {}
    return content if isinstance(content, dict) else {}


def _lock_here(store: RangeStore, url: str, name: str) -> FileLock:
    """Exclude other processes with this cache folder: its holder knows that a remote lock of theirs is stale."""
    digest = hashlib.sha256(url.encode()).hexdigest()[:32]
    what = "another process is writing here"
    return _cache_store().lock(f"claims/{digest}", what=what, file=store.locate(name))


def _cache_store() -> LocalStore:
    from feedmill.storage.folders import cache_folder
    from feedmill.storage.local import LocalStore

    return LocalStore(cache_folder())


def _owner() -> str:
    """Return the owner id of this machine's cache folder."""
    folder, owner = _cache_store(), secrets.token_hex(16)
    with folder.lock("owner.lock", what="another process is starting", file=folder.root, wait=True):
        try:
            return folder.read("owner").decode()
        except NotFound:
            folder.write_bytes("owner", owner.encode())
            return owner


def _busy(store: RangeStore, path: str, name: str, content: dict[str, Any]) -> StorageError:
    holder = f"process {content.get('process', '?')} on {content.get('host', '?')}, since {content.get('since', '?')}"
    return StorageError(
        f"another process is writing here: {holder}",
        file=store.locate(name),
        kind="busy",
        fix=f"Wait until it has ended. If it was killed, run its command again on that machine, or delete the object"
        f" {store.locate(path)} and run this command again.",
    )
