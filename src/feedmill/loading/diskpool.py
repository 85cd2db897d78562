"""A cache pool on the local disk: it fetches files in the background while their samples wait.

Pass it to a task encoder whose cookers take large files from remote stores, if samples wait in a packing buffer. Each
process uses a separate folder below that of the pool, with a lock that the system frees when the process dies. A
process that opens a pool deletes the folders whose lock is free, so the files of a killed process do not stay.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Any

from feedmill.errors import ConfigError
from feedmill.loading.cachepool import CachePool, DirectLazy, HeldLazy, Lazy
from feedmill.loading.pool_folder import Entry, PoolFolder
from feedmill.samples.stores import FileStore, add_source

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
