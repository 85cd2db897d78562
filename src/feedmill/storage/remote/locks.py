"""Locks in object stores: only one process of all machines may write to a location at a time.

Every job that writes to a remote dataset takes an `ObjectLock` first. It is an object, ``.feedmill/lock`` below the
prefix (``.feedmill/lock-<name>`` for a single file). It is put on the condition that it is absent
(``If-None-Match: *``), and deleted when the work ends. It contains its owner::

    {"owner": "<32 hex>", "run": "<32 hex>", "host": "node7", "process": 4711, "since": "2026-11-22T20:24:10Z"}

**On one machine.** `owner` is an id in the cache folder, which also has the unfinished work on remote datasets. A
process with the same cache folder takes over the lock of a killed process once it has the local lock in that folder,
which proves that no other process is at work. Other machines cannot know whether a process is alive: they get an error
that explains how to remove the lock.

**On an engine.** A killed command is often started again on another machine. So the lock ends by itself there: its
process puts it again every few seconds, and it is dead if that process has ended, as its own machine can see, or if it
was not put again for `EXPIRY` seconds. These are counted by the clock of the server: the clocks of two machines may
differ. It is put on the condition that it is still the one that was read (``If-Match``), so two processes never take
over the same one, and a process that was stopped for too long notices that its lock is another's.

**Parts of a job array** share a location: each has a lock of its own, ``.feedmill/parts/<number>`` (or
``.feedmill/parts-<name>/<number>``). A part puts its lock and then looks for that of the location; who wants the
location for itself puts that and then looks for those of parts. So one of two that start at the same time sees the
other, and neither waits for it. ``.feedmill/begin`` is locked for the moments in which a part begins or joins the job.

If the server has no conditional writes, a warning is logged, and the lock is only checked before it is put.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import orjson

from feedmill.errors import FeedmillError, NotFound, StorageError
from feedmill.storage.base import Store
from feedmill.storage.locks import FileLock, boot_id
from feedmill.storage.remote.upload_records import abort_abandoned, check_again

if TYPE_CHECKING:
    from feedmill.storage.local import LocalStore
    from feedmill.storage.remote.range_store import RangeStore, Seen

logger = logging.getLogger("feedmill")

EXPIRY = 90.0
_BEAT = 15.0
_LOOK, _TRIES = 2.0, 4
_PATIENCE, _TURN = 120.0, 0.2
"""Seconds to wait for another part that is beginning, longer than `EXPIRY`, and between two tries."""
_WRITING = "another process is writing here"
_held: dict[str, _Held] = {}
"""Locks by URL, which what is written inside of a job shares with it."""
_guard = threading.Lock()


def lock_path(name: str = "") -> str:
    """Return the path of the lock of a folder, or of the file `name` in it."""
    return _named(".feedmill/lock", name)


def _parts(name: str) -> str:
    return _named(".feedmill/parts", name)


def _named(path: str, name: str) -> str:
    return f"{path}-{name.replace('/', '-')}" if name else path


class ObjectLock:
    """The right to write below a store's prefix, or to one file of it; a context manager.

    Does nothing for a local disk, which has locks of its own, and for a web server, which is not written to.

    Args:
        name: a file of the store; by default the whole prefix.
        part: number of a part of a job array, which shares the location with the other parts.
        lease: the lock ends some time after its process was killed; always for a part.
        inside: share the lock if this process has it: what is written may be a part of a job.

    Raises:
        StorageError: another process has it (kind ``busy``), or a request failed.
    """

    def __init__(
        self, store: Store, name: str = "", *, part: int | None = None, lease: bool = False, inside: bool = False
    ) -> None:
        self._lock: _Held | None = None
        remote = _lockable(store)
        if remote is None:
            return
        path = lock_path(name) if part is None else f"{_parts(name)}/{part}"
        with _guard:
            url = remote.request_url(path)
            if not (inside and url in _held):
                what = _WRITING if part is None else "this part is already running"
                lock = _Held(remote, path, name, what, lease or part is not None)
                try:
                    _refuse_parts(remote, name, lease) if part is None else _refuse_other(remote, name)
                except BaseException:
                    lock.release()
                    raise
                _held[url] = lock
            self._lock = _held[url]
            self._lock.times += 1
        check_again(remote)
        abort_abandoned(remote)

    def check(self) -> None:
        """Raise `StorageError` if another process has taken over the lock of this one."""
        if self._lock is not None:
            self._lock.check()

    def close(self) -> None:
        """Release the lock."""
        lock, self._lock = self._lock, None
        with _guard:
            if lock is not None:
                lock.times -= 1
                if not lock.times:
                    _held.pop(lock.url).release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def turn(store: Store, name: str = "") -> Iterator[None]:
    """Run a block in one part of a job array at a time. Raises `StorageError` (kind ``busy``) after two minutes."""
    remote = _lockable(store)
    if remote is None:
        yield
        return
    path, until = _named(".feedmill/begin", name), time.monotonic() + _PATIENCE
    while True:
        try:
            lock = _Held(remote, path, name, "another part is starting", lease=True)
            break
        except StorageError as error:
            if error.kind != "busy" or time.monotonic() > until:
                raise
            time.sleep(_TURN)
    try:
        yield
    finally:
        lock.release()


def _lockable(store: Store) -> RangeStore | None:
    """Return the store if it has locks of this kind."""
    if store.is_local:
        return None
    from feedmill.storage.remote.range_store import RangeStore

    return store if isinstance(store, RangeStore) and not store.target.startswith("http") else None


class _Held:
    """A lock of this process, here and in the store. If it ends by itself, a thread puts it again until `release`.

    Attributes:
        times: number of `ObjectLock` that share it.
        lost: whether another process has the lock by now.
    """

    def __init__(self, store: RangeStore, path: str, name: str, what: str, lease: bool) -> None:
        self.url, self.times, self.lost = store.request_url(path), 0, False
        self._store, self._path = store, path
        self._renewed = time.time()  # which counts the time during which the machine sleeps
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._local = _lock_here(store, self.url, name, what)
        try:
            self._run = _take(store, path, name, what, lease)
            if lease:
                self._seen = store.examine(path)
                self._thread = threading.Thread(target=self._renew, name="feedmill-lease", daemon=True)
                self._thread.start()
        except BaseException:
            self._local.close()
            raise

    def _renew(self) -> None:
        while not self._ended.wait(_BEAT):
            try:
                seen = self._store.put_over(self._path, self._seen.data, self._seen) or self._again()
            except Exception as error:  # also of a library: without this thread the lock expires unnoticed
                if time.time() - self._renewed > EXPIRY / 2:
                    logger.warning("the lock could not be renewed, so another process may take it: %s", error)
                continue
            if seen is None:
                self.lost = True
                return
            self._seen, self._renewed = seen, time.time()

    def _again(self) -> Seen | None:
        """Return the lock if it is still ours: the answer to an earlier request was lost."""
        try:
            seen = self._store.examine(self._path)
        except NotFound:
            return None
        return seen if seen.data == self._seen.data else None

    def check(self) -> None:
        """Raise `StorageError` if another process has taken the lock, because this one did not renew it in time."""
        late = self._thread is not None and time.time() - self._renewed > EXPIRY  # it may not have noticed yet
        if self.lost or (late and self._again() is None):
            raise StorageError(
                "another process has taken over this work, because this one did not answer for a while",
                file=self._store.locate(self._path),
                kind="busy",
                fix="Wait until the other one has ended; then run this command again.",
            )

    def release(self) -> None:
        """Delete the lock, unless somebody deleted it meanwhile: then it may be that of another writer."""
        try:
            self._ended.set()
            if self._thread is not None:
                self._thread.join()
            if (_read(self._store, self._path) or {}).get("run") == self._run:
                self._store.delete(self._path)
            else:
                logger.warning(
                    "%s: the lock of this process was removed while it was writing, so another process may have written"
                    " at the same time: check the result",
                    self._store.locate(self._path),
                )
        except FeedmillError as error:
            logger.warning("the lock could not be deleted; delete it before another machine writes: %s", error)
        finally:
            self._local.close()


def _take(store: RangeStore, path: str, name: str, what: str = _WRITING, lease: bool = False) -> str:
    """Put the lock, or take over that of a dead process; return its id. Raises `StorageError`."""
    owner, run = _owner(), os.urandom(16).hex()
    since = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"owner": owner, "run": run, "host": os.uname().nodename, "process": os.getpid(), "since": since}
    if lease:  # by the latter two, this machine finds out whether this process is alive
        content |= {"lease": True, "machine": _machine(), "birth": _birth(os.getpid())}
    data = orjson.dumps(content)
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
        if found.get("owner") != owner and not _has_ended(store, path, found, seen, name, wait=lease):
            raise _busy(store, path, name, what, found)
        if store.put_over(path, data, seen) is not None:
            return run
    raise _busy(store, path, name, what, _read(store, path) or {})


def _refuse_parts(store: RangeStore, name: str, wait: bool) -> None:
    """Raise `StorageError` if a part of a job array is at work; delete the locks of those that were killed."""
    try:
        paths = [entry.path for entry in store.files(_parts(name))]
    except NotFound:
        return
    for path in paths:
        found = _examine(store, path)
        if found is not None and found[0].get("lease") and not _has_ended(store, path, *found, name, wait=wait):
            raise _busy(store, path, name, f"part {path.rpartition('/')[2]} of a job array is running", found[0])
        store.delete(path)


def _refuse_other(store: RangeStore, name: str) -> None:
    """Raise `StorageError` if another process works here that is no part of a job array."""
    path = lock_path(name)
    found = _examine(store, path)
    if found is None or _has_ended(store, path, *found, name, wait=True):
        return
    if found[0].get("owner") == _owner():
        with contextlib.suppress(StorageError):
            _lock_here(store, store.request_url(path), name, _WRITING).close()
            return  # its process was killed
    raise _busy(store, path, name, _WRITING, found[0])


def _has_ended(
    store: RangeStore, path: str, content: Mapping[str, Any], seen: Seen, name: str, *, wait: bool = False
) -> bool:
    """Return whether the process of a lock has ended, if the lock ends by itself.

    Args:
        content, seen: the lock at `path`, as it was read.
        wait: if it is unknown, wait until the lock is renewed or expires.

    Raises:
        StorageError: a request failed.
    """
    if not content.get("lease"):
        return False
    process, machine = content.get("process"), content.get("machine")
    if machine and machine == _machine() and isinstance(process, int):
        return _birth(process) != content.get("birth")
    warned = False
    while seen.modified is not None:
        now = _now(store, _parts(name))
        if now is None or now - seen.modified > EXPIRY:
            return now is not None
        if not wait:
            break
        if not warned:
            logger.warning("%s: waiting to see whether the process that locked this is alive", store.locate(path))
            warned = True
        time.sleep(_LOOK)
        try:
            after = store.examine(path)
        except NotFound:
            return True
        if (after.data, after.modified) != (seen.data, seen.modified):
            break
    return False


def _now(store: RangeStore, folder: str) -> float | None:
    """Return the time of the server's clock, by an object that is put in a folder; None if it does not tell."""
    path = f"{folder}/clock-{os.urandom(8).hex()}"
    try:
        store.write_bytes(path, b"")
        return store.examine(path).modified
    except NotFound:
        return None  # a process that looks for locks there took it for the rest of a killed one
    finally:
        store.delete(path)


@cache
def _machine() -> str:
    """Return an id of this boot of the machine and of the space of process ids; empty if the system has none."""
    boot = boot_id()
    try:
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}" if boot else ""
    except OSError:
        return ""


def _birth(process: int) -> str:
    """Return the time at which a process of this machine began, in ticks; empty if it has ended, or is unknown."""
    with contextlib.suppress(OSError, IndexError):
        with open(f"/proc/{process}/stat") as f:
            facts = f.read().rpartition(")")[2].split()
        return "" if facts[0] in "ZX" else facts[19]
    return ""


def _examine(store: RangeStore, path: str) -> tuple[dict[str, Any], Seen] | None:
    """Return the content of a lock (an empty dict if it is invalid) and its version; None if it is absent."""
    try:
        seen = store.examine(path)
        content = orjson.loads(seen.data)
    except NotFound:
        return None
    except orjson.JSONDecodeError:
        content = {}
    return content if isinstance(content, dict) else {}, seen


def _read(store: RangeStore, path: str) -> dict[str, Any] | None:
    found = _examine(store, path)
    return None if found is None else found[0]


def _lock_here(store: RangeStore, url: str, name: str, what: str) -> FileLock:
    """Exclude other processes with this cache folder: its holder knows that a remote lock of theirs is stale."""
    import hashlib

    digest = hashlib.sha256(url.encode()).hexdigest()[:32]
    return _cache_store().lock(f"claims/{digest}", what=what, file=store.locate(name))


def _cache_store() -> LocalStore:
    from feedmill.storage.folders import cache_folder
    from feedmill.storage.local import LocalStore

    return LocalStore(cache_folder())


def _owner() -> str:
    """Return the owner id of this machine's cache folder."""
    folder, owner = _cache_store(), os.urandom(16).hex()
    with folder.lock("owner.lock", what="another process is starting", file=folder.root, wait=True):
        try:
            return folder.read("owner").decode()
        except NotFound:
            folder.write_bytes("owner", owner.encode())
            return owner


def _busy(store: RangeStore, path: str, name: str, what: str, content: Mapping[str, Any]) -> StorageError:
    holder = f"process {content.get('process', '?')} on {content.get('host', '?')}, since {content.get('since', '?')}"
    if content.get("lease"):
        killed = f"If it was killed, wait {EXPIRY:.0f} seconds, and run this command again."
    else:
        at = store.locate(path)
        killed = f"If it was killed, run its command again on that machine, or delete the object {at}"
        killed += " and run this command again."
    return StorageError(
        f"{what}: {holder}", file=store.locate(name), kind="busy", fix=f"Wait until it has ended. {killed}"
    )
