"""The page cache: byte ranges of immutable objects, bounded in size, shared by the processes of a machine.

If a cache size is set, reading ahead stores the fetched bytes here, so that later epochs and other processes do not
fetch them again. `PageCache` opens objects as `Pages`, limits their size, and evicts pages.

    folder/usage                                bytes in use, and which processes there are (``usage.py``)
    folder/readers                              which ranks read ahead (`Readers`)
    folder/<hash of the store>/<hash>.data      bytes of an object at their offsets, with holes (``page_io.py``)
    folder/<hash of the store>/<hash>.map       which pages are present (``page_map.py``)

Only files and folders with these names are deleted, and links below the folder are not followed.

The readers of a page cache are the ranks of runs that read ahead through it: so those of a machine know each other.
Each has a row of the file ``readers``, with the number of its run and its rank, and a lock on the row's byte: that of a
dead process is gone. The rows are hints; whatever they say, each rank reads its own samples. They are not in the file
of counters (``usage.py``), whose layout processes of other versions of Feedmill share.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import StorageError
from feedmill.storage.cache.items import Cached
from feedmill.storage.cache.page_io import Pages
from feedmill.storage.cache.page_locks import RangeLock, is_locked
from feedmill.storage.cache.page_map import (
    PAGE,
    PRESENT,
    Header,
    Records,
    make_private,
    open_files,
    page_sizes,
    read_header,
    read_records,
    remove_damaged,
    remove_unused,
)
from feedmill.storage.cache.usage import Usage

logger = logging.getLogger("feedmill")

__all__ = ["PAGE", "Cached", "PageCache", "Pages"]

_GROUP = re.compile(r"[0-9a-f]{16}")
_MAP = re.compile(r"([0-9a-f]{32})\.map")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FIXED = 32 << 10
"""Bytes of the folders, of the file of counters and of that of readers."""
_KEEP = 0.95
"""Eviction frees pages down to this share of the capacity, so that it does not run for each page."""
_SLACK = 1 << 20
"""Allocated bytes beyond the present pages that are not worth freeing."""
_TRIES, _IDLE_TRIES = 100, 3
"""How often to evict for one reservation, and how often without freeing anything."""
_RECOUNT = 1 << 28
"""The counter is compared with the maps after this number of bytes was put, or a 20th of the size if that is more."""
READERS = 256
"""Maximum number of readers that know each other."""
_ROW = np.dtype([("run", "<u8"), ("rank", "<i8")])


class _Object(NamedTuple):
    """An object at one time: its folder (empty in memory), and the bytes that its data takes on the disk."""

    group: str
    header: Header
    records: Records
    allocated: int


class PageCache:
    """The page cache in a folder, or one in the memory of this process. Thread-safe.

    If the folder cannot be written to (a full disk, a read-only or deleted folder), the cache logs one warning and is
    *disabled*: present pages are still read, but `Pages.put` returns False.

    Attributes:
        size: maximum number of bytes of all pages and their files.
        usage: counters shared with other processes; None if the folder cannot be used.
        readers: ranks that read ahead; None if the folder cannot be used.
        disabled: whether writing has stopped.
        holes: whether the file system can free ranges of a file; if not, objects are evicted as a whole.
        corrupt: number of pages whose hash did not match.
    """

    def __init__(self, folder: Path | None, size: int, other_bytes: Callable[[], int] = lambda: 0) -> None:
        """Open or create the cache.

        Args:
            folder: a folder for the cache alone, created with mode 0700; None for memory.
            size: maximum number of bytes of all pages.
            other_bytes: returns the bytes of other files that share the size; called often, and under a lock.
        """
        self.size, self.folder, self._other_bytes = size, folder, other_bytes
        self.usage: Usage | None = None
        self.readers: Readers | None = None
        self.disabled, self.holes, self.corrupt = False, True, 0
        # Taken in this order: opening an object may evict pages, for which objects are looked up.
        self._opening, self._evicting, self._lock = threading.Lock(), threading.Lock(), threading.RLock()
        self._open: weakref.WeakValueDictionary[tuple[str, str], Pages] = weakref.WeakValueDictionary()
        self._private: dict[str, Pages] = {}
        self._fd, self._uncounted = -1, 0
        try:
            if folder is None:
                self.usage = Usage(os.memfd_create("feedmill-usage", os.MFD_CLOEXEC))
                self.readers = Readers(os.memfd_create("feedmill-readers", os.MFD_CLOEXEC))
                return
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._fd = os.open(folder, _FOLDER)
            flags = os.O_RDWR | os.O_CREAT | _FILE
            self.usage = Usage(os.open("usage", flags, 0o600, dir_fd=self._fd))
            self.readers = Readers(os.open("readers", flags, 0o600, dir_fd=self._fd))
            if self.usage.created:
                self._recount()
        except OSError as error:
            self.disable(error)

    def open(self, url: str, version: str, size: int) -> Pages:
        """Open the pages of an object; one `Pages` is shared by all callers in the process.

        Args:
            url: URL of the object.
            version: an ETag or similar, which changes when the content does.
            size: size of the object in bytes.
        """
        header = Header(url, version, size)
        group = "" if self.folder is None else xxhash.xxh3_64_hexdigest(_server(url))
        with self._lock:
            pages = self._open.get((group, header.name))
        if pages is not None:
            return pages
        with self._opening:
            with self._lock:
                pages = self._open.get((group, header.name))
            if pages is None:
                pages = self._open_new(group, header)
                with self._lock:
                    pages = self._open.setdefault((group, header.name), pages)
            return pages

    def _open_new(self, group: str, header: Header) -> Pages:
        if self.folder is not None and self.usage is not None and not self.disabled:
            try:
                with self._group(group, create=True) as fd:
                    opened = open_files(fd, header, create=False)
                    if opened is None and self.reserve(header.overhead):
                        opened = open_files(fd, header, create=True)
                        self.usage.created_files(header.overhead)
                if opened is not None:
                    return Pages(self, header, *opened)
                logger.warning("page cache: %s is not cached: there is no room for the list of its pages", header.url)
            except OSError as error:
                self.disable(error)
            except StorageError as error:
                logger.warning("page cache: %s is not cached: %s", header.url, error)
        if self.folder is not None or self.disabled:
            return Pages(_DisabledCache(), header, *make_private(header, use=False))
        pages = Pages(self, header, *make_private(header))
        self._private[header.name] = pages  # kept here: memory files vanish with their last descriptor
        return pages

    @contextlib.contextmanager
    def _group(self, name: str, *, create: bool = False) -> Iterator[int]:
        """Open the folder with the objects of one server in a block, as a descriptor."""
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._fd)
        fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self._fd)
        try:
            yield fd
        finally:
            os.close(fd)

    def disable(self, error: OSError) -> None:
        """Stop writing to the cache; log the reason, once."""
        if not self.disabled:
            self.disabled = True
            folder = "memory" if self.folder is None else self.folder
            logger.warning("page cache in %s is disabled, data is read without it: %s", folder, error.strerror or error)

    def capacity(self) -> int:
        """Return the number of bytes that pages may take now: the size without that of other files."""
        fixed = 0 if self.folder is None else _FIXED
        return max(0, self.size - self._other_bytes() - fixed)

    def reserve(self, size: int) -> bool:
        """Reserve bytes by `Usage.reserve`, and evict pages if they do not fit.

        Pages in no running plan are evicted first, in order of their last use; then those whose next use is farthest.
        Pinned pages are not evicted.

        Args:
            size: number of bytes; with 0, pages are evicted only if they take more than the capacity.

        Returns:
            Whether the bytes are reserved.
        """
        usage = self.usage
        if usage is None or size > self.size:
            return False
        try:
            self._uncounted += size
            if self._uncounted < max(_RECOUNT, self.size // 20) and usage.reserve(size, self.capacity):
                return True
            idle = 0
            with self._evicting:
                for _ in range(_TRIES):  # other processes may take the bytes that this one frees
                    self._uncounted = 0
                    objects = self._recount()
                    if usage.reserve(size, self.capacity):
                        return True
                    capacity = self.capacity()
                    target = max(0, min(int(_KEEP * capacity), capacity - size))
                    if not self._evict(objects, usage, target) and (idle := idle + 1) == _IDLE_TRIES:
                        break
                    time.sleep(0.001 * idle)  # the pages are pinned, or another process is evicting them
            return usage.reserve(size, self.capacity)
        except OSError as error:
            self.disable(error)
            return False

    def _evict(self, objects: list[_Object], usage: Usage, target: int) -> int:
        """Evict pages until at most `target` bytes are taken; return the bytes freed."""
        present = [np.flatnonzero(item.records["state"] == PRESENT) for item in objects]
        if not sum(map(len, present)):
            return 0
        object_of = np.repeat(np.arange(len(objects)), [len(pages) for pages in present])
        page = np.concatenate(present)
        sizes = np.concatenate([page_sizes(item.header, pages) for item, pages in zip(objects, present, strict=True)])
        records = np.concatenate([item.records[pages] for item, pages in zip(objects, present, strict=True)])
        planned = (records["run"] != 0) & np.isin(records["run"], usage.live())
        order = np.lexsort((page, np.where(planned, -records["next_use"], records["last_use"]), planned))
        start = freed = 0
        # Several rounds, because pinned pages free nothing.
        while start < len(order) and (excess := usage.taken - target) > 0:
            stop = start + int(np.searchsorted(np.cumsum(sizes[order[start:]]), excess)) + 1
            chosen = np.sort(order[start:stop])
            start = stop
            for chosen_object in np.unique(object_of[chosen]).tolist():
                freed += self._evict_from(objects[chosen_object], page[chosen[object_of[chosen] == chosen_object]])
        return freed

    def _evict_from(self, item: _Object, pages: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        """Evict pages of one object, and delete its files if none is left; return the bytes freed."""
        opened = self._existing(item)
        if opened is None:
            return 0
        freed = opened.evict(pages)
        unused = item.group and not (opened.snapshot()["state"] == PRESENT).any()
        del opened
        if unused and (item.group, item.header.name) not in self._open:
            with self._group(item.group) as fd:
                remove_unused(fd, item.header)
        return freed

    def _existing(self, item: _Object) -> Pages | None:
        """Return the pages of an object, opened if needed; None if its files are absent or invalid."""
        with self._lock:
            pages = self._open.get((item.group, item.header.name))
            if pages is None and item.group:
                opened = None
                with contextlib.suppress(StorageError), self._group(item.group) as fd:
                    opened = open_files(fd, item.header, create=False)
                if opened is not None:
                    pages = Pages(self, item.header, *opened)
                    self._open[item.group, item.header.name] = pages
            return pages

    def _recount(self) -> list[_Object]:
        """Correct the shared counter, and free bytes of killed processes that no record has.

        Returns:
            The objects of the cache.
        """
        assert self.usage is not None
        with self.usage.counting() as (sizes, files):
            objects = list(self._objects(sweep=True))
            sizes.extend(map(_present_bytes, objects))
            files.extend(item.header.overhead for item in objects if item.group)
        for item, size in zip(objects, sizes, strict=True):
            if item.allocated > size + -(-size // PAGE) * 4096 + _SLACK and self.holes:
                pages = self._existing(item)
                if pages is not None:
                    pages.sweep()
        return objects

    def _objects(self, *, sweep: bool = False) -> Iterator[_Object]:
        """Yield the objects of the cache; with `sweep`, delete corrupt objects that no process uses."""
        if self.folder is None:
            for pages in list(self._private.values()):
                yield _Object("", pages.header, pages.snapshot(), os.fstat(pages.fd).st_blocks * 512)
            return
        for group in filter(_GROUP.fullmatch, os.listdir(self._fd)):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._group(group) as fd:
                for name in sorted(os.listdir(fd)):
                    match = _MAP.fullmatch(name)
                    item = match and _read_object(fd, group, match[1])
                    if item:
                        yield item
                    elif match and sweep:
                        remove_damaged(fd, match[1])

    def list(self) -> list[Cached]:
        """Return the objects of the cache, sorted by URL."""
        return sorted(map(_described, self._objects())) if self.usage is not None else []

    def clear(self, prefix: str | None = None) -> int:
        """Delete the objects whose URL begins with a prefix, or all; return the number of bytes freed.

        Pinned pages are kept. An object that a process has open keeps its files, without pages.
        """
        freed = 0
        for item in list(self._objects(sweep=True)) if self.usage is not None else []:
            if prefix is None or item.header.url.startswith(prefix):
                pages = self._existing(item)
                if pages is not None:
                    freed += pages.evict(np.arange(item.header.pages))
                del pages
                if item.group and (item.group, item.header.name) not in self._open:
                    with self._group(item.group) as fd:
                        remove_unused(fd, item.header)
        return freed

    def close(self) -> None:
        """Close the cache and its pages; neither may be used afterwards."""
        with self._lock:
            for pages in list(self._open.values()):
                pages.close()
            self._open.clear()
            self._private.clear()
            if self.usage is not None:
                self.usage.close()
                self.usage = None
            if self.readers is not None:
                self.readers.close()
                self.readers = None
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self.disabled = True


class _DisabledCache:
    """The owner of pages that cannot be cached: no page is ever present."""

    usage: Usage | None = None
    disabled = True
    holes = True
    corrupt = 0

    def reserve(self, size: int) -> bool:  # noqa: ARG002
        return False

    def disable(self, error: OSError) -> None:
        """Do nothing: it is disabled from the start."""


def _server(url: str) -> bytes:
    """Return scheme and host (or bucket) of a URL, from which the name of a group is made."""
    scheme, host = urlsplit(url)[:2]
    return f"{scheme}://{host}".encode("utf-8", "surrogateescape")


def _read_object(folder: int, group: str, name: str) -> _Object | None:
    """Read the map of an object without locks; None if it is corrupt or its data is absent."""
    try:
        fd = os.open(name + ".map", os.O_RDONLY | _FILE, dir_fd=folder)
        try:
            header = read_header(fd)
            if header is None or header.name != name:
                return None
            data = os.stat(name + ".data", dir_fd=folder, follow_symlinks=False)
            return _Object(group, header, read_records(fd, header), data.st_blocks * 512)
        finally:
            os.close(fd)
    except OSError:
        return None


def _present_bytes(item: _Object) -> int:
    """Return the number of bytes of the present pages."""
    return int(page_sizes(item.header, np.flatnonzero(item.records["state"] == PRESENT)).sum())


def _described(item: _Object) -> Cached:
    """Return an object as `PageCache.list` shows it."""
    present = np.flatnonzero(item.records["state"] == PRESENT)
    last_use = item.records["last_use"][present].max() / 1e9 if len(present) else 0.0
    return Cached(item.header.url, item.header.version, _present_bytes(item), item.header.size, float(last_use))


class Readers:
    """The table of readers of a cache."""

    def __init__(self, fd: int) -> None:
        """Open the table.

        Args:
            fd: descriptor of the file, which this object closes; it may be empty.

        Raises:
            OSError: the file cannot be used.
        """
        self._fd = fd
        os.posix_fallocate(fd, 0, READERS * _ROW.itemsize)
        self._rows: npt.NDArray[np.void] = np.frombuffer(mmap.mmap(fd, READERS * _ROW.itemsize), _ROW)

    def join(self, run: int, rank: int) -> RangeLock | None:
        """Add a reader to the table; return the lock whose release removes it, or None if the table is full.

        Args:
            run: the same number for all ranks of a run, and not 0.
            rank: its rank.

        Raises:
            OSError: as `RangeLock`.
        """
        lock = RangeLock(self._fd)
        for row in range(READERS):
            if lock.take(fcntl.F_WRLCK, row, 1):
                self._rows[row] = run, rank
                return lock
        lock.release()
        return None

    def ranks(self, run: int) -> list[int]:
        """Return the ranks of a run whose readers are alive on this machine, ascending and each once."""
        rows = np.flatnonzero(self._rows["run"].copy() == run).tolist()
        return sorted({int(self._rows["rank"][row]) for row in rows if is_locked(self._fd, row, 1)})

    def close(self) -> None:
        """Close the file. The readers of this process stay until their locks are released."""
        os.close(self._fd)
