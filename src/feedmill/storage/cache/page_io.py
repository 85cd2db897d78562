"""The pages of one object in the page cache (`Pages`): read, write, claim and pin them.

Readers take no locks: they compare the generation of a page before and after the read. Writers and evictions exclude
each other by locks that the kernel releases when their holder dies (`page_locks.py`). A page is marked as present only
after its bytes are written, so a killed process leaves at worst missing pages.

`PageCache` in ``pages.py`` opens objects and limits their size. `PageStates` has the records of pages, `EvictablePages`
frees their space, and `Pages` is both.

A page is `PAGE` bytes of the object, stored at the same offset in a sparse file. Its record says whether it is present,
and has its hash and its generation, which grows whenever the bytes change.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
import weakref
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.storage.cache.page_locks import Claim, Range, RangeLock, is_locked, locked, punch_hole, set_lock
from feedmill.storage.cache.page_map import (
    CLAIM,
    FAR,
    PAGE,
    PIN,
    PRESENT,
    USERS,
    WRITE,
    Header,
    MappedFile,
    Records,
    Usable,
    page_sizes,
    runs,
)
from feedmill.storage.cache.usage import Usage

logger = logging.getLogger("feedmill")

Int64s = npt.NDArray[np.int64]
Buffer = bytes | bytearray | memoryview

_AT_ONCE = 512
"""Number of pages that are evicted under one lock; more would make pins wait for longer."""
_LONGEST_PAUSE = 0.1
"""Longest pause in seconds between two checks of `Pages.wait`, in which many threads may be at once."""


class Owner(Protocol):
    """The part of a `PageCache` that its pages use. Attributes as there."""

    usage: Usage | None
    disabled: bool
    holes: bool
    corrupt: int

    def reserve(self, size: int) -> bool:
        """Reserve bytes, evicting pages if they do not fit; return whether they are reserved."""

    def disable(self, error: OSError) -> None:
        """Stop writing to the cache because of an error."""


class PageStates:
    """The states of the pages of one version of an object. Base class of `Pages`.

    Attributes:
        header: URL, version and size of the object.
        fd: descriptor of a file with the bytes of the object at their offsets. Only pages that are pinned and present
            may be read from it.
        size: size of the object in bytes.
    """

    def __init__(self, owner: Owner, header: Header, files: Usable, mapped: MappedFile) -> None:
        self.header, self.size, self.fd = header, header.size, files.data
        self._owner, self._files, self._mapped = owner, files, mapped
        self._records: Records = mapped.records
        self._close = weakref.finalize(self, _close, files, mapped)

    def missing(self, begin: int, end: int) -> list[Range]:
        """Return the byte ranges of the missing pages of a range, aligned to pages and cut at the object's end."""
        first, last = self._span(begin, end)
        return self._ranges(runs(self._records["state"][first:last] != PRESENT), first)

    def present(self, begins: Int64s, ends: Int64s) -> npt.NDArray[np.bool_]:
        """Return for each byte range whether all of its pages are present; True for empty ranges.

        Args:
            begins: int64[n], first bytes.
            ends: int64[n], ends of the ranges; at most `size`.

        Returns:
            bool[n].
        """
        begins, ends = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
        filled = ends > begins
        if not filled.any():
            return np.ones(len(begins), np.bool_)
        first, last = begins // PAGE, -(-ends // PAGE)
        low, high = self._span(int(begins[filled].min()), int(ends[filled].max()))
        absent = np.zeros(high - low + 1, np.int64)
        np.cumsum(self._records["state"][low:high] != PRESENT, out=absent[1:])
        result = np.ones(len(begins), np.bool_)
        result[filled] = absent[last[filled] - low] == absent[first[filled] - low]
        return result

    @property
    def usage(self) -> Usage | None:
        """Return the counters of the cache; None if it cannot be used."""
        return self._owner.usage

    @property
    def evictions(self) -> int:
        """Return `Usage.evictions`; -1 if the cache cannot be used."""
        return -1 if self._owner.usage is None else self._owner.usage.evictions

    def trusted(self, begin: int, end: int) -> bool:
        """Return whether all pages of a byte range are present, and were written or verified in this session."""
        first, last = self._span(begin, end)
        records = self._records[first:last]
        return bool((records["state"] == PRESENT).all() and (records["session"] == self._mapped.session).all())

    def verify(self, begin: int, end: int) -> bool:
        """Compare pages of earlier sessions with their hashes; return whether all pages are present.

        Raises:
            OSError: the file cannot be read.
        """
        return self._verify(*self._span(begin, end))

    def _verify(self, first: int, last: int) -> bool:
        """Compare present pages of other sessions with their hashes; return whether all pages are present."""
        records, session = self._records, self._mapped.session
        stale = (records["session"][first:last] != session) & (records["state"][first:last] == PRESENT)
        for page in (first + np.flatnonzero(stale)).tolist():
            generation = records["generation"][page]
            data = os.pread(self.fd, PAGE, page * PAGE)
            if xxhash.xxh3_64_intdigest(data) == records["digest"][page]:
                records["session"][page] = session
            else:
                self._drop(page, page + 1, "corrupt", int(generation))
        return not (records["state"][first:last] != PRESENT).any()

    def _drop(self, first: int, last: int, what: str, generation: int | None = None) -> None:
        """Mark corrupt pages as missing, even if they are pinned.

        Args:
            what: what is wrong with them, for the log.
            generation: generation of the corrupt content; a page that was written since is kept.
        """
        self._announce()
        with locked(self._files.map, WRITE + first, last - first):
            records = self._records[first:last]
            corrupt = records["state"] == PRESENT
            if generation is not None:
                corrupt &= records["generation"] == generation
            pages = first + np.flatnonzero(corrupt)
            size = int(page_sizes(self.header, pages).sum())
            with self._freeing() as freed:
                records["generation"][corrupt] += 1
                records["state"][corrupt] = 0
                freed.append(size)
            self._release(size)
        if len(pages):
            owner = self._owner
            if not owner.corrupt:
                logger.warning("page cache: page %d of %s is %s; it is fetched again", pages[0], self.header.url, what)
            owner.corrupt += len(pages)

    def _freeing(self) -> contextlib.AbstractContextManager[list[int]]:
        usage = self._owner.usage
        return contextlib.nullcontext([]) if usage is None else usage.freeing()

    def _release(self, size: int) -> None:
        usage = self._owner.usage
        if usage is not None:
            usage.release(size)

    def _announce(self) -> None:
        usage = self._owner.usage
        if usage is not None:
            usage.announce_eviction()

    def snapshot(self) -> Records:
        """Return a copy of the records."""
        return self._records.copy()

    def close(self) -> None:
        """Close the object; no method may be called afterwards. A second call does nothing."""
        self._close()

    def _span(self, begin: int, end: int) -> Range:
        """Return the first page and the end of the pages of a byte range."""
        if not 0 <= begin <= end <= self.size:
            raise ValueError(f"{begin}-{end} is not a byte range of an object of {self.size} bytes")
        return (begin // PAGE, -(-end // PAGE)) if end > begin else (begin // PAGE, begin // PAGE)

    def _ranges(self, pages: list[Range], first: int) -> list[Range]:
        return [((first + a) * PAGE, min((first + b) * PAGE, self.size)) for a, b in pages]


def _close(files: Usable, mapped: MappedFile) -> None:
    """Close the files. The last user of the map records that it was closed properly."""
    with contextlib.suppress(OSError):
        if set_lock(files.map, fcntl.F_WRLCK, USERS, 1):
            mapped.end()
        # Closing is not enough to release the locks: the mapping has a copy of the descriptor.
        set_lock(files.map, fcntl.F_UNLCK, 0, 1 << 62)
    files.close()


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
