"""Locks in object stores: only one process of all machines may write to a location at a time.

Every job that writes to a remote dataset takes a `Claim` first. The lock is an object, ``.feedmill/lock`` below the
prefix (``.feedmill/lock-<name>`` for a single file). It is put on the condition that it is absent
(``If-None-Match: *``), and deleted when the work ends. It contains its owner::

    {"owner": "<32 hex>", "run": "<32 hex>", "host": "node7", "process": 4711, "since": "2026-11-22T20:24:10Z"}

`owner` is an id in the cache folder, which also has the unfinished work on remote datasets. A process with the same
cache folder takes over the lock of a killed process once it has the local lock in that folder, which proves that no
other process is at work. Other machines cannot know whether a process is alive: they get an error that explains how to
remove the lock.

The parts of a job array share a location: each has a lock of its own, ``.feedmill/parts/<number>`` (or
``.feedmill/parts-<name>/<number>``). A part puts its lock and then looks for that of the location; who wants the
location for itself puts that and then looks for those of parts. So one of two that start at the same time sees the
other, and neither waits for it. ``.feedmill/begin`` is held for the moments in which a part begins or joins the job.

Locks that are taken on an engine are leases (`feedmill.storage.remote.leases`): the command is often started again on
another machine.

If the server has no conditional writes, a warning is logged, and the lock is only checked before it is put.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import orjson

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage.base import Store
from feedmill.storage.locks import FileLock
from feedmill.storage.remote.leases import EXPIRY, Beat, has_ended, identity
from feedmill.storage.remote.upload_records import abort_abandoned, check_again

if TYPE_CHECKING:
    from feedmill.storage.local import LocalStore
    from feedmill.storage.remote.range_store import RangeStore, Seen

logger = logging.getLogger("feedmill")

LOCK, _PARTS, _BEGIN = ".feedmill/lock", ".feedmill/parts", ".feedmill/begin"
_PATIENCE = 120.0
"""Seconds to wait for another part that is beginning; longer than a lease lasts."""
_LOOK, _TRIES = 0.2, 4


@dataclass
class _Held:
    """A lock of this process.

    Attributes:
        local: lock that excludes other processes with this cache folder.
        run: id of the lock in the store.
        beat: renews it, if it is a lease.
        times: number of claims that share it.
    """

    local: FileLock
    run: str
    beat: Beat | None = None
    times: int = 0


_held: dict[str, _Held] = {}
"""Locks by URL. Claims of one process share a lock, because a job may be a part of another job."""
_guard = threading.Lock()


def claim_path(name: str = "") -> str:
    """Return the path of the lock of a folder, or of the file `name` in it."""
    return _named(LOCK, name)


def _named(path: str, name: str) -> str:
    return f"{path}-{name.replace('/', '-')}" if name else path


class Claim:
    """The right to write below a store's prefix, or to one file of it; a context manager.

    Does nothing for a local disk, which has locks of its own, and for a web server, which is not written to.

    Args:
        name: a file of the store; by default the whole prefix.
        part: number of a part of a job array, which shares the location with the other parts.
        lease: the lock ends some time after its process was killed.

    Raises:
        StorageError: another process has it (kind ``busy``), or a request failed.
    """

    def __init__(self, store: Store, name: str = "", *, part: int | None = None, lease: bool = False) -> None:
        self._path = claim_path(name) if part is None else f"{_named(_PARTS, name)}/{part}"
        self._store: RangeStore | None = None
        remote = _lockable(store)
        if remote is None:
            return
        what = "another process is writing here" if part is None else "this part is already running"
        with _guard:
            url = remote.request_url(self._path)
            if url not in _held:
                _held[url] = _hold(remote, self._path, name, what, lease or part is not None)
                try:
                    _refuse_parts(remote, name, lease) if part is None else _refuse_other(remote, name)
                except BaseException:
                    _release(remote, self._path, _held.pop(url))
                    raise
            _held[url].times += 1
        self._store = remote
        check_again(remote)
        abort_abandoned(remote)

    def check(self) -> None:
        """Raise `StorageError` if another process has taken over the lock of this one."""
        if self._store is not None:
            held = _held.get(self._store.request_url(self._path))
            if held is not None and held.beat is not None:
                held.beat.check()

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
                _release(store, self._path, _held.pop(url))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def beginning(store: Store, name: str = "") -> Iterator[None]:
    """Run a block in one part of a job array at a time. Raises `StorageError` (kind ``busy``) after two minutes."""
    remote = _lockable(store)
    if remote is None:
        yield
        return
    path, until = _named(_BEGIN, name), time.monotonic() + _PATIENCE
    while True:
        try:
            held = _hold(remote, path, name, "another part is starting", lease=True)
            break
        except StorageError as error:
            if error.kind != "busy" or time.monotonic() > until:
                raise
            time.sleep(_LOOK)
    try:
        yield
    finally:
        _release(remote, path, held)


def _lockable(store: Store) -> RangeStore | None:
    """Return the store if it has locks of this kind."""
    if store.is_local:
        return None
    from feedmill.storage.remote.range_store import RangeStore

    return store if isinstance(store, RangeStore) and not store.target.startswith("http") else None


def _hold(store: RangeStore, path: str, name: str, what: str, lease: bool) -> _Held:
    """Take a lock here and in the store. Raises `StorageError`."""
    local = _lock_here(store, store.request_url(path), name, what)
    try:
        run = _take(store, path, name, what, lease)
        return _Held(local, run, Beat(store, path, store.examine(path)) if lease else None)
    except BaseException:
        local.close()
        raise


def _release(store: RangeStore, path: str, held: _Held) -> None:
    """Delete a lock, unless somebody deleted it meanwhile: then it may be that of another writer."""
    try:
        if held.beat is not None:
            held.beat.stop()
        if (_read(store, path) or {}).get("run") == held.run:
            store.delete(path)
        else:
            logger.warning(
                "%s: the lock of this process was removed while it was writing, so another process may have written at"
                " the same time: check the result",
                store.locate(path),
            )
    except FeedmillError as error:
        logger.warning("the lock could not be deleted; delete it before another machine writes: %s", error)
    finally:
        held.local.close()


def _refuse_parts(store: RangeStore, name: str, wait: bool) -> None:
    """Raise `StorageError` if a part of a job array is at work; delete the locks of those that were killed."""
    folder = _named(_PARTS, name)
    try:
        paths = [entry.path for entry in store.files(folder)]
    except NotFound:
        return
    for path in paths:
        found = _examine(store, path)
        if found is not None and found[0].get("lease") and not has_ended(store, path, *found, folder, wait=wait):
            raise _busy(store, path, name, f"part {path.rpartition('/')[2]} of a job array is running", found[0])
        store.delete(path)


def _refuse_other(store: RangeStore, name: str) -> None:
    """Raise `StorageError` if another process works here that is no part of a job array."""
    path, what = claim_path(name), "another process is writing here"
    found = _examine(store, path)
    if found is None or has_ended(store, path, *found, _named(_PARTS, name), wait=True):
        return
    if found[0].get("owner") == _owner():
        with contextlib.suppress(StorageError):
            _lock_here(store, store.request_url(path), name, what).close()
            return  # its process was killed
    raise _busy(store, path, name, what, found[0])


def _take(
    store: RangeStore, path: str, name: str, what: str = "another process is writing here", lease: bool = False
) -> str:
    """Put the lock, or take over that of a dead process; return its id. Raises `StorageError`."""
    owner, run = _owner(), secrets.token_hex(16)
    since = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"owner": owner, "run": run, "host": os.uname().nodename, "process": os.getpid(), "since": since}
    data = orjson.dumps({**content, **(identity() | {"lease": True} if lease else {})})
    for _ in range(_TRIES):
        current = _examine(store, path)
        if current is None:
            try:
                if store.put_new(path, data):
                    return run
            except StorageError as error:
                if error.kind != "unsupported":
                    raise
                logger.warning(
                    "%s: this server does not support conditional writes: two writers may overlap", store.url
                )
                store.write_bytes(path, data)
                return run
            continue
        found, seen = current
        if found.get("run") == run:
            return run  # our own: the answer to the first try was lost, and the retry found the lock
        ours = found.get("owner") == owner
        if not ours and not has_ended(store, path, found, seen, _named(_PARTS, name), wait=lease):
            raise _busy(store, path, name, what, found)
        if store.put_over(path, data, seen) is not None:
            return run
    raise _busy(store, path, name, what, _read(store, path) or {})


def _examine(store: RangeStore, path: str) -> tuple[dict[str, Any], Seen] | None:
    """Return the content of a lock (an empty dict if it is invalid) and its version; None if it is absent."""
    try:
        seen = store.examine(path)
    except NotFound:
        return None
    return _content(seen.data), seen


def _read(store: RangeStore, path: str) -> dict[str, Any] | None:
    """Return the content of a lock; None if it is absent, an empty dict if it is invalid."""
    found = _examine(store, path)
    return None if found is None else found[0]


def _content(data: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return content if isinstance(content, dict) else {}


def _lock_here(store: RangeStore, url: str, name: str, what: str) -> FileLock:
    """Exclude other processes with this cache folder: its holder knows that a remote lock of theirs is stale."""
    digest = hashlib.sha256(url.encode()).hexdigest()[:32]
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


def _busy(store: RangeStore, path: str, name: str, what: str, content: dict[str, Any]) -> StorageError:
    holder = f"process {content.get('process', '?')} on {content.get('host', '?')}, since {content.get('since', '?')}"
    killed = (
        f"If it was killed, wait {EXPIRY:.0f} seconds"
        if content.get("lease")
        else f"If it was killed, run its command again on that machine, or delete the object {store.locate(path)}"
    )
    return StorageError(
        f"{what}: {holder}",
        file=store.locate(name),
        kind="busy",
        fix=f"Wait until it has ended. {killed}{',' if content.get('lease') else ''} and run this command again.",
    )
