"""Read ahead into the page cache: segments whose bytes lie on disk, and which bytes to fetch into it.

All processes of a machine together fetch a page once: the process that claims it requests it, and the others wait.
Bytes that the cache cannot take (a full or read-only disk, too many pinned pages) are kept in memory, as without a
cache.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from feedmill.storage.base import Entry, OnDisk
from feedmill.storage.cache.page_locks import RangeLock
from feedmill.storage.cache.pages import PAGE, PageCache, Pages
from feedmill.storage.fetching.fetch import fetcher
from feedmill.storage.fetching.flights import Flight
from feedmill.storage.fetching.segments import Owner, Segment, SegmentStore

if TYPE_CHECKING:
    from feedmill.storage.fetching.fetch import Body

Int64s = npt.NDArray[np.int64]
Unit = Literal["auto", "block", "shard"]

_WAIT, _WAIT_TIMES = 30.0, 4.0
"""Time in seconds to wait for another process that is fetching pages, or this many times the usual time of a request if
that is longer. Then the pages are requested here, too: the other process may have been stopped."""
_TRUST = 5.0
"""Time in seconds for which another process is not suspected to hang: on a busy machine it waits for its turn."""
_TRIES = 3
"""How often to claim missing pages before the bytes are requested without the cache."""
WHOLE_SHARE = 0.9
"""Objects are fetched as a whole only if together they take at most this share of the cache."""


class PagedSegment(Segment):
    """A segment whose bytes lie in the page cache.

    Attributes:
        pages: cached pages of its object.
        paging: counts fetched bytes.
        seen: `Pages.evictions` when all pages were last known to be present; -1 if they never were.
    """

    paged = True

    __slots__ = ("pages", "paging", "seen")

    def __init__(
        self,
        owner: Owner,
        store: SegmentStore,
        key: str,
        begin: int,
        end: int,
        last: int,
        pages: Pages,
        paging: Paging,
    ) -> None:
        super().__init__(owner, store, key, begin, end, last)
        self.pages, self.paging = pages, paging
        self.seen = -1

    def _submit(self) -> Future[Any]:
        seen = self.pages.evictions
        if self.pages.trusted(self.begin, self.end):
            self.seen = seen
            fetcher().cached += self.size
            present: Future[Any] = Future()
            present.set_result(None)
            return present
        return fetcher().start(self.size, self._request)

    def _request(self, flight: Flight) -> Body | None:
        """Fetch the missing pages; return None, or the bytes of the segment if the cache cannot take them."""
        limit = 0.0
        for _ in range(_TRIES):
            seen = self.pages.evictions
            if self.pages.verify(self.begin, self.end):
                self.seen = seen
                return None
            if self.paging.cache.disabled:
                break
            with self.pages.claim(self.begin, self.end) as claim:
                for begin, end in claim.mine:
                    refused = self._fetch(begin, end, flight, claim.lock)
                    if refused is not None:
                        return self._in_memory(flight, begin, refused)
            if not limit:
                usual = fetcher().lane(self.store, self.size).quantile(0.95)
                limit = time.monotonic() + max(_WAIT, _WAIT_TIMES * usual)
            flight.since = time.monotonic() + _TRUST  # so that `Fetcher.wait` hedges later: the other request may hang
            for begin, end in claim.others:
                self.pages.wait(begin, end, max(0.0, limit - time.monotonic()))
            flight.since = None
        return self._in_memory(flight)

    def _request_again(self, flight: Flight) -> Body | None:
        """Fetch the missing pages although they are claimed, because their request hangs."""
        if self.paging.cache.disabled:
            return self._in_memory(flight)
        for begin, end in self.pages.missing(self.begin, self.end):
            refused = self._fetch(begin, end, flight)
            if refused is not None:
                return self._in_memory(flight, begin, refused)
        return None

    def _fetch(self, begin: int, end: int, flight: Flight, lock: RangeLock | None = None) -> Body | None:
        """Request whole pages and put them; return None, or their bytes if the cache did not take them."""
        data = fetcher().request(self.store, self.key, begin, end, flight)
        kept = self.pages.put(begin, memoryview(data), lock)
        self.paging.count(end - begin, kept=kept)
        return None if kept else data

    def _in_memory(self, flight: Flight, begin: int = 0, fetched: Body = b"") -> Body:
        """Return the bytes of the segment; request those that are not among the bytes fetched from `begin` on."""
        if not fetched:
            return fetcher().request(self.store, self.key, self.begin, self.end, flight)
        end = begin + len(fetched)
        found = [memoryview(fetched)[max(0, self.begin - begin) : self.end - begin]]
        if self.begin < begin:
            found.insert(0, memoryview(fetcher().request(self.store, self.key, self.begin, begin, flight)))
        if end < self.end:
            found.append(memoryview(fetcher().request(self.store, self.key, end, self.end, flight)))
        return found[0] if len(found) == 1 else b"".join(found)

    def view(self, begin: int, end: int) -> memoryview | None:
        """Wait for the request and return a subrange of its bytes, from memory or from the cache; None if it failed."""
        data = self.result()
        if data is not None:
            return self._subrange(data, begin, end)
        try:
            content = self.pages.read(begin, end)
        except OSError:
            return None
        return None if content is None else memoryview(content)

    @property
    def on_disk(self) -> bool:
        """Wait for the request; return whether the bytes may now be read from the descriptor of the pages."""
        if self.seen == self.pages.evictions:
            return True
        if self.result() is not None:
            return False
        now = self.pages.evictions
        if self.seen != now:
            if not self.pages.trusted(self.begin, self.end):
                return False
            self.seen = now
        return True


def on_disk(segments: Sequence[Segment], rows: Int64s) -> OnDisk | None:
    """Wait for segments, and return the descriptors of ranges; None unless all of them are in one page cache.

    Args:
        segments: the segments, each once.
        rows: int64[n], number of the segment that contains each range.
    """
    if not all(isinstance(segment, PagedSegment) and segment.on_disk for segment in segments):
        return None
    paged = cast(Sequence[PagedSegment], segments)
    usage = paged[0].pages.usage if paged else None
    if usage is None:
        return None
    before = usage.evictions
    descriptors = np.asarray([segment.pages.fd for segment in paged], np.int64)
    # Those that were seen before another one was evicted may be gone.
    if not all(segment.seen == before for segment in paged):
        return None
    return OnDisk(descriptors[rows], lambda: usage.evictions == before, segments)


class Paging:
    """Decides which bytes of objects are fetched into the page cache.

    Args:
        cache: the page cache.
        unit: ``block`` fetches the pages that are needed; ``shard`` fetches whole objects; ``auto`` fetches whole
            objects if the needed bytes are scattered over them and all objects will fit into the cache.

    Attributes:
        fetched: number of bytes that were requested and cached.
        refused: number of bytes that the cache did not take.
    """

    def __init__(self, cache: PageCache, unit: Unit = "auto") -> None:
        self.cache, self.unit = cache, unit
        self.fetched = self.refused = 0
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}  # by URL of the store: objects that it will have
        self._known: dict[str, tuple[set[str], int]] = {}  # those that were opened, and their size together

    def count(self, size: int, *, kept: bool) -> None:
        """Count bytes that were requested, and whether the cache took them."""
        with self._lock:
            if kept:
                self.fetched += size
            else:
                self.refused += size

    def open(self, store: SegmentStore, keys: Sequence[str], count: int) -> list[Pages | None]:
        """Return the pages of objects; None for objects that do not exist. Raises as `Store.entries`.

        Args:
            count: number of objects of the store that will be opened in all.
        """
        self._counts[store.url] = max(count, self._counts.get(store.url, 0))
        pages: list[Pages | None] = [store.whole.of(self.cache, key) for key in keys]
        missing = [number for number, found in enumerate(pages) if found is None]
        for number, entry in zip(missing, store.entries([keys[number] for number in missing]), strict=True):
            if entry is not None:
                self._add(store.url, entry)
                pages[number] = self.cache.open(f"{store.url}/{keys[number]}", entry.version, entry.size)
        return pages

    def _add(self, url: str, entry: Entry) -> None:
        with self._lock:
            known, size = self._known.get(url, (set(), 0))
            if entry.path not in known:
                known.add(entry.path)
                self._known[url] = known, size + entry.size

    def _expected(self) -> float:
        """Return the bytes of all objects, as far as those that were opened tell."""
        with self._lock:
            return sum(
                size / len(known) * max(len(known), self._counts[url]) for url, (known, size) in self._known.items()
            )

    def whole(self, begins: Int64s, ends: Int64s, *, awaited: bool) -> bool:
        """Return whether to fetch a whole object for ranges of it.

        Args:
            begins, ends: int64[n], ascending.
            awaited: whether the reader waits for the ranges, as for those of a first batch; whole objects would delay
                it.
        """
        if self.cache.disabled:
            return False
        if self.unit != "auto":
            return self.unit == "shard"
        if awaited or self._expected() > WHOLE_SHARE * self.cache.size:
            return False
        first, last = begins // PAGE, -(-ends // PAGE)
        touched = int(np.minimum(last - first, last - np.concatenate(([-1], np.maximum.accumulate(last)[:-1]))).sum())
        return touched * PAGE > 2 * int((ends - begins).sum())
