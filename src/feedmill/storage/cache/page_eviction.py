"""Evict pages of one object from the page cache (`EvictablePages`): when they are needed, and how they are freed."""

from __future__ import annotations

import fcntl
import os

import numpy as np

from feedmill.storage.cache.page_locks import RangeLock, punch_hole
from feedmill.storage.cache.page_map import FAR, PAGE, PIN, PRESENT, WRITE, page_sizes, runs
from feedmill.storage.cache.page_states import Int64s, PageStates

_AT_ONCE = 512
"""Number of pages that are evicted under one lock; more would make pins wait for longer."""


class EvictablePages(PageStates):
    """The pages of one version of an object, with what evictions need; see `feedmill.storage.cache.page_io.Pages`."""

    def plan_uses(self, pages: Int64s, uses: Int64s, *, until: int = FAR) -> None:
        """Record when a plan of this process will next read pages; see `soonest_uses`.

        Pages in no plan of a running process are evicted first, then those with the farthest next use.

        Args:
            pages: int64[n], numbers of pages, each once.
            uses: int64[n], the position in the plan that reads each page next; `FAR` if there is none.
            until: do not change pages whose recorded use is after this position.
        """
        recorded = self._records["next_use"]
        if until < FAR:
            changed = recorded[pages] <= until
            pages, uses = pages[changed], uses[changed]
        usage = self._owner.usage
        recorded[pages] = uses
        self._records["run"][pages] = usage.token() if usage else 0

    def evict(self, pages: Int64s) -> int:
        """Evict pages that are neither pinned nor being written.

        Args:
            pages: int64[n], numbers of pages in ascending order.

        Returns:
            The number of bytes freed.

        Raises:
            OSError: the file system cannot free the pages.
        """
        self._announce()
        if not self._owner.holes:
            return self._empty()
        flags = np.zeros(self.header.pages, np.bool_)
        flags[pages] = True
        freed = 0
        for first, last in runs(flags):
            for low in range(first, last, _AT_ONCE):
                with RangeLock(self._files.map) as lock:
                    for a, b in lock.take_parts(fcntl.F_WRLCK, WRITE, low, min(low + _AT_ONCE, last)):
                        for c, d in lock.take_parts(fcntl.F_WRLCK, PIN, a, b):
                            size = self._mark_missing(c, d)
                            try:
                                if not punch_hole(self.fd, c * PAGE, (d - c) * PAGE):
                                    self._owner.holes = False
                            finally:
                                self._release(size)
                            freed += size
                if not self._owner.holes:
                    return freed + self._empty()
        return freed

    def sweep(self) -> None:
        """Free the disk space of missing pages, which killed processes wrote. Raises `OSError`."""
        if not self._owner.holes:
            return
        for low in range(0, self.header.pages, _AT_ONCE):
            with RangeLock(self._files.map) as lock:
                for a, b in lock.take_parts(fcntl.F_WRLCK, WRITE, low, min(low + _AT_ONCE, self.header.pages)):
                    # Checked under the lock, so that a page that another thread has put meanwhile is kept.
                    for c, d in runs(self._records["state"][a:b] != PRESENT):
                        if not punch_hole(self.fd, (a + c) * PAGE, (d - c) * PAGE):
                            self._owner.holes = False
                            return

    def _empty(self) -> int:
        """Evict all pages by truncating the file, if holes are unsupported; none if one of them is in use.

        Returns:
            The number of bytes freed.
        """
        pages = self.header.pages
        with RangeLock(self._files.map) as lock:
            if not (lock.take(fcntl.F_WRLCK, WRITE, pages) and lock.take(fcntl.F_WRLCK, PIN, pages)):
                return 0
            freed = self._mark_missing(0, pages)
            try:
                os.ftruncate(self.fd, 0)
                os.ftruncate(self.fd, self.size)
            finally:
                self._release(freed)
        return freed

    def _mark_missing(self, first: int, last: int) -> int:
        """Mark pages as missing, before their bytes are freed: readers must see another generation.

        Returns:
            The number of their bytes, which stay reserved until `_release`.
        """
        records = self._records[first:last]
        size = int(page_sizes(self.header, first + np.flatnonzero(records["state"] == PRESENT)).sum())
        with self._freeing() as freed:
            records["generation"] += 1
            records["state"] = 0
            freed.append(size)
        return size


def soonest_uses(begins: Int64s, ends: Int64s, uses: Int64s) -> tuple[Int64s, Int64s]:
    """Return the pages of byte ranges, ascending and each once, and the soonest use of each, int64[m] both.

    Args:
        begins, ends: int64[n]; ranges that end where they begin or before have no pages. Ranges of several objects are
            distinguished by bits above those of offsets, which then are also above the numbers of the pages.
        uses: int64[n].
    """
    first = begins // PAGE
    counts = np.maximum((ends - 1) // PAGE - first + 1, 0) * (ends > begins)
    rows = np.repeat(np.arange(len(begins)), counts)
    pages = first[rows] + np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.argsort(pages, kind="stable")  # fast for ranges that are nearly in order
    pages, rows = pages[order], rows[order]
    starts = np.flatnonzero(np.concatenate(([True], pages[1:] != pages[:-1]))[: len(pages)])
    if not len(starts):
        return pages, pages
    return pages[starts], np.minimum.reduceat(uses[rows], starts)
