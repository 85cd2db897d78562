"""A cache pool on the local disk: files are fetched in the background while their samples wait.

Each process has a folder of its own below the pool's, with a lock that the system frees when the process dies; who
opens a pool removes folders whose lock is free. So a crash leaves nothing for long, and processes never meet.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pickle
import secrets
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from feedmill.errors import ConfigError
from feedmill.loading.cachepool import CachePool, DirectLazy, HeldLazy, Lazy, noted
from feedmill.samples.stores import FileStore
from feedmill.storage.folders import temporary_folder
from feedmill.storage.local import storage_error

METHODS = ("raw", "pickle")
_PREFIX = "feedmill-pool-"
_LOCK = "lock"

_log = logging.getLogger(__name__)


class FileStoreCachePool(CachePool):
    """Fetches files to the local disk ahead of their use. Safe to use from several threads.

    A file is fetched once for all handles on it, and removed when the last of them was read or dropped. What is asked
    for before its turn comes is read directly. Where the pool is full, fetching waits until there is room; a file that
    is larger than the whole pool, or that cannot be written, is read directly. The limits hold for each process; a pool
    that is sent to another process is an empty one there.

    Args:
        parent_cache_dir: folder below which it works; the machine's folder for temporary files by default.
        num_workers: threads that fetch.
        max_cache_size_gbytes: most gigabytes (10^9 bytes) on the disk.
        max_cache_count: most files on the disk.
        method: ``raw`` keeps files as they are and decodes them when they are read; ``pickle`` decodes when fetching.

    Raises:
        ConfigError: numbers that are invalid.
        StorageError: the folder cannot be written to (when it is first needed).
    """

    def __init__(
        self,
        *,
        parent_cache_dir: str | os.PathLike[str] | None = None,
        num_workers: int = 8,
        max_cache_size_gbytes: float = 1024,
        max_cache_count: int = 10_000_000,
        method: str = "raw",
    ) -> None:
        if num_workers < 1 or max_cache_size_gbytes <= 0 or max_cache_count < 1:
            raise ConfigError(
                f"num_workers={num_workers}, max_cache_size_gbytes={max_cache_size_gbytes} and"
                f" max_cache_count={max_cache_count} are invalid",
                fix="All are above 0.",
            )
        if method not in METHODS:
            raise ConfigError(f"the method {method!r} is unknown", fix=f"Use {' or '.join(METHODS)}.")
        parent = None if parent_cache_dir is None else os.path.abspath(os.fspath(parent_cache_dir))
        self._settings = (parent, num_workers, max_cache_size_gbytes, max_cache_count, method)
        self._room: _Room | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return _pool, self._settings

    def get_lazy(self, ds: FileStore[Any], fname: str) -> Lazy[Any]:
        entry = self._own_room().enter(ds, fname)
        return DirectLazy(ds, fname) if entry is None else FileCacheLazy(self._own_room(), entry)

    def to_cache(self, data: Any, name: str) -> Lazy[Any]:
        entry = self._own_room().put(data, name)
        return HeldLazy(data, name) if entry is None else FileCacheLazy(self._own_room(), entry)

    def close(self) -> None:
        """Remove everything from the disk; handles that are left read from their stores."""
        with self._lock:
            if self._room is not None:
                self._room.close()

    @property
    def folder(self) -> Path:
        """This process's folder."""
        return self._own_room().folder

    @property
    def held(self) -> tuple[int, int]:
        """Files on the disk, and their bytes."""
        room = self._own_room()
        with room.changed:
            return room.count, room.size

    def _own_room(self) -> _Room:
        room = self._room
        if room is None or room.pid != os.getpid():  # a fork has the parent's room, but not its threads
            with self._lock:
                if self._room is None or self._room.pid != os.getpid():
                    self._room = _Room(*self._settings)
                    weakref.finalize(self, self._room.close)
                room = self._room
        assert room is not None
        return room


def _pool(parent: str | None, workers: int, size: float, count: int, method: str) -> FileStoreCachePool:
    return FileStoreCachePool(
        parent_cache_dir=parent,
        num_workers=workers,
        max_cache_size_gbytes=size,
        max_cache_count=count,
        method=method,
    )


WAITING, FETCHING, READY, DIRECT = "waiting", "fetching", "ready", "direct"


class _Entry:
    """One file, and how many handles it has."""

    __slots__ = ("ds", "fname", "held", "number", "pickled", "refs", "size", "state")

    def __init__(self, ds: FileStore[Any] | None, fname: str, number: int) -> None:
        self.ds, self.fname, self.number = ds, fname, number
        self.state, self.refs, self.size = WAITING, 1, 0
        self.held: bytes | None = None  # fetched, while it waits for room
        self.pickled = ds is None


class _Room:
    """The folder, threads and books of one process."""

    def __init__(self, parent: str | None, workers: int, gigabytes: float, most: int, method: str) -> None:
        self.pid = os.getpid()
        self.folder, self._lock_file = _own_folder(parent)
        self.changed = threading.Condition()
        self.size = self.count = 0
        self._most_size, self._most_count, self._pickles = int(gigabytes * 1e9), most, method == "pickle"
        self._entries: dict[tuple[int, str], _Entry] = {}
        self._queue: SimpleQueue[_Entry | None] = SimpleQueue()
        self._numbers = 0
        self._workers, self._threads = workers, 0
        self._closed = False

    def enter(self, ds: FileStore[Any], fname: str) -> _Entry | None:
        """Return the entry of a file, with a reference more; None if the pool is closed."""
        with self.changed:
            if self._closed:
                return None
            entry = self._entries.get((id(ds), fname))
            if entry is not None:
                entry.refs += 1
                return entry
            entry = self._entries[id(ds), fname] = self._new(ds, fname)
            if self._threads < self._workers:
                self._threads += 1
                threading.Thread(target=self._work, name=f"feedmill-pool-{self._threads}", daemon=True).start()
        self._queue.put(entry)
        return entry

    def put(self, value: Any, name: str) -> _Entry | None:
        """Return a value on the disk; None if there is no room for it."""
        data = pickle.dumps(value, 5)
        with self.changed:
            entry = self._new(None, name)
            if self._closed or not self._fits(len(data)):
                return None
            self._reserve(entry, len(data))
        if not self._write(entry, data):
            with self.changed:
                self._release_room(entry)
            return None
        entry.state = READY
        return entry

    def read(self, entry: _Entry) -> Any:
        """Return an entry's value, from wherever it is available soonest."""
        with self.changed:
            while entry.state == FETCHING and entry.held is None and not self._closed:
                self.changed.wait()
            held, ready = entry.held, entry.state == READY
        if held is None and ready:
            try:
                held = self._path(entry).read_bytes()
            except OSError as error:  # somebody has tidied up; the store still has it
                if entry.ds is None:
                    raise storage_error(error, str(self._path(entry))) from None
        if held is None:
            assert entry.ds is not None
            return entry.ds.get(entry.fname)
        if entry.pickled:
            return pickle.loads(held)  # noqa: S301 - written by this process, into a folder that only its user reads
        assert entry.ds is not None
        return entry.ds.value(entry.fname, held)

    def stored(self, entry: _Entry) -> Any:
        """Return a value that was put away, read by a fork of this process."""
        return pickle.loads(self._path(entry).read_bytes())  # noqa: S301 - see `read`

    def release(self, entry: _Entry) -> None:
        """One reference less; with the last one the file goes."""
        with self.changed:
            entry.refs -= 1
            if entry.refs > 0 or self._closed:
                return
            if entry.ds is not None:
                self._entries.pop((id(entry.ds), entry.fname), None)
            gone = entry.state == READY
            entry.held = None
            self.changed.notify_all()
        if gone:
            with contextlib.suppress(OSError):
                os.unlink(self._path(entry))
            with self.changed:
                self._release_room(entry)

    def close(self) -> None:
        """End the threads and remove the folder. What another process inherited is not its to remove."""
        if self.pid != os.getpid():
            return
        with self.changed:
            if self._closed:
                return
            self._closed = True
            self.changed.notify_all()
            threads = self._threads
        for _ in range(threads):
            self._queue.put(None)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock_file)

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            with self.changed:
                if self._closed:
                    return
                if entry.refs < 1:
                    continue
                entry.state = FETCHING
            state = DIRECT
            try:
                state = self._fetch(entry)
            except Exception as error:  # whoever wants it reads it directly, and gets the error
                _log.debug("%s cannot be fetched: %s", entry.fname, error)
            with self.changed:
                entry.held = None
                if state == READY and (entry.refs < 1 or self._closed):
                    with contextlib.suppress(OSError):
                        os.unlink(self._path(entry))
                    self._release_room(entry)
                    state = DIRECT
                entry.state = state
                self.changed.notify_all()

    def _fetch(self, entry: _Entry) -> str:
        """Bring a file to the disk, waiting for room; the entry's new state."""
        assert entry.ds is not None
        data = entry.ds.raw(entry.fname)
        if self._pickles:
            data = pickle.dumps(entry.ds.value(entry.fname, data), 5)
            entry.pickled = True
        if len(data) > self._most_size:
            entry.pickled = False
            return DIRECT
        with self.changed:
            entry.held = data
            self.changed.notify_all()
            while not self._fits(len(data)):
                if entry.refs < 1 or self._closed:
                    return DIRECT
                self.changed.wait()
            self._reserve(entry, len(data))
        if self._write(entry, data):
            return READY
        with self.changed:
            self._release_room(entry)
        return DIRECT

    def _write(self, entry: _Entry, data: bytes) -> bool:
        try:
            self._path(entry).write_bytes(data)
        except OSError as error:
            if not self._closed:
                _log.warning("the cache pool cannot write to %s (%s): files are read directly", self.folder, error)
            return False
        return True

    def _new(self, ds: FileStore[Any] | None, fname: str) -> _Entry:
        self._numbers += 1
        return _Entry(ds, fname, self._numbers)

    def _fits(self, size: int) -> bool:
        return self.size + size <= self._most_size and self.count < self._most_count

    def _reserve(self, entry: _Entry, size: int) -> None:
        entry.size = size
        self.size += size
        self.count += 1

    def _release_room(self, entry: _Entry) -> None:
        self.size -= entry.size
        self.count -= 1
        entry.size = 0
        self.changed.notify_all()

    def _path(self, entry: _Entry) -> Path:
        return self.folder / str(entry.number)


class FileCacheLazy(Lazy[Any]):
    """A handle on a file that is fetched meanwhile. Read again, it reads from the store."""

    def __init__(self, room: _Room, entry: _Entry) -> None:
        self.ds, self.fname = entry.ds, entry.fname
        self._room, self._entry = room, entry
        self._value: Any = None  # of a value that no store has
        self._release = weakref.finalize(self, room.release, entry)
        self._release.atexit = False

    def get(self, sample: Any = None) -> Any:
        if self._release.alive and self._room.pid == os.getpid():
            value = self._room.read(self._entry)
            if self.ds is None:
                self._value = value
            self._release()
        elif self.ds is None:
            value = self._room.stored(self._entry) if self._release.alive else self._value
        else:
            value = self.ds.get(self.fname)
        if self.ds is not None:
            noted(self.ds, self.fname, sample)
        return value

    def __hash__(self) -> int:
        return id(self) if self.ds is None else super().__hash__()

    def __reduce__(self) -> Any:
        return (HeldLazy, (self.get(), self.fname)) if self.ds is None else (DirectLazy, (self.ds, self.fname))


def _own_folder(parent: str | None) -> tuple[Path, int]:
    """A new folder for this process, and the descriptor of its lock, after those of dead processes were removed."""
    try:
        above = _parent(parent)
        with open(above / f".{_PREFIX}lock", "ab") as everyone:
            with contextlib.suppress(OSError):  # where locks do not work, names that nobody else has must do
                fcntl.flock(everyone, fcntl.LOCK_EX)
            _sweep(above)
            own = above / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
            own.mkdir(mode=0o700)
            lock = os.open(own / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            return own, lock
    except OSError as error:
        translated = storage_error(error, error.filename or parent or tempfile.gettempdir())
        translated.fix = "Give the cache pool a folder (parent_cache_dir) that may be written to."
        raise translated from None


def _parent(parent: str | None) -> Path:
    if parent is not None:
        Path(parent).mkdir(parents=True, exist_ok=True)
        return Path(parent)
    above = temporary_folder()
    return Path(tempfile.mkdtemp(prefix="feedmill-")) if above is None else above


def _sweep(above: Path) -> None:
    """Remove the folders of processes that have died."""
    for left in above.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(left / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # killed while it was closing; folders are made under the lock that is held here
            shutil.rmtree(left, ignore_errors=True)
            continue
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        finally:
            os.close(lock)
        shutil.rmtree(left, ignore_errors=True)
