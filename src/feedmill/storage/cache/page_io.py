"""The pages of one object in the page cache (`Pages`): read, write, claim and pin them.

Readers take no locks: they compare the generation of a page before and after the read. Writers and evictions exclude
each other by locks that the kernel releases when their holder dies (`page_locks.py`). A page is marked as present only
after its bytes are written, so a killed process leaves at worst missing pages.

`PageCache` in ``pages.py`` opens objects and limits their size. ``page_states.py`` has the records of pages, and
``page_eviction.py`` frees their space.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.storage.cache.page_eviction import EvictablePages
from feedmill.storage.cache.page_locks import Claim, RangeLock, is_locked
from feedmill.storage.cache.page_map import CLAIM, PAGE, PIN, PRESENT, WRITE, page_sizes, runs
from feedmill.storage.cache.page_states import Int64s
from feedmill.storage.cache.usage import Usage

Buffer = bytes | bytearray | memoryview
_LONGEST_PAUSE = 0.1
"""Longest pause in seconds between two checks of `Pages.wait`, in which many threads may be at once."""


class Pages(EvictablePages):
    """The cached pages of one version of an object. Open it by `PageCache.open`. All methods are thread-safe.

    Attributes: as `PageStates`.
    """

    def claim(self, begin: int, end: int) -> Claim:
        """Claim the missing pages of a byte range for fetching, without waiting.

        Returns:
            The claim, with the ranges to fetch and those that others are fetching.

        Raises:
            OSError: too many files are open.
        """
        first, last = self._span(begin, end)
        lock = RangeLock(self._files.map)
        taken = np.zeros(last - first, np.bool_)
        for low, high in runs(self._records["state"][first:last] != PRESENT):
            for a, b in lock.take_parts(fcntl.F_WRLCK, CLAIM, first + low, first + high):
                taken[a - first : b - first] = True
        # Check again: a page may have been put, and its claim released, before it was locked here.
        absent = self._records["state"][first:last] != PRESENT
        for low, high in runs(taken & ~absent):
            lock.drop(CLAIM + first + low, high - low)
        mine, others = runs(taken & absent), runs(absent & ~taken)
        return Claim(lock, self._ranges(mine, first), self._ranges(others, first))

    def wait(self, begin: int, end: int, timeout: float | None = None) -> bool:
        """Wait while others fetch missing pages of a byte range.

        Args:
            timeout: seconds; None for no limit. It also waits for a claim of the caller itself.

        Returns:
            Whether all pages are present. If not, nobody is fetching one of them, or the time is over.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        pause = 0.0005
        while True:
            # First the locks, then the state: a claim is released after its pages are put.
            missing = self.missing(begin, end)
            fetching = any(is_locked(self._files.map, CLAIM + a // PAGE, -(-b // PAGE) - a // PAGE) for a, b in missing)
            if not self.missing(begin, end):
                return True
            if not fetching or (limit is not None and time.monotonic() >= limit):
                return False
            time.sleep(pause if limit is None else max(0.0, min(pause, limit - time.monotonic())))
            pause = min(_LONGEST_PAUSE, 1.25 * pause)

    def put(self, begin: int, data: Buffer, lock: RangeLock | None = None) -> bool:
        """Store bytes of the object. Present pages are not written again.

        Args:
            begin: offset of the first byte, a multiple of `PAGE`.
            data: whole pages, or up to the end of the object.
            lock: that of a `Claim` of this object; without it, the map is opened once more for the locks of the pages.

        Returns:
            Whether the bytes are stored; False if the cache is disabled, or is full of pinned pages.

        Raises:
            ValueError: the range does not consist of whole pages.
        """
        view = memoryview(data).cast("B")
        end = begin + len(view)
        first, last = self._span(begin, end)
        if begin % PAGE or (end % PAGE and end != self.size):
            raise ValueError(f"{begin}-{end} is not a range of whole pages of {PAGE} bytes")
        owner = self._owner
        usage = owner.usage
        if owner.disabled or usage is None:
            return False
        # Pinned, so that evictions for the missing pages do not evict the present ones.
        some = bool((self._records["state"][first:last] == PRESENT).any())
        pin = self.pinned(np.asarray([begin]), np.asarray([end])) if some else contextlib.nullcontext()
        with pin:
            return self._put(first, last, begin, view, usage, lock)

    def _put(self, first: int, last: int, begin: int, view: memoryview, usage: Usage, taken: RangeLock | None) -> bool:
        """Reserve the bytes of the missing pages, and write them under their locks."""
        owner = self._owner
        missing = self._records["state"][first:last] != PRESENT
        if not missing.any():
            return True
        reserved = int(page_sizes(self.header, first + np.flatnonzero(missing)).sum())
        if not owner.reserve(reserved):
            return False
        try:
            with RangeLock(self._files.map) if taken is None else contextlib.nullcontext(taken) as lock:
                for low, high in runs(missing):
                    # In ascending order and one by one, so that two writers never wait for each other.
                    with lock.holding(fcntl.F_WRLCK, WRITE + first + low, high - low):
                        absent = self._records["state"][first + low : first + high] != PRESENT
                        for a, b in ((first + low + a, first + low + b) for a, b in runs(absent)):
                            part = view[a * PAGE - begin : min(b * PAGE, self.size) - begin]
                            self._write(a, b, part, usage)
                            reserved -= len(part)
        except OSError as error:
            owner.disable(error)
            return False
        finally:
            usage.release(reserved)
        return True

    def _write(self, first: int, last: int, view: memoryview, usage: Usage) -> None:
        """Write missing pages. The caller must have their write locks."""
        done = 0
        while done < len(view):
            done += os.pwrite(self.fd, view[done:], first * PAGE + done)
        records = self._records[first:last]
        starts = range(0, len(view), PAGE)
        records["digest"] = [xxhash.xxh3_64_intdigest(view[offset : offset + PAGE]) for offset in starts]
        records["generation"] += 1
        records["session"] = self._mapped.session
        records["last_use"] = time.time_ns()
        with usage.storing(len(view)):
            records["state"] = PRESENT

    def read(self, begin: int, end: int, into: bytearray | memoryview | None = None) -> bytes | memoryview | None:
        """Read a byte range from the cache.

        Args:
            into: a buffer of at least `end - begin` bytes to read into, instead of new memory.

        Returns:
            The bytes, or a view of them in `into`; None if a page is missing or corrupt.

        Raises:
            OSError: the file cannot be read.
        """
        first, last = self._span(begin, end)
        records = self._records[first:last]
        before = records["generation"].copy()
        if not self._verify(first, last):
            return None
        data = self._pread(begin, end) if into is None else self._preadv(begin, end, into)
        if (records["state"] != PRESENT).any() or (records["generation"] != before).any():
            return None  # evicted meanwhile
        if data is None:
            self._drop(first, last, "truncated")
            return None
        records["last_use"] = time.time_ns()
        return data

    def _pread(self, begin: int, end: int) -> bytes | memoryview | None:
        data = os.pread(self.fd, end - begin, begin)
        # Fewer bytes than requested: the file is truncated, or one call cannot read that many.
        return data if len(data) == end - begin else self._preadv(begin, end, bytearray(end - begin))

    def _preadv(self, begin: int, end: int, into: bytearray | memoryview) -> memoryview | None:
        data = memoryview(into).cast("B")[: end - begin]
        done = 0
        while done < len(data):
            length = os.preadv(self.fd, [data[done:]], begin + done)
            if not length:
                return None
            done += length
        return data

    def pinned(self, begins: Int64s, ends: Int64s) -> contextlib.AbstractContextManager[npt.NDArray[np.bool_]]:
        """Prevent the eviction of the pages of byte ranges in a ``with`` block.

        The block gets bool[n], which tells for each range whether it is present and verified. Pages that are put
        meanwhile are pinned as well. Pins are shared locks, so those of a killed process are released by the kernel.

        Args:
            begins: int64[n], first bytes.
            ends: int64[n], ends of the ranges.
        """
        return self._pinned(np.asarray(begins, np.int64), np.asarray(ends, np.int64))

    @contextlib.contextmanager
    def _pinned(self, begins: Int64s, ends: Int64s) -> Iterator[npt.NDArray[np.bool_]]:
        filled = ends > begins
        edges = np.zeros(self.header.pages + 1, np.int64)
        np.add.at(edges, begins[filled] // PAGE, 1)
        np.add.at(edges, -(-ends[filled] // PAGE), -1)
        with RangeLock(self._files.map) as lock:
            pinned = np.cumsum(edges[:-1]) > 0
            for first, last in runs(pinned):
                lock.take(fcntl.F_RDLCK, PIN + first, last - first, wait=True)
            for first, last in runs(pinned & (self._records["session"] != self._mapped.session)):
                self._verify(first, last)
            yield self.present(begins, ends)
