"""Who may write to a place in an object store: one process at a time, of all machines.

The lock is an object, ``.feedmill/lock`` below the prefix (``.feedmill/lock-<name>`` for a single file), that is put on
the condition that it is absent (``If-None-Match: *``), and deleted when the work ends. It says whose it is::

    {"owner": "<32 hex>", "run": "<32 hex>", "host": "node7", "process": 4711, "since": "2026-11-22T20:24:10Z"}

`owner` is a word kept in the cache folder, where the unfinished work on remote datasets is kept, too. A lock that a
killed process left is taken over by a process with that cache folder, after a lock in that folder has shown that nobody
else of it is at work. The error tells others how to remove it: nobody can see from afar whether a process still lives.

A server that knows no conditional writes is warned about; the lock is then only looked at before it is put.
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

if TYPE_CHECKING:
    from feedmill.storage.local import LocalStore
    from feedmill.storage.remote import RemoteStore

logger = logging.getLogger("feedmill")

LOCK = ".feedmill/lock"


@dataclass
class _Held:
    """A lock of this process: what keeps the others of this machine out, and how often it was taken."""

    local: FileLock
    times: int = 0


_held: dict[str, _Held] = {}
"""By URL of the lock: work may be a part of other work."""
_guard = threading.Lock()


def claim_path(name: str = "") -> str:
    """Return where the lock of a folder lies, or of the file `name` in it."""
    return f"{LOCK}-{name.replace('/', '-')}" if name else LOCK


class Claim:
    """The right to write below a store's prefix, or one file of it; a context manager. Nothing on a local disk.

    Raises:
        StorageError: another process has it, of kind ``busy``.
    """

    def __init__(self, store: Store, name: str = "") -> None:
        self._path = claim_path(name)
        self._store: RemoteStore | None = None
        if store.is_local:
            return
        from feedmill.storage.remote import RemoteStore

        if not isinstance(store, RemoteStore) or store.url.startswith("http"):
            return  # a disk has locks of its own, and a web server is not written to
        where = store.locate(self._path)
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

    def close(self) -> None:
        """Give it back."""
        store, self._store = self._store, None
        if store is None:
            return
        with _guard:
            where = store.locate(self._path)
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


def _take(store: RemoteStore, path: str, name: str) -> None:
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
            logger.warning("%s: this server knows no conditional writes: two writers may overlap", store.url)
            store.write_bytes(path, data)
            return
        there = _read(store, path) or {}
    if there.get("run") == run:
        return  # the answer to the first try was lost
    if there.get("owner") != owner:
        raise _busy(store, path, name, there)
    store.write_bytes(path, data)


def _read(store: RemoteStore, path: str) -> dict[str, Any] | None:
    try:
        found = orjson.loads(store.read(path))
    except NotFound:
        return None
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _lock_here(store: RemoteStore, where: str, name: str) -> FileLock:
    """Keep other processes with this cache folder out: who has this lock knows that a lock of theirs was left."""
    word = hashlib.sha256(where.encode()).hexdigest()[:32]
    what = "another process is writing here"
    return _place().lock(f"claims/{word}", what=what, file=store.locate(name))


def _place() -> LocalStore:
    from feedmill.storage.cache import cache_folder
    from feedmill.storage.local import LocalStore

    return LocalStore(cache_folder())


def _owner() -> str:
    """Return the word of this machine's cache folder."""
    place, word = _place(), secrets.token_hex(16)
    with place.lock("owner.lock", what="another process is starting", file=place.root, wait=True):
        try:
            return place.read("owner").decode()
        except NotFound:
            place.write_bytes("owner", word.encode())
            return word


def _busy(store: RemoteStore, path: str, name: str, there: dict[str, Any]) -> StorageError:
    who = f"process {there.get('process', '?')} on {there.get('host', '?')}, since {there.get('since', '?')}"
    return StorageError(
        f"another process is writing here: {who}",
        file=store.locate(name),
        kind="busy",
        fix=f"Wait until it has ended. If it was killed, run its command again on that machine, or delete the object"
        f" {store.locate(path)} and run this command again.",
    )
