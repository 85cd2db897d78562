"""The file cache: whole files that can be fetched or computed again, bounded in size, shared by all processes.

Copies of remote files and files that are derived from datasets lie in the cache folder. `FileCache` locks the files in
use, and evicts others.

    folder/<32 hex>-<name>  a copy of one version of a remote file (``copies.py``), with its `Note` in ``<copy>.hash``
    folder/shards/<hash>    indices of plain tars, and which shards were compared with their index
    folder/costs/<hash>     costs of samples
    folder/lines/<hash>     where the lines of a file lie, or points at which reading it can begin
    folder/packing/<hash>/  a packing plan: evicted as a whole
    folder/unpacked/<hash>/ the compressed tars of a folder, unpacked: evicted as a whole
    folder/in-use           locks of all processes, and the bytes that all files take (int64)

A process that uses a file has a read lock on the file's byte of ``in-use``, which the kernel releases when the process
dies. A file is only evicted under a write lock on that byte. One more lock is taken for evictions, so that processes
that fetch at the same time stay within the limit together. The bytes of a download are reserved by its staged file,
which has its full length from the beginning. Staged files of dead processes are removed.

Only files with these names are deleted, and links below the folder are not followed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

from feedmill.errors import StorageError
from feedmill.storage.cache.items import NOTE, Cached, Item, count, eviction_order, existing_parent, free_bytes, scan
from feedmill.storage.limits import parse_size
from feedmill.storage.locks import ByteLock
from feedmill.storage.staging import make_folder, open_in_place

logger = logging.getLogger("feedmill")

LOCKS = "in-use"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_USED, _FETCHED, _RESERVE = 0, 1 << 60, 1 << 61
"""Offset of the locks of each kind in the lock file; the first two have one byte for each of 2^60 hashes of names."""
_DEFAULT_LIMIT = 20 * 10**9
"""Limit in bytes if no size is set; or a tenth of the disk if that is less."""
SIZE = "FEEDMILL_CACHE_SIZE"


class HeldFile:
    """A file on this machine that is not evicted before `close`, the end of a ``with`` block, or garbage collection.

    A reader that has opened or mapped it before can still read it afterwards.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, cache: FileCache | None = None, name: str = "") -> None:
        self.path = path
        self._cache = cache
        self._release = None if cache is None else weakref.finalize(self, cache.release, name)
        if self._release is not None:
            self._release.atexit = False  # the kernel releases the lock

    def keep(self) -> Path:
        """Keep the file until this process ends; return its path."""
        if self._release is not None:
            self._release.detach()
        return self.path

    def close(self) -> None:
        """Allow the file to be evicted: at once if the cache exceeds its limit. A second call does nothing."""
        if self._cache is not None and self._release is not None and self._release.alive:
            self._release()
            if self._cache.total > self._cache.max_bytes():
                self._cache.trim()

    def __enter__(self) -> HeldFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileCache:
    """The files of one cache folder. Thread-safe. A process has one object for each folder (`file_cache`).

    Attributes:
        folder: the folder; created when it is first used.
        limit: maximum size of all files in bytes; None for the default. Files in use are never evicted: if they take
            more than the limit, one warning is logged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.limit: int | None = None
        self._guard = threading.Lock()
        self._fd = -1
        self._mine: ByteLock | None = None
        self._uses: Counter[str] = Counter()
        self._released: deque[str] = deque()
        self._warned: set[str] = set()

    def hold(self, name: str) -> HeldFile:
        """Prevent the eviction of a file, which may be absent. Raises `OSError` if the folder cannot be used."""
        with self._guard:
            locks = self._opened()
            if not self._uses[name]:
                self._take(locks, _USED + _byte_of(name), wait=True, shared=True)
            self._uses[name] += 1
        return HeldFile(self.folder / name, self, name)

    def release(self, name: str) -> None:
        """Undo one `hold`."""
        self._released.append(name)
        # If the garbage collector interrupted a method that has the guard, the next call unlocks the file.
        if self._guard.acquire(blocking=False):
            try:
                self._unlock_released()
            finally:
                self._guard.release()

    def _unlock_released(self) -> None:
        """Unlock the files that were released."""
        while self._released:
            name = self._released.popleft()
            self._uses[name] -= 1
            if self._uses[name] <= 0:
                del self._uses[name]
                if self._mine is not None:
                    self._mine.drop(_USED + _byte_of(name))

    def hold_derived(self, name: str, *, written: bool = False) -> None:
        """Prevent the eviction of a derived file until this process ends, and record its use.

        Does nothing if the folder cannot be used.

        Args:
            name: path of the file in the folder, such as ``costs/<hash>``.
            written: whether the file is new, so that others may have to be evicted.
        """
        with contextlib.suppress(OSError):
            if not self._uses[name]:
                self.hold(name).keep()
            os.utime(self.folder / name)
        if written:
            self.trim()

    def exclusive(self, name: str) -> contextlib.AbstractContextManager[object]:
        """Run a block that fetches a file in one thread of all processes at a time. Raises `OSError`."""
        return self._locked(_FETCHED + _byte_of(name))

    @contextlib.contextmanager
    def reserving(self, size: int) -> Iterator[None]:
        """Evict files until `size` more bytes fit; the block creates the staged file that reserves them.

        Raises:
            OSError: the disk does not have enough free space (ENOSPC), or the folder cannot be used.
        """
        with self._locked(_RESERVE) as locks:
            total = count(self.folder)
            limit, free = self.max_bytes(), free_bytes(self.folder)
            bound = limit if free is None else min(limit, total + free)
            for item in eviction_order(scan(self.folder)[0]) if locks and total + size > bound else ():
                if total + size <= bound:
                    break
                if self._evict(item):
                    total -= item.taken
            self._set_total(total + size)
            free = free_bytes(self.folder)
            if size and free is not None and size > free:
                self._set_total(total)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
            if total + size > limit:
                self._warn_of(total + size, limit)
            yield

    def trim(self) -> None:
        """Evict files until the limit is met, and count the rest. Does nothing if the folder cannot be used."""
        with contextlib.suppress(OSError), self.reserving(0):
            pass

    @property
    def total(self) -> int:
        """Return the bytes of the files and of running downloads, as last counted by any process."""
        with self._guard, contextlib.suppress(OSError):
            self._opened()
            return max(0, int.from_bytes(os.pread(self._fd, 8, 0), "little", signed=True))
        return 0

    def list(self) -> list[Cached]:
        """Return the files, sorted by URL; a derived file has its path instead."""
        if not self.folder.is_dir():
            return []
        items = [item for item in scan(self.folder)[0] if item.kind != "none"]
        return sorted(self._described(item) for item in items)

    def clear(self, prefix: str | None = None, *, kind: str | None = None) -> int:
        """Delete the files whose URL (or path) begins with a prefix, except those that a process uses.

        Args:
            prefix: beginning of the URLs; None for all files.
            kind: kind of the files; None for all.

        Returns:
            The number of bytes freed.

        Raises:
            OSError: the folder cannot be used.
        """
        freed = 0
        if not self.folder.is_dir():
            return 0
        with self._locked(_RESERVE):
            for item in scan(self.folder)[0]:
                chosen = kind is None or item.kind == kind
                if chosen and (prefix is None or self._described(item).url.startswith(prefix)) and self._evict(item):
                    freed += item.size
            self._set_total(count(self.folder))
        return freed

    def max_bytes(self) -> int:
        """Return the maximum size of all files: `limit`, half of the cache size of the environment, or the default."""
        if self.limit is not None:
            return self.limit
        size = parse_size(os.environ.get(SIZE) or 0, SIZE)
        if size:
            return size // 2
        with contextlib.suppress(OSError):
            status = os.statvfs(existing_parent(self.folder))
            if status.f_blocks:
                return min(_DEFAULT_LIMIT, status.f_blocks * status.f_frsize // 10)
        return _DEFAULT_LIMIT

    def close(self) -> None:
        """Release all files and close the lock file, which is opened again when it is needed."""
        with self._guard:
            if self._mine is not None:
                self._mine.close()
            if self._fd >= 0:
                os.close(self._fd)
            self._fd, self._mine = -1, None
            self._uses.clear()

    def _opened(self) -> ByteLock:
        """Return the locks of this process; they are taken again if another process replaced the lock file.

        Raises `OSError`.
        """
        self._unlock_released()
        path = str(self.folder / LOCKS)
        with contextlib.suppress(FileNotFoundError):
            if self._mine is not None and os.path.samestat(os.stat(path), os.fstat(self._fd)):
                return self._mine
        make_folder(os.path.abspath(self.folder))
        try:
            old, self._fd = self._fd, open_in_place(path, os.O_RDWR)
        except StorageError as error:
            raise OSError(errno.ELOOP, error.what, path) from None
        if old >= 0:
            os.close(old)
        self._mine = ByteLock(self._fd)
        for name in self._uses:
            self._take(self._mine, _USED + _byte_of(name), wait=True, shared=True)
        return self._mine

    def _take(self, lock: ByteLock, byte: int, *, wait: bool, shared: bool = False) -> bool | None:
        """Lock a byte; return whether it was locked; None if the file system does not support locks."""
        try:
            return lock.take(byte, wait=wait, shared=shared)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        self._warn(
            "locks",
            "the file system does not support locks, so nothing is evicted: run 'feedmill cache clear' if needed",
        )
        return None

    @contextlib.contextmanager
    def _locked(self, byte: int) -> Iterator[bool]:
        """Hold the write lock on a byte in a block; the block gets False if the file system does not support locks."""
        with self._guard:
            self._opened()
            lock = ByteLock(self._fd)
        with lock:
            yield self._take(lock, byte, wait=True) is not None

    def _evict(self, item: Item) -> bool:
        """Delete a file unless a process uses it; return whether it was deleted."""
        with self._guard:
            lock = ByteLock(self._fd)
        with lock:
            if self._take(lock, _USED + _byte_of(item.name), wait=False) is False:
                return False
            path = self.folder / item.name
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
                    path.with_name(path.name + NOTE).unlink(missing_ok=True)
            except OSError as error:
                self._warn("evict", f"a file cannot be evicted: {path}: {error.strerror or error}")
                return False
            return True

    def _described(self, item: Item) -> Cached:
        """Return a file as `list` shows it."""
        url = item.url or str(self.folder / item.name)
        return Cached(url, item.version, item.size, item.size, item.last_use / 1e9, item.kind)

    def _set_total(self, total: int) -> None:
        with self._guard:
            os.pwrite(self._fd, total.to_bytes(8, "little", signed=True), 0)

    def _warn_of(self, total: int, limit: int) -> None:
        self._warn(
            "limit",
            f"copies of remote files in use take {total:,} bytes, more than the limit of {limit:,}: they are evicted"
            " later. Set FEEDMILL_CACHE_SIZE to at least twice as much",
        )

    def _warn(self, what: str, text: str) -> None:
        """Log a warning, once for each `what`."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("%s: %s", self.folder, text)


def file_cache(folder: Path) -> FileCache:
    """Return the file cache of a folder: the same object for all callers in the process."""
    with _lock:
        return _caches.setdefault(os.path.abspath(folder), FileCache(folder))


_lock = threading.Lock()
_caches: dict[str, FileCache] = {}


def _drop_inherited() -> None:
    """Drop all caches in a forked child, which opens them again: the locks belong to its parent."""
    global _lock
    _lock = threading.Lock()
    for cache in _caches.values():
        cache._guard, cache._mine = threading.Lock(), None  # another thread of the parent may have held it
        cache._uses.clear()
    _caches.clear()


os.register_at_fork(after_in_child=_drop_inherited)


def _byte_of(name: str) -> int:
    """Return the byte, counted from the beginning of a kind of locks, that stands for a file."""
    import hashlib

    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") >> 4
