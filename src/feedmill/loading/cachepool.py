"""Lazy handles on files that cookers need later, and the pools that create them.

Use a handle if samples wait long before they are used, for example in a packing buffer. The cooker calls
`CachePool.get_lazy` instead of reading the file, and a later hook calls `Lazy.get` on the samples that were selected.
`NoCachePool` reads the file in `Lazy.get`. `FileStoreCachePool` fetches it to the local disk before that, in the
background: pass it to a task encoder whose cookers take large files from remote stores.

On disk, each process uses a separate folder below that of the pool, with a lock that the system frees when the process
dies. A process that opens a pool deletes the folders whose lock is free, so the files of a killed process do not stay.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from feedmill.errors import ConfigError
from feedmill.formats.sample import Source
from feedmill.jobs.threads import RECHECK_SECONDS
from feedmill.storage.base import storage_error
from feedmill.storage.staging import dead

if TYPE_CHECKING:
    from feedmill.samples.stores import FileStore
    from feedmill.storage.locks import FileLock

T = TypeVar("T")


class Lazy(ABC, Generic[T]):
    """Handle on a value that is read by `get`.

    Attributes:
        ds: the store of the file; None for a value that was stored with `CachePool.to_cache`.
        fname: name of the file in the store.
    """

    ds: FileStore[Any] | None
    fname: str

    @abstractmethod
    def get(self, sample: Any = None) -> T:
        """Return the value.

        Args:
            sample: sample to whose sources the location of the file is added; None for no sample.

        Raises:
            FeedmillError: as `FileStore.get` does.
        """

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lazy):
            return NotImplemented
        return self is other or (self.ds is not None and self.ds is other.ds and self.fname == other.fname)

    def __hash__(self) -> int:
        return hash((id(self.ds), self.fname))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fname!r} of {self.ds!r})"


class DirectLazy(Lazy[Any]):
    """Handle that reads from the store at each call of `get`."""

    def __init__(self, ds: FileStore[Any], fname: str) -> None:
        self.ds, self.fname = ds, fname

    def get(self, sample: Any = None) -> Any:
        assert self.ds is not None
        return self.ds.get(self.fname, sample)


class HeldLazy(Lazy[Any]):
    """Handle on a value in memory."""

    def __init__(self, value: Any, fname: str) -> None:
        self.ds, self.fname, self._value = None, fname, value

    def get(self, sample: Any = None) -> Any:  # noqa: ARG002
        return self._value

    def __hash__(self) -> int:
        return id(self)


class MockLazy(Lazy[Any]):
    """Handle on a value that a function computes from its name: for tests and generated values."""

    def __init__(self, fname: str, get_fn: Any) -> None:
        self.ds, self.fname, self._make = None, fname, get_fn

    def get(self, sample: Any = None) -> Any:  # noqa: ARG002
        return self._make(self.fname)

    def __hash__(self) -> int:
        return id(self)


class CachePool(ABC):
    """Interface for reading files of stores, at once or lazily."""

    @abstractmethod
    def get_lazy(self, ds: FileStore[Any], fname: str) -> Lazy[Any]:
        """Return a handle that reads the value of a file later.

        Args:
            ds: the store of the file.
            fname: name of the file in the store.
        """

    @abstractmethod
    def to_cache(self, data: Any, name: str) -> Lazy[Any]:
        """Store a value, and return a handle on it.

        Args:
            data: the value.
            name: name of the value in messages.
        """

    def get(self, ds: FileStore[Any], fname: str, sample: Any = None) -> Any:
        """Return the value of a file, read at once. The arguments are those of `FileStore.get`."""
        return ds.get(fname, sample)

    def close(self) -> None:
        """Delete the files of the pool. Remaining handles read from their stores."""
        return


class NoCachePool(CachePool):
    """Pool without a cache: its handles read the file in `Lazy.get`."""

    def get_lazy(self, ds: FileStore[Any], fname: str) -> Lazy[Any]:
        return DirectLazy(ds, fname)

    def to_cache(self, data: Any, name: str) -> Lazy[Any]:
        return HeldLazy(data, name)


_PREFIX = "feedmill-pool-"
_LOCK, _FILES = "lock", "files"

_log = logging.getLogger(__name__)

WAITING, FETCHING, READY, DIRECT = "waiting", "fetching", "ready", "direct"


class Entry:
    """A file, its state, and the number of its handles.

    Attributes:
        refcount: number of handles.
        data_size: bytes on the disk.
        cache_path: path on the disk once it was fetched.
    """

    __slots__ = (
        "_changed",
        "cache_path",
        "data_size",
        "ds",
        "fname",
        "held",
        "pickled",
        "refcount",
        "source",
        "state",
        "was_read",
    )

    def __init__(self, ds: FileStore[Any] | None, fname: str, changed: threading.Condition) -> None:
        self.ds, self.fname, self._changed = ds, fname, changed
        self.state, self.refcount, self.data_size = WAITING, 1, 0
        self.cache_path: Path | None = None
        self.source: Source | None = None  # the location, if reading the file gave it
        self.held: bytes | None = None  # fetched data that waits for free space
        self.was_read = False  # whether a handle was read meanwhile
        self.pickled = ds is None

    @property
    def send_to_cache_future(self) -> Entry:
        """Return this object, which has `done` and `result` of a future of the fetch."""
        return self

    def done(self) -> bool:
        """Return whether the file was fetched, or will not be."""
        return self.state in (READY, DIRECT)

    def result(self, timeout: float | None = None) -> bool:
        """Wait for the fetch. Return whether the file is on the disk. Raises `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(self.done, timeout):
                raise TimeoutError(f"{self.fname} was not fetched in {timeout} seconds")
        return self.state == READY


class PoolFolder:
    """The folder of one process, with the threads that fill it and the entries of its files."""

    def __init__(self, parent: str | None, workers: int, gigabytes: float, most: int, method: str) -> None:
        self.pid = os.getpid()
        self._root, self._lock_file = _own_folder(parent)
        self.folder = self._root / _FILES
        self.changed = threading.Condition()
        self.size = self.count = 0
        self.most_size, self.most_count, self._pickles = int(gigabytes * 1e9), most, method == "pickle"
        self._entries: dict[tuple[int, str], Entry] = {}
        self._queue: SimpleQueue[Entry | None] = SimpleQueue()
        self._numbers = 0
        self._workers, self._threads = workers, 0
        self._closed = False

    def enter(self, ds: FileStore[Any], fname: str) -> Entry | None:
        """Return the entry of a file, with one more reference; None if the pool is closed."""
        with self.changed:
            if self._closed:
                return None
            entry = self._entries.get((id(ds), fname))
            if entry is not None:
                entry.refcount += 1
                return entry
            entry = self._entries[id(ds), fname] = self._new(ds, fname)
            if self._threads < self._workers:
                self._threads += 1
                threading.Thread(target=self._work, name=f"feedmill-pool-{self._threads}", daemon=True).start()
        self._queue.put(entry)
        return entry

    def put(self, value: Any, name: str) -> Entry | None:
        """Write a value to the disk and return its entry; None if the pool is full or closed."""
        import pickle

        data = pickle.dumps(value, 5)
        with self.changed:
            entry = self._new(None, name)
            if self._closed or not self._fits(len(data)):
                return None
            self._reserve(entry, len(data))
        if not self._write(entry, data):
            with self.changed:
                self._free(entry)
            return None
        return entry

    def read(self, entry: Entry) -> Any:
        """Return the value of an entry: from memory or the disk if it was fetched, else from the store."""
        with self.changed:
            while entry.state == FETCHING and entry.held is None and not self._closed:
                self.changed.wait(RECHECK_SECONDS)
            held, path = entry.held, entry.cache_path
            if held is not None:
                entry.was_read = True
                self.changed.notify_all()
        if held is None and path is not None:
            try:
                held = path.read_bytes()
            except OSError as error:  # deleted by another program; the store still has it
                if entry.ds is None:
                    raise storage_error(error, str(path)) from None
        if held is None:
            assert entry.ds is not None
            return entry.ds.get(entry.fname)
        if entry.pickled:
            import pickle

            return pickle.loads(held)  # noqa: S301 - written by this process, into a folder that only its user can access  # nosec B301
        assert entry.ds is not None
        return entry.ds.value(entry.fname, held)

    def stored(self, entry: Entry) -> Any:
        """Return the value of an entry without a store, in a fork of the process that wrote it."""
        assert entry.cache_path is not None
        import pickle

        return pickle.loads(entry.cache_path.read_bytes())  # noqa: S301 - see `read`  # nosec B301

    def release(self, entry: Entry) -> None:
        """Remove one reference, and delete the file after the last one."""
        with self.changed:
            entry.refcount -= 1
            if entry.refcount > 0 or self._closed:
                return
            if entry.ds is not None:
                self._entries.pop((id(entry.ds), entry.fname), None)
            gone, entry.cache_path = entry.cache_path, None
            entry.held = None
            self.changed.notify_all()
        if gone is not None:
            self._remove(gone, entry)

    def close(self) -> None:
        """End the threads and delete the folder. Without effect in a fork, because the folder belongs to the parent."""
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
        import shutil

        shutil.rmtree(self._root, ignore_errors=True)
        self._lock_file.close()

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            with self.changed:
                if self._closed:
                    return
                if entry.refcount < 1:
                    continue
                entry.state = FETCHING
            state = DIRECT
            try:
                state = self._fetch(entry)
            except Exception as error:  # the handle reads it directly, and raises the error
                _log.debug("%s cannot be fetched: %s", entry.fname, error)
            with self.changed:
                entry.held, entry.was_read = None, False
                gone = None
                if state == READY and (entry.refcount < 1 or self._closed):
                    gone, entry.cache_path, state = entry.cache_path, None, DIRECT
                entry.state = state
                self.changed.notify_all()
            if gone is not None:
                self._remove(gone, entry)
            if state == WAITING:
                self._queue.put(entry)

    def _fetch(self, entry: Entry) -> str:
        """Fetch a file to the disk, waiting for free space, and return the new state of its entry.

        A file of which one handle was read meanwhile goes back to the end of the queue for the others.
        """
        assert entry.ds is not None
        data, entry.source = entry.ds.raw_with_source(entry.fname)
        if self._pickles:
            import pickle

            data = pickle.dumps(entry.ds.value(entry.fname, data), 5)
            entry.pickled = True
        if len(data) > self.most_size:
            entry.pickled = False
            return DIRECT
        with self.changed:
            entry.held = data
            self.changed.notify_all()
            has_waited = False
            while not self._fits(len(data)) or (has_waited and entry.was_read):
                if entry.refcount < 1 or self._closed:
                    return DIRECT
                if entry.was_read:
                    return WAITING
                has_waited = True
                self.changed.wait()
            self._reserve(entry, len(data))
        if self._write(entry, data):
            return READY
        with self.changed:
            self._free(entry)
        return DIRECT

    def _write(self, entry: Entry, data: bytes) -> bool:
        with self.changed:
            self._numbers += 1
            path = self.folder / str(self._numbers)
        try:
            path.write_bytes(data)
        except OSError as error:
            if not self._closed:
                _log.warning("the cache pool cannot write to %s (%s); files are read directly", self.folder, error)
            return False
        with self.changed:
            entry.cache_path, entry.state = path, READY
            self.changed.notify_all()
        return True

    def _remove(self, path: Path, entry: Entry) -> None:
        with contextlib.suppress(OSError):
            path.unlink()
        with self.changed:
            self._free(entry)

    def _new(self, ds: FileStore[Any] | None, fname: str) -> Entry:
        return Entry(ds, fname, self.changed)

    def _fits(self, size: int) -> bool:
        return self.size + size <= self.most_size and self.count < self.most_count

    def _reserve(self, entry: Entry, size: int) -> None:
        entry.data_size = size
        self.size += size
        self.count += 1

    def _free(self, entry: Entry) -> None:
        self.size -= entry.data_size
        self.count -= 1
        entry.data_size = 0
        self.changed.notify_all()


def _own_folder(parent: str | None) -> tuple[Path, FileLock]:
    """Create a folder for this process, delete those of dead ones, and return the folder and its lock."""
    import secrets
    import tempfile

    from feedmill.storage.locks import FileLock

    try:
        parent_folder = _parent(parent)
        with FileLock(parent_folder / f".{_PREFIX}lock", wait=True):  # without locks, unique names separate processes
            _sweep(parent_folder)
            folder = parent_folder / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
            folder.mkdir(mode=0o700)
            (folder / _FILES).mkdir()
            return folder, FileLock(folder / _LOCK)
    except OSError as error:
        translated = storage_error(error, error.filename or parent or tempfile.gettempdir())
        translated.fix = "Give the cache pool a writable folder (parent_cache_dir)."
        raise translated from None


def _parent(parent: str | None) -> Path:
    if parent is not None:
        Path(parent).mkdir(parents=True, exist_ok=True)
        return Path(parent)
    from feedmill.storage.folders import temporary_folder

    temporary = temporary_folder()
    import tempfile

    return Path(tempfile.mkdtemp(prefix="feedmill-")) if temporary is None else temporary


def _sweep(above: Path) -> None:
    """Delete the folders of processes that have died."""
    import shutil

    for folder in above.glob(f"{_PREFIX}*"):
        lock = str(folder / _LOCK)
        with dead(lock) as file:
            is_dead = file is not None
        # Without its lock, a folder was killed in `close`: new folders are created under the parent's lock.
        if is_dead or not os.path.lexists(lock):
            shutil.rmtree(folder, ignore_errors=True)


METHODS = ("raw", "pickle")


class FileStoreCachePool(CachePool):
    """Pool that fetches files to the local disk ahead of their use. It can be used from several threads.

    A file is fetched once for all handles on it, and deleted when all of them have been read or dropped. A file that is
    requested before its fetch has begun, that is larger than the pool, or that cannot be written, is read directly from
    its store. When the pool is full, fetching waits for free space. The limits apply to each process. A pool that is
    sent to another process is empty there.

    Args:
        parent_cache_dir: parent of the folders of the processes; by default the temporary folder of the machine.
        num_workers: number of threads that fetch.
        max_cache_size_gbytes: maximum size on the disk in gigabytes (10^9 bytes).
        max_cache_count: maximum number of files on the disk.
        method: ``raw`` stores files unchanged and decodes them when they are read; ``pickle`` decodes them when they
            are fetched.

    Raises:
        ConfigError: a number is invalid, or the method is unknown.
        StorageError: the folder cannot be written to. Raised when the folder is first needed.
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
                fix="Give numbers above 0.",
            )
        if method not in METHODS:
            raise ConfigError(f"the method {method!r} is unknown", fix=f"Use {' or '.join(METHODS)}.")
        parent = None if parent_cache_dir is None else os.path.abspath(os.fspath(parent_cache_dir))
        self._settings = (parent, num_workers, max_cache_size_gbytes, max_cache_count, method)
        self._pool_folder: PoolFolder | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return _pool, (type(self), *self._settings)

    def get_lazy(self, ds: FileStore[Any], fname: str) -> Lazy[Any]:
        entry = self._process_folder().enter(ds, fname)
        return DirectLazy(ds, fname) if entry is None else FileCacheLazy(self._process_folder(), entry)

    def to_cache(self, data: Any, name: str) -> Lazy[Any]:
        entry = self._process_folder().put(data, name)
        return HeldLazy(data, name) if entry is None else FileCacheLazy(self._process_folder(), entry)

    def close(self) -> None:
        """Delete all files of this process. Remaining handles read from their stores."""
        with self._lock:
            if self._pool_folder is not None:
                self._pool_folder.close()

    @property
    def folder(self) -> Path:
        """Return the folder of this process."""
        return self._process_folder().folder

    @property
    def held(self) -> tuple[int, int]:
        """Return the number of files on the disk, and their total bytes."""
        folder = self._process_folder()
        with folder.changed:
            return folder.count, folder.size

    def _process_folder(self) -> PoolFolder:
        folder = self._pool_folder
        if folder is None or folder.pid != os.getpid():  # a fork inherits the object, but not its threads
            with self._lock:
                if self._pool_folder is None or self._pool_folder.pid != os.getpid():
                    self._pool_folder = PoolFolder(*self._settings)
                    weakref.finalize(self, self._pool_folder.close)
                folder = self._pool_folder
        assert folder is not None
        return folder


def _pool(
    kind: type[FileStoreCachePool], parent: str | None, workers: int, size: float, count: int, method: str
) -> FileStoreCachePool:
    return kind(
        parent_cache_dir=parent,
        num_workers=workers,
        max_cache_size_gbytes=size,
        max_cache_count=count,
        method=method,
    )


class FileCacheLazy(Lazy[Any]):
    """Handle on a file that is fetched in the background. The second call of `get` reads from the store."""

    def __init__(self, folder: PoolFolder, entry: Entry) -> None:
        self.ds, self.fname, self.entry = entry.ds, entry.fname, entry
        self._pool_folder = folder
        self._value: Any = None  # a value without a store, once it was read
        self._release = weakref.finalize(self, folder.release, entry)
        self._release.atexit = False

    def get(self, sample: Any = None) -> Any:
        if self._release.alive and self._pool_folder.pid == os.getpid():
            value = self._pool_folder.read(self.entry)
            if self.ds is None:
                self._value = value
            self._release()
        elif self.ds is None:
            value = self._pool_folder.stored(self.entry) if self._release.alive else self._value
        else:
            value = self.ds.get(self.fname)
        if self.ds is not None and sample is not None:
            from feedmill.samples.stores import add_source

            add_source(sample, self.entry.source or self.ds.source(self.fname))
        return value

    @property
    def _data(self) -> bool | None:
        """Return True after the first call of `get`, else None: under Energon's name, for programs that look at it."""
        return None if self._release.alive else True

    @property
    def cache_path(self) -> Path | None:
        """Return the path of the file on the disk; None if it was not fetched yet, or this handle was read."""
        return self.entry.cache_path if self._release.alive else None

    def __hash__(self) -> int:
        return id(self) if self.ds is None else super().__hash__()

    def __reduce__(self) -> Any:
        return (HeldLazy, (self.get(), self.fname)) if self.ds is None else (DirectLazy, (self.ds, self.fname))
