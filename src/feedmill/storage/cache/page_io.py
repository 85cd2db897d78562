"""The pages of one object in the page cache: which are present, reading, writing, claiming, pinning and evicting them.

A page is `PAGE` bytes of the object, at its own offset in a sparse file. Readers take no locks: they compare the
generation of a page before and after. Writing and evicting exclude each other by locks that the kernel releases when
their holder dies (`pagelocks`), and the record of a page says "present" only after its bytes are written. A process
that is killed therefore leaves missing pages at worst.

`PageCache` in ``pages.py`` opens objects and limits their size.
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
_LONGEST_PAUSE = 0.1  # many threads may wait at once; before, a fifth of the time waited so far
_AT_ONCE = 512  # pages evicted under one lock: a pin waits for that long at most


class Owner(Protocol):
    """What pages ask of their cache."""

    usage: Usage | None
    disabled: bool
    holes: bool
    corrupt: int

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes by `Usage.reserve`, evicting pages until they fit; return whether they do."""

    def disable(self, error: OSError) -> None:
        """Stop writing."""


class Pages:
    """The cached pages of one version of an object. Open it by `PageCache.open`. All methods are thread-safe.

    Attributes:
        fd: descriptor of a file with the object's bytes at their own offsets. Only bytes of pages that are pinned and
            present may be read from it.
        size: bytes of the object.
    """

    def __init__(self, owner: Owner, header: Header, files: Usable, mapped: MappedFile) -> None:
        self.header, self.size, self.fd = header, header.size, files.data
        self._owner, self._files, self._mapped = owner, files, mapped
        self._records: Records = mapped.records
        self._close = weakref.finalize(self, _close, files, mapped)

    def missing(self, begin: int, end: int) -> list[Range]:
        """Return the byte ranges of missing pages between two offsets, aligned to pages and cut at the object's end."""
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
        """Return whether all pages of a byte range are present, and need not be compared with their hashes any more."""
        first, last = self._span(begin, end)
        records = self._records[first:last]
        return bool((records["state"] == PRESENT).all() and (records["session"] == self._mapped.session).all())

    def verify(self, begin: int, end: int) -> bool:
        """Compare pages that an earlier run left with their hashes; return whether all pages are present.

        Raises:
            OSError: the file cannot be read.
        """
        return self._verify(*self._span(begin, end))

    def claim(self, begin: int, end: int) -> Claim:
        """Claim the missing pages of a byte range for fetching, without waiting.

        Returns:
            A `Claim`, with what to fetch and what somebody else is fetching.

        Raises:
            OSError: too many files are open.
        """
        first, last = self._span(begin, end)
        lock = RangeLock(self._files.map)
        taken = np.zeros(last - first, np.bool_)
        for low, high in runs(self._records["state"][first:last] != PRESENT):
            for a, b in lock.take_parts(fcntl.F_WRLCK, CLAIM, first + low, first + high):
                taken[a - first : b - first] = True
        # Look again: a page may have been put, and its claim released, before it was locked here.
        absent = self._records["state"][first:last] != PRESENT
        for low, high in runs(taken & ~absent):
            lock.drop(CLAIM + first + low, high - low)
        mine, others = runs(taken & absent), runs(absent & ~taken)
        return Claim(lock, self._ranges(mine, first), self._ranges(others, first))

    def wait(self, begin: int, end: int, timeout: float | None = None) -> bool:
        """Wait while others fetch missing pages of a byte range.

        Args:
            timeout: seconds; None for no limit. A claim of the caller's own is waited for as well.

        Returns:
            Whether all pages are present. If not, nobody is fetching some of them, or the time is over.
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

    def put(self, begin: int, data: Buffer) -> bool:
        """Store bytes of the object. Pages that are present stay as they are.

        Args:
            begin: offset of the first byte, a multiple of `PAGE`.
            data: whole pages, or up to the end of the object.

        Returns:
            False if the cache is disabled, or has no room because too much is pinned.

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
        # Making room must not evict those of the pages that are present.
        pin = self.pinned(np.asarray([begin]), np.asarray([end])) if len(view) else contextlib.nullcontext()
        with pin:
            return self._put(first, last, begin, view, usage)

    def _put(self, first: int, last: int, begin: int, view: memoryview, usage: Usage) -> bool:
        owner = self._owner
        wanted = self._records["state"][first:last] != PRESENT
        if not wanted.any():
            return True
        unused = int(page_sizes(self.header, first + np.flatnonzero(wanted)).sum())
        if not owner.reserve(unused):
            return False
        try:
            with RangeLock(self._files.map) as lock:
                for low, high in runs(wanted):
                    # In ascending order, so that two writers never wait for each other.
                    lock.take(fcntl.F_WRLCK, WRITE + first + low, high - low, wait=True)
                    absent = self._records["state"][first + low : first + high] != PRESENT
                    for a, b in ((first + low + a, first + low + b) for a, b in runs(absent)):
                        part = view[a * PAGE - begin : min(b * PAGE, self.size) - begin]
                        self._write(a, b, part, usage)
                        unused -= len(part)
        except OSError as error:
            owner.disable(error)
            return False
        finally:
            usage.release(unused)
        return True

    def _write(self, first: int, last: int, view: memoryview, usage: Usage) -> None:
        """Write missing pages; the caller has their write locks."""
        done = 0
        while done < len(view):
            done += os.pwrite(self.fd, view[done:], first * PAGE + done)
        records = self._records[first:last]
        starts = range(0, len(view), PAGE)
        records["digest"] = [xxhash.xxh3_64_intdigest(view[at : at + PAGE]) for at in starts]
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
            The bytes, or the part of `into` with them; None if a page is missing or turned out to be corrupt.

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
        # Less than asked: the file was truncated, or this is more than one call reads.
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

    def _verify(self, first: int, last: int) -> bool:
        """Compare the present pages of another session with their hashes; return whether all pages are present."""
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
        """Make present pages missing, though they are pinned."""
        self._announce()
        with locked(self._files.map, WRITE + first, last - first):
            records = self._records[first:last]
            bad = records["state"] == PRESENT
            if generation is not None:
                bad &= records["generation"] == generation
            pages = first + np.flatnonzero(bad)
            size = int(page_sizes(self.header, pages).sum())
            with self._freeing() as freed:
                records["generation"][bad] += 1
                records["state"][bad] = 0
                freed.append(size)
            self._release(size)
        if len(pages):
            owner = self._owner
            if not owner.corrupt:
                logger.warning("page cache: page %d of %s is %s; it is fetched again", pages[0], self.header.url, what)
            owner.corrupt += len(pages)

    def pinned(self, begins: Int64s, ends: Int64s) -> contextlib.AbstractContextManager[npt.NDArray[np.bool_]]:
        """Keep the pages of byte ranges from being evicted while a ``with`` block lasts, or until the process dies.

        The block gets bool[n]: which of the ranges are present, their hashes compared. Pages that are put meanwhile
        are pinned as well. Pins are shared locks, so they need no cleaning up after a process that was killed.

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
            wanted = np.cumsum(edges[:-1]) > 0
            for first, last in runs(wanted):
                lock.take(fcntl.F_RDLCK, PIN + first, last - first, wait=True)
            for first, last in runs(wanted & (self._records["session"] != self._mapped.session)):
                self._verify(first, last)
            yield self.present(begins, ends)

    def plan_use(self, begin: int, end: int, next_use: float) -> None:
        """Note when the pages of a byte range are read next by a plan of this process.

        Args:
            next_use: position in the plan; ``float("inf")`` if it is not known. The farthest are evicted first, after
                the pages that are in no plan of a running process.
        """
        first, last = self._span(begin, end)
        usage = self._owner.usage
        records = self._records[first:last]
        records["next_use"] = FAR if next_use >= FAR else int(next_use)
        records["run"] = usage.token() if usage else 0

    def evict(self, pages: Int64s) -> int:
        """Evict pages that are neither pinned nor being written.

        Args:
            pages: int64[n], numbers of pages in ascending order.

        Returns:
            Bytes of the pages that were present and are evicted.

        Raises:
            OSError: the file system refuses it.
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
                            size = self._forget(c, d)
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
        """Free what killed processes wrote of missing pages. Raises OSError if the file system refuses it."""
        if not self._owner.holes:
            return
        for low in range(0, self.header.pages, _AT_ONCE):
            with RangeLock(self._files.map) as lock:
                for a, b in lock.take_parts(fcntl.F_WRLCK, WRITE, low, min(low + _AT_ONCE, self.header.pages)):
                    # Under the lock: a page that another thread has put meanwhile stays.
                    for c, d in runs(self._records["state"][a:b] != PRESENT):
                        if not punch_hole(self.fd, (a + c) * PAGE, (d - c) * PAGE):
                            self._owner.holes = False
                            return

    def _empty(self) -> int:
        """Evict all pages by truncating the file, where holes are unsupported; nothing if one of them is in use."""
        pages = self.header.pages
        with RangeLock(self._files.map) as lock:
            if not (lock.take(fcntl.F_WRLCK, WRITE, pages) and lock.take(fcntl.F_WRLCK, PIN, pages)):
                return 0
            freed = self._forget(0, pages)
            try:
                os.ftruncate(self.fd, 0)
                os.ftruncate(self.fd, self.size)
            finally:
                self._release(freed)
        return freed

    def _forget(self, first: int, last: int) -> int:
        """Set pages to missing before their bytes go, so that readers see another generation.

        Returns:
            Their bytes, which stay reserved until `_release`.
        """
        records = self._records[first:last]
        size = int(page_sizes(self.header, first + np.flatnonzero(records["state"] == PRESENT)).sum())
        with self._freeing() as freed:
            records["generation"] += 1
            records["state"] = 0
            freed.append(size)
        return size

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
            usage.evicting()

    def snapshot(self) -> Records:
        """Return a copy of the records."""
        return self._records.copy()

    def close(self) -> None:
        """Close the object; no method may be called afterwards. A second call does nothing."""
        self._close()

    def _span(self, begin: int, end: int) -> Range:
        """Return the first page and the end of the pages of a byte range."""
        if not 0 <= begin <= end <= self.size:
            raise ValueError(f"{begin}-{end} is no byte range of an object of {self.size} bytes")
        return (begin // PAGE, -(-end // PAGE)) if end > begin else (begin // PAGE, begin // PAGE)

    def _ranges(self, pages: list[Range], first: int) -> list[Range]:
        return [((first + a) * PAGE, min((first + b) * PAGE, self.size)) for a, b in pages]


def _close(files: Usable, mapped: MappedFile) -> None:
    """Close descriptors; the last user of the map notes that it was closed properly."""
    with contextlib.suppress(OSError):
        if set_lock(files.map, fcntl.F_WRLCK, USERS, 1):
            mapped.end()
        # The mapping has a copy of the descriptor, so that closing alone would not release the locks.
        set_lock(files.map, fcntl.F_UNLCK, 0, 1 << 62)
    files.close()
