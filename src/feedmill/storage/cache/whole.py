"""Objects of a store that lie in the page cache as a whole (`WholeObjects`): they are read like local files.

Reading ahead finds out which objects are complete, once for each of them. While no page of the cache is evicted they
stay complete, so a batch only looks up a descriptor for each range. Its segments are then needed for the budget alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from feedmill.storage.base import Int64s, OnDisk
from feedmill.storage.cache.page_io import Pages
from feedmill.storage.cache.pages import PageCache
from feedmill.storage.descriptors import file_limit, raise_file_limit

_DESCRIPTORS = 3
"""Descriptors of an open object: its data, its map, and the mapping."""
_SHARE = 8
"""Complete objects may have one of this number of the descriptors that the process may open."""
_UNKNOWN, _ABSENT = -1, -2
_MOST_KNOWN = 64
"""Number of lists of paths whose descriptors are known by number."""


class WholeObjects:
    """The complete objects of one store in one page cache. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: PageCache | None = None
        self._pages: dict[str, Pages] = {}
        self._evictions = -1
        self._known: dict[int, tuple[Sequence[str], Int64s]] = {}

    def add(self, cache: PageCache, key: str, pages: Pages) -> None:
        """Add an object if all of its pages are present, and were written or verified in this session."""
        if self._cache is cache and key in self._pages and self._evictions == pages.evictions:
            return
        seen = pages.evictions  # before the pages are looked at
        if seen < 0 or not pages.trusted(0, pages.size):
            return
        raise_file_limit()
        with self._lock:
            if self._cache is not cache or self._evictions != seen:
                self._cache, self._evictions = cache, seen
                self._pages, self._known = {}, {}
            if key in self._pages or (len(self._pages) + 1) * _DESCRIPTORS > file_limit() // _SHARE:
                return
            self._pages[key] = pages
            for _, descriptors in self._known.values():
                descriptors[descriptors == _ABSENT] = _UNKNOWN

    def of(self, cache: PageCache, key: str) -> Pages | None:
        """Return the pages of an object that was complete; None if it was not, or is in another cache."""
        return self._pages.get(key) if self._cache is cache else None

    def find(self, paths: Sequence[str], key: Callable[[str], str], files: Int64s) -> OnDisk | None:
        """Return the descriptors of the files of ranges; None unless all of these files are complete.

        Args:
            paths: paths of files, the same object at each call.
            key: returns the key of a path.
            files: int64[n], number of each range's file in `paths`.
        """
        cache = self._cache
        usage = None if cache is None else cache.usage
        if usage is None or not len(files):
            return None
        with self._lock:
            seen, owners = self._evictions, self._pages
            if usage.evictions != seen or self._cache is not cache:
                return None
            found = self._known.get(id(paths))
            if found is None or found[0] is not paths:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                found = self._known[id(paths)] = paths, np.full(len(paths), _UNKNOWN, np.int64)
            known = found[1]
            descriptors = known[files]
            unknown = descriptors == _UNKNOWN
            if unknown.any():
                for file in set(files[unknown].tolist()):
                    pages = self._pages.get(key(paths[file]))
                    known[file] = _ABSENT if pages is None else pages.fd
                descriptors = known[files]
        if descriptors.min() < 0:
            return None
        return OnDisk(descriptors, lambda: usage.evictions == seen, (owners,))
