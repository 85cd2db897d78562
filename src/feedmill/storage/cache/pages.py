"""A cache of byte ranges of immutable objects, bounded in size, shared by the processes of a machine.

    folder/usage                                bytes in use, processes that plan (``usage.py``)
    folder/<hash of the store>/<hash>.data      bytes of an object at their own offsets, with holes (``page_io.py``)
    folder/<hash of the store>/<hash>.map       which pages are present (``page_map.py``)

Nothing is deleted but files of these names in folders of these names, and no links are followed below the folder.
"""

from __future__ import annotations

import contextlib
import logging
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
import xxhash

from feedmill.errors import StorageError
from feedmill.storage.cache.page_io import Pages
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

__all__ = ["PAGE", "Cached", "PageCache", "Pages"]

logger = logging.getLogger("feedmill")

_GROUP = re.compile(r"[0-9a-f]{16}")
_MAP = re.compile(r"([0-9a-f]{32})\.map")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_KEEP = 0.95
_SLACK = 1 << 20
_TRIES, _IDLE_TRIES = 100, 3
_RECOUNT = 1 << 28  # bytes put after which the counter is compared with the maps; or a 20th of the size


class Cached(NamedTuple):
    """One object of a cache.

    Attributes:
        url: of the object.
        version: of the object.
        present: bytes in the cache.
        size: bytes of the object.
        last_use: when a page was last read or written, in seconds since 1970; 0 if none is present.
        kind: ``data``; ``index`` and ``derived`` in a `FileCache`.
    """

    url: str
    version: str
    present: int
    size: int
    last_use: float
    kind: str = "data"


class _Object(NamedTuple):
    """An object as an eviction sees it: its group (empty in memory), header, records, allocated bytes."""

    group: str
    header: Header
    records: Records
    allocated: int


class PageCache:
    """Open the page cache in a folder, or one in the memory of this process.

    A cache that cannot be written to (a full disk, a read-only or deleted folder) logs one warning and is *disabled*:
    pages that are present are still read, and `Pages.put` returns False.

    Attributes:
        size: bytes that the pages may take.
        usage: counters shared with other processes; None if the folder cannot be used.
        disabled: whether nothing is written any more.
        holes: whether the file system can free parts of a file; else objects are evicted as a whole.
        corrupt: number of pages whose bytes did not have their hash.
    """

    def __init__(self, folder: Path | None, size: int, beside: Callable[[], int] = lambda: 0) -> None:
        """Open or create the cache.

        Args:
            folder: its own folder, created with mode 0700; None for memory.
            size: bytes that the pages of all objects may take together.
            beside: returns bytes of other files that count into the size; called often, and under a lock.
        """
        self.size, self.folder, self._beside = size, folder, beside
        self.usage: Usage | None = None
        self.disabled, self.holes, self.corrupt = False, True, 0
        self._lock, self._evicting = threading.RLock(), threading.Lock()
        self._open: weakref.WeakValueDictionary[tuple[str, str], Pages] = weakref.WeakValueDictionary()
        self._private: dict[str, Pages] = {}
        self._fd, self._uncounted = -1, 0
        try:
            if folder is None:
                self.usage = Usage(os.memfd_create("feedmill-usage", os.MFD_CLOEXEC))
                return
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._fd = os.open(folder, _FOLDER)
            flags = os.O_RDWR | os.O_CREAT | _FILE
            self.usage = Usage(os.open("usage", flags, 0o600, dir_fd=self._fd))
            if self.usage.fresh:
                self._recount()
        except OSError as error:
            self.disable(error)

    def open(self, url: str, version: str, size: int) -> Pages:
        """Open the pages of an object; one `Pages` is shared by all callers in the process.

        Args:
            url: of the object, with its store.
            version: what changes with its content, such as an ETag.
            size: bytes of the object.
        """
        header = Header(url, version, size)
        group = "" if self.folder is None else xxhash.xxh3_64_hexdigest(_store(url))
        with self._lock:
            pages = self._open.get((group, header.name))
            if pages is None:
                pages = self._open_new(group, header)
                self._open[group, header.name] = pages
            return pages

    def _open_new(self, group: str, header: Header) -> Pages:
        if self.folder is not None and self.usage is not None and not self.disabled:
            try:
                with self._group(group, create=True) as fd:
                    opened = open_files(fd, header, create=True)
                assert opened is not None
                return Pages(self, header, *opened)
            except OSError as error:
                self.disable(error)
            except StorageError as error:
                logger.warning("page cache: %s is not cached: %s", header.url, error)
        if self.folder is not None or self.disabled:
            return Pages(_Nowhere(), header, *make_private(header, use=False))
        pages = Pages(self, header, *make_private(header))
        self._private[header.name] = pages  # memory files end with their last descriptor
        return pages

    @contextlib.contextmanager
    def _group(self, name: str, *, create: bool = False) -> Iterator[int]:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._fd)
        fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self._fd)
        try:
            yield fd
        finally:
            os.close(fd)

    def disable(self, error: OSError) -> None:
        """Stop writing, and log why, once."""
        if not self.disabled:
            self.disabled = True
            place = "memory" if self.folder is None else self.folder
            logger.warning("page cache in %s is disabled, data is read without it: %s", place, error.strerror or error)

    def room(self) -> int:
        """Return the bytes that pages may take now."""
        return max(0, self.size - self._beside())

    def reserve(self, size: int) -> bool:
        """Reserve bytes by `Usage.reserve`; if pages must go for them, down to 95 % of their room. With 0 bytes, only
        evict what has no room any more.

        Pages of no running plan go first, least recently used before others; then those with the farthest next use.
        Pinned pages stay.

        Returns:
            Whether the bytes fit.
        """
        usage = self.usage
        if usage is None or size > self.size:
            return False
        try:
            self._uncounted += size
            if self._uncounted < max(_RECOUNT, self.size // 20) and usage.reserve(size, self.room):
                return True
            idle = 0
            with self._evicting:
                for _ in range(_TRIES):  # other processes may fill the room that one of them makes
                    self._uncounted = 0
                    objects = self._recount()
                    if usage.reserve(size, self.room):
                        return True
                    room = self.room()
                    target = max(0, min(int(_KEEP * room), room - size))
                    if not self._evict(objects, usage, target) and (idle := idle + 1) == _IDLE_TRIES:
                        break
                    time.sleep(0.001 * idle)  # another process has them in hand, or they are pinned
            return usage.reserve(size, self.room)
        except OSError as error:
            self.disable(error)
            return False

    def _evict(self, objects: list[_Object], usage: Usage, target: int) -> int:
        where = [np.flatnonzero(o.records["state"] == PRESENT) for o in objects]
        if not sum(map(len, where)):
            return 0
        number = np.repeat(np.arange(len(objects)), [len(w) for w in where])
        page = np.concatenate(where)
        sizes = np.concatenate([page_sizes(o.header, w) for o, w in zip(objects, where, strict=True)])
        records = np.concatenate([o.records[w] for o, w in zip(objects, where, strict=True)])
        planned = (records["run"] != 0) & np.isin(records["run"], usage.live())
        order = np.lexsort((page, np.where(planned, -records["next_use"], records["last_use"]), planned))
        at = freed = 0
        while at < len(order) and (excess := usage.taken - target) > 0:  # pinned pages free nothing: take more
            stop = at + int(np.searchsorted(np.cumsum(sizes[order[at:]]), excess)) + 1
            chosen = np.sort(order[at:stop])
            at = stop
            for which in np.unique(number[chosen]).tolist():
                freed += self._evict_from(objects[which], page[chosen[number[chosen] == which]])
        return freed

    def _evict_from(self, item: _Object, pages: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        known = self._existing(item)
        if known is None:
            return 0
        freed = known.evict(pages)
        unused = item.group and not (known.snapshot()["state"] == PRESENT).any()
        del known
        if unused and (item.group, item.header.name) not in self._open:
            with self._group(item.group) as fd:
                remove_unused(fd, item.header)
        return freed

    def _existing(self, item: _Object) -> Pages | None:
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
        """Correct the shared counter, and free what processes wrote that were killed before they said so.

        Returns:
            The objects of the cache.
        """
        assert self.usage is not None
        with self.usage.counting() as sizes:
            objects = list(self._objects(sweep=True))
            sizes.extend(map(_present, objects))
        for item, size in zip(objects, sizes, strict=True):
            if item.allocated > size + -(-size // PAGE) * 4096 + _SLACK and self.holes:
                pages = self._existing(item)
                if pages is not None:
                    pages.sweep()
        return objects

    def _objects(self, *, sweep: bool = False) -> Iterator[_Object]:
        """Yield what the cache has, and with `sweep` delete objects that are damaged and in no use."""
        if self.folder is None:
            for pages in list(self._private.values()):
                yield _Object("", pages.header, pages.snapshot(), os.fstat(pages.fd).st_blocks * 512)
            return
        for group in filter(_GROUP.fullmatch, os.listdir(self._fd)):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._group(group) as fd:
                for name in sorted(os.listdir(fd)):
                    match = _MAP.fullmatch(name)
                    item = match and _peek(fd, group, match[1])
                    if item:
                        yield item
                    elif match and sweep:
                        remove_damaged(fd, match[1])

    def list(self) -> list[Cached]:
        """Return the objects of the cache, in order of their URLs."""
        return sorted(map(_cached, self._objects())) if self.usage is not None else []

    def clear(self, prefix: str | None = None) -> int:
        """Delete the objects whose URL begins with a prefix, or all. Pinned pages stay, and so do objects in use as
        files without pages.

        Returns:
            The bytes freed.
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
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self.disabled = True


class _Nowhere:
    """The cache of objects that cannot be cached: nothing is ever present."""

    usage: Usage | None = None
    disabled = True
    holes = True
    corrupt = 0

    def reserve(self, size: int) -> bool:  # noqa: ARG002
        return False

    def disable(self, error: OSError) -> None:
        pass


def _store(url: str) -> bytes:
    scheme, host = urlsplit(url)[:2]
    return f"{scheme}://{host}".encode("utf-8", "surrogateescape")


def _peek(folder: int, group: str, name: str) -> _Object | None:
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


def _present(item: _Object) -> int:
    return int(page_sizes(item.header, np.flatnonzero(item.records["state"] == PRESENT)).sum())


def _cached(item: _Object) -> Cached:
    here = np.flatnonzero(item.records["state"] == PRESENT)
    used = item.records["last_use"][here].max() / 1e9 if len(here) else 0.0
    return Cached(item.header.url, item.header.version, _present(item), item.header.size, float(used))
