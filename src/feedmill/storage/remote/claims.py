"""Locks in object stores: one process at a time, of all machines, may write to a location.

The lock is an object, ``.feedmill/lock`` below the prefix (``.feedmill/lock-<name>`` for a single file), that is put on
the condition that it is absent (``If-None-Match: *``), and deleted when the work ends. It names its owner::

    {"owner": "<32 hex>", "run": "<32 hex>", "host": "node7", "process": 4711, "since": "2026-11-22T20:24:10Z"}

`owner` is an id stored in the cache folder, which also has the unfinished work on remote datasets. A process with that
cache folder takes over the lock of a killed one, once it holds the local lock there: no other process is then at work.
For others the error explains how to remove the lock: another machine cannot tell whether a process is alive.

For a server without conditional writes a warning is logged, and the lock is only checked before it is put.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import socket
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import orjson

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage.base import Store
from feedmill.storage.locks import FileLock
from feedmill.storage.remote.upload import abort_abandoned, look_again

if TYPE_CHECKING:
    from feedmill.storage.local import LocalStore
    from feedmill.storage.remote.range_store import RangeStore

logger = logging.getLogger("feedmill")

LOCK = ".feedmill/lock"


@dataclass
class _Held:
    """A lock of this process: the local lock that excludes others of this machine, and how often it was taken."""

    local: FileLock
    times: int = 0


_held: dict[str, _Held] = {}
"""By URL of the lock: work may be a part of other work."""
_guard = threading.Lock()


def claim_path(name: str = "") -> str:
    """Return the path of the lock of a folder, or of the file `name` in it."""
    return f"{LOCK}-{name.replace('/', '-')}" if name else LOCK


class Claim:
    """The right to write below a store's prefix, or one file of it; a context manager. No-op on a local disk.

    Raises:
        StorageError: another process has it, of kind ``busy``.
    """

    def __init__(self, store: Store, name: str = "") -> None:
        self._path = claim_path(name)
        self._store: RangeStore | None = None
        if store.is_local:
            return
        from feedmill.storage.remote.files import RemoteFiles
        from feedmill.storage.remote.range_store import RangeStore

        if not isinstance(store, RangeStore) or store.target.startswith("http"):
            return  # a disk has locks of its own, and a web server is not written to
        where = store.place(self._path)
        with _guard:
            if where not in _held:
                local = _lock_here(store, where, name)
                try:
                    _take(store, self._path, name)
                except BaseException:
                    local.close()
                    raise
                _held[where] = _Held(local)
            _held[where].times += 1
        self._store = store
        if isinstance(store, RemoteFiles):
            look_again(store)
            abort_abandoned(store)

    def close(self) -> None:
        """Release the lock."""
        store, self._store = self._store, None
        if store is None:
            return
        with _guard:
            where = store.place(self._path)
            held = _held[where]
            held.times -= 1
            if not held.times:
                del _held[where]
                try:
                    store.delete(self._path)
                except FeedmillError as error:
                    logger.warning("the lock could not be removed, remove it before another machine writes: %s", error)
                finally:
                    held.local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _take(store: RangeStore, path: str, name: str) -> None:
    owner, run = _owner(), secrets.token_hex(16)
    since = datetime.now(UTC).isoformat(timespec="seconds")
    mine = {"owner": owner, "run": run, "host": socket.gethostname(), "process": os.getpid(), "since": since}
    data = orjson.dumps(mine)
    there = _read(store, path)
    if there is None:
        try:
            if store.put_new(path, data):
                return
        except StorageError as error:
            if error.kind != "not-supported":
                raise
            logger.warning("%s: this server does not support conditional writes: two writers may overlap", store.url)
            store.write_bytes(path, data)
            return
        there = _read(store, path) or {}
    if there.get("run") == run:
        return  # the answer to the first try was lost
    if there.get("owner") != owner:
        raise _busy(store, path, name, there)
    store.write_bytes(path, data)


def _read(store: RangeStore, path: str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(store.read(path))
    except NotFound:
        return None
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _lock_here(store: RangeStore, where: str, name: str) -> FileLock:
    """Lock out other processes with this cache folder: the holder knows that a remote lock of theirs is stale."""
    word = hashlib.sha256(where.encode()).hexdigest()[:32]
    what = "another process is writing here"
    return _place().lock(f"claims/{word}", what=what, file=store.locate(name))


def _place() -> LocalStore:
    from feedmill.storage.folders import cache_folder
    from feedmill.storage.local import LocalStore

    return LocalStore(cache_folder())


def _owner() -> str:
    """Return the owner id of this machine's cache folder."""
    place, word = _place(), secrets.token_hex(16)
    with place.lock("owner.lock", what="another process is starting", file=place.root, wait=True):
        try:
            return place.read("owner").decode()
        except NotFound:
            place.write_bytes("owner", word.encode())
            return word


def _busy(store: RangeStore, path: str, name: str, there: dict[str, Any]) -> StorageError:
    who = f"process {there.get('process', '?')} on {there.get('host', '?')}, since {there.get('since', '?')}"
    return StorageError(
        f"another process is writing here: {who}",
        file=store.locate(name),
        kind="busy",
        fix=f"Wait until it has ended. If it was killed, run its command again on that machine, or delete the object"
        f" {store.locate(path)} and run this command again.",
    )
