"""Read ahead through the cache: segments whose bytes lie in chunks, and which bytes to fetch into it.

All processes of a machine together fetch a chunk once: the process that claims it requests it, and the others wait.
Bytes that the cache cannot take (a full or read-only disk, too many open chunks) are kept in memory, as without a
cache.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from feedmill.storage.base import Entry, OnDisk
from feedmill.storage.cache.chunks import CachedObject, Chunk, ChunkCache, Claim
from feedmill.storage.fetching.fetch import fetcher
from feedmill.storage.fetching.lanes import Flight
from feedmill.storage.fetching.segments import Located, Owner, Segment, SegmentStore

if TYPE_CHECKING:
    from feedmill.storage.fetching.fetch import Body

Int64s = npt.NDArray[np.int64]
Unit = Literal["auto", "block", "shard"]

_WAIT, _WAIT_TIMES = 30.0, 4.0
"""Time in seconds to wait for another process that is fetching chunks, or this many times the usual time of a request
if that is longer. Then the chunks are requested here, too: the other process may have been stopped."""
_TRUST = 5.0
"""Time in seconds for which another process is not suspected to hang: on a busy machine it waits for its turn."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.1
"""Shortest and longest pause in seconds between two checks, in which many threads may be at once."""
_SCATTERED = 2
"""Ranges are scattered over an object if their chunks have more than this number of times their bytes."""
_WASTED = 4
"""Bytes are fetched without the cache if their chunks have more than this number of times as many, and objects do not
fit into it."""
WHOLE_SHARE = 0.9
"""Objects are fetched as a whole only if together they take at most this share of the cache."""


class CachedSegment(Segment):
    """A segment of whole chunks, whose bytes lie in the cache.

    Attributes:
        cached: the object.
        use: counts fetched bytes.
        chunks: the open chunks; None for those that are not present yet.
    """

    cacheable = True

    __slots__ = ("cached", "chunks", "numbers", "use")

    def __init__(
        self,
        owner: Owner,
        store: SegmentStore,
        key: str,
        begin: int,
        end: int,
        last: int,
        cached: CachedObject,
        use: CacheUse,
    ) -> None:
        super().__init__(owner, store, key, begin, end, last)
        self.cached, self.use = cached, use
        self.numbers = cached.numbers(begin, end)
        self.chunks: list[Chunk | None] = [None] * len(self.numbers)

    def _open(self) -> bool:
        """Open the chunks that are present; return whether all are."""
        for place, number in enumerate(self.numbers):
            self.chunks[place] = self.chunks[place] or self.cached.open(number)
        return None not in self.chunks

    def _submit(self) -> Future[Any]:
        if self._open():
            fetcher().cached += self.size
            present: Future[Any] = Future()
            present.set_result(None)
            return present
        return fetcher().start(self.size, self._request)

    def _request(self, flight: Flight) -> Body | None:
        """Fetch the missing chunks; return None, or the bytes of the segment if the cache cannot take them."""
        pause, limit = _FIRST_PAUSE, 0.0
        while not self._open():
            if self.use.cache.disabled:
                break
            claims = self._claims()
            if claims:
                refused = self._fill(claims, flight)
                if refused is not None:
                    return refused
                continue
            if not self.cached.may_be_claimed():
                break
            now = time.monotonic()  # others are fetching them
            limit = limit or now + max(_WAIT, _WAIT_TIMES * fetcher().lane(self.store, self.size).quantile(0.95))
            if now >= limit or flight.dropped:
                break
            if flight.since is None:  # `Fetcher.wait` hedges later: the other request may hang
                flight.since = now + _TRUST
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, 1.25 * pause)
        else:
            return None
        flight.since = None
        return self._request_again(flight)

    def _request_again(self, flight: Flight) -> Body | None:
        """Fetch the missing chunks although they are claimed, because their request hangs."""
        if self._open():
            return None
        claims = self._claims(although_claimed=True)
        refused = self._fill(claims, flight)
        return refused if refused is not None or self._open() else self._in_memory(flight)

    def _claims(self, *, although_claimed: bool = False) -> list[Claim]:
        missing = [number for number, chunk in zip(self.numbers, self.chunks, strict=True) if chunk is None]
        held = self.use.held
        claims = [self.cached.claim(number, although_claimed=although_claimed, held=held) for number in missing]
        return [claim for claim in claims if claim]

    def _fill(self, claims: Sequence[Claim], flight: Flight) -> Body | None:
        """Request claimed chunks, neighbors together, and put them.

        Returns:
            None, or the bytes of the segment if the cache does not take a chunk.
        """
        try:
            for group in _runs(claims):
                first, size = group[0].number, self.cached.chunk
                begin, end = first * size, min((group[-1].number + 1) * size, self.cached.size)
                data = fetcher().request(self.store, self.key, begin, end, flight)
                view = memoryview(data)
                if len(view) < end - begin:  # the object is shorter than its entry says: reading it raises the error
                    return self._in_memory(flight, begin, data)
                for claim in group:
                    at = (claim.number - first) * size
                    chunk = claim.put(view[at : at + size], self.use.held)
                    self.use.count(self.cached.length(claim.number), kept=chunk is not None)
                    if chunk is None:
                        return self._in_memory(flight, begin, data)
                    self.chunks[claim.number - self.numbers[0]] = chunk
            return None
        finally:
            for claim in claims:
                claim.drop()

    def _in_memory(self, flight: Flight, begin: int = 0, fetched: Body = b"") -> Body:
        """Return the bytes of the segment: from those fetched from `begin` on, present chunks, and requests."""
        view, behind, found, at = memoryview(fetched), begin + len(fetched), list[memoryview](), self.begin
        while at < self.end:
            if begin <= at < behind:
                data = view[at - begin : self.end - begin]
            else:
                data = self._stored(at)
                if not data:
                    stops = [number * self.cached.chunk for number in self.numbers if self._chunk(number)]
                    stops += [begin] if fetched else []
                    end = min((stop for stop in stops if stop > at), default=self.end)
                    data = memoryview(fetcher().request(self.store, self.key, at, end, flight))
                    if len(data) < end - at:  # as in `_fill`
                        return b"".join([*found, data])
            found.append(data)
            at += len(data)
        return found[0] if len(found) == 1 else b"".join(found)

    def _stored(self, begin: int) -> memoryview:
        """Return the bytes of a present chunk that begins there; none if it is absent."""
        chunk = self.opened(begin // self.cached.chunk)
        data = os.pread(chunk.fd, chunk.size, 0) if chunk and begin % self.cached.chunk == 0 else b""
        return memoryview(data)

    def _chunk(self, number: int) -> Chunk | None:
        return self.chunks[number - self.numbers[0]]

    def cancel(self) -> None:
        super().cancel()
        self.chunks = [None] * len(self.chunks)  # now: a reference cycle would keep them open until garbage collection

    def view(self, begin: int, end: int) -> memoryview | None:
        """Wait for the request and return a subrange of its bytes, from memory or from the cache; None if it failed."""
        data = self.result()
        if data is not None:
            return self._subrange(data, begin, end)
        found = []
        for number in self.cached.numbers(begin, end):
            chunk, first = self.opened(number), number * self.cached.chunk
            if chunk is None:
                return None
            low, high = max(begin - first, 0), min(end - first, chunk.size)
            found.append(os.pread(chunk.fd, high - low, low))
        data = found[0] if len(found) == 1 else b"".join(found)
        return memoryview(data) if len(data) == end - begin else None

    def opened(self, number: int) -> Chunk | None:
        """Return a chunk with a descriptor; None if it was evicted because it had none."""
        chunk = self._chunk(number)
        return chunk and chunk.reopened()

    @property
    def on_disk(self) -> bool:
        """Wait for the request; return whether the bytes are in the cache."""
        return None not in self.chunks or self.result() is None


def _runs(claims: Sequence[Claim]) -> Iterator[list[Claim]]:
    """Yield claims of consecutive chunks together."""
    for _, group in itertools.groupby(enumerate(claims), lambda pair: pair[1].number - pair[0]):
        yield [claim for _, claim in group]


_ZERO = np.zeros(1, np.int64)


class _Files:
    """The chunk files of segments, as far as they are open.

    Attributes:
        cacheable: bool[m], whether the bytes of each segment may lie in the cache.
        chunks: the chunks of all segments, one after the other, which stay open as long as this object is referenced.
        descriptors: int64[k], their descriptors; -1 for those that are not open.
        base: int64[m], for each segment what a chunk's number and its place in `descriptors` differ by.
        size: bytes of a chunk.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.cacheable = np.asarray([segment.cacheable for segment in segments], np.bool_)
        cached = [segment if isinstance(segment, CachedSegment) else None for segment in segments]
        self.chunks = [chunk for segment in cached if segment for chunk in segment.chunks]
        self.descriptors = np.asarray([-1 if chunk is None else chunk.fd for chunk in self.chunks], np.int64)
        counts = [len(segment.numbers) if segment else 0 for segment in cached]
        self.base = np.cumsum([0, *counts[:-1]]) - [segment.numbers.start if segment else 0 for segment in cached]
        self.size = next((segment.cached.chunk for segment in cached if segment), 1)


def on_disk(located: Located, offsets: Int64s, lengths: Int64s) -> OnDisk | None:
    """Wait for segments, and return where ranges lie; None unless all of them are in the cache.

    Args:
        located: the segments that contain the ranges.
        offsets, lengths: int64[n], the ranges.
    """
    table, rows = located.table, located.rows
    files: _Files | None = table.files
    if files is None:
        files = table.files = _Files(table.segments)
    if not files.cacheable[rows].all():
        return None
    size, bits = files.size, files.size.bit_length() - 1  # a power of two: shifts are faster than divisions
    number = offsets >> bits
    cut = ((offsets + lengths - 1) >> bits) > number
    which, starts, begins = np.arange(len(offsets)), _ZERO, offsets & (size - 1)
    if cut.any():  # ranges that lie in several chunks
        parts = np.maximum(((offsets + lengths - 1) >> bits) - number, 0) + 1
        which = np.repeat(which, parts)
        number = number[which] + np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts)
        starts = np.maximum(number * size - offsets[which], 0)
        lengths = np.minimum((number + 1) * size, (offsets + lengths)[which]) - offsets[which] - starts
        begins, rows = offsets[which] + starts - number * size, rows[which]
    places = files.base[rows] + number
    descriptors = files.descriptors[places]
    owners: list[object] = [files]
    if descriptors.min(initial=0) < 0:
        segments = cast(list[CachedSegment], located.segments()[0])
        for segment in segments:
            segment.start()
        if not all(segment.on_disk for segment in segments):
            return None
        files = table.files = _Files(table.segments)
        owners.append(files)
        descriptors = files.descriptors[places]
        for missing in np.flatnonzero(descriptors < 0).tolist():
            if descriptors[missing] < 0:
                chunk = cast(CachedSegment, table.segments[rows[missing]]).opened(int(number[missing]))
                if chunk is None:
                    return None
                owners.append(chunk)
                descriptors[places == places[missing]] = chunk.fd
    return OnDisk(descriptors, begins, lengths, which, starts, owners)


class CacheUse:
    """Decides which bytes of objects are fetched into the cache.

    Args:
        cache: the cache.
        unit: ``block`` fetches the chunks that are needed; ``shard`` fetches whole objects; ``auto`` fetches whole
            objects if the needed bytes are scattered over them and all objects will fit into the cache.

    Attributes:
        scattered: whether the reader reads from anywhere in the objects, one range after the other.
        held: last position of the plan whose bytes were requested: those that do not fit into the cache up to it are in
            memory, as they would otherwise evict each other before they are read.
        fetched: number of bytes that were requested and cached.
        refused: number of bytes that the cache did not take.
    """

    def __init__(self, cache: ChunkCache, unit: Unit = "auto") -> None:
        self.cache, self.unit = cache, unit
        self.scattered, self.held, self.fetched, self.refused = False, 0, 0, 0
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

    def open(self, store: SegmentStore, keys: Sequence[str], count: int) -> list[CachedObject | None]:
        """Return objects; None for those that do not exist. Raises as `Store.entries`.

        Args:
            count: number of objects of the store that will be opened in all.
        """
        self._counts[store.url] = max(count, self._counts.get(store.url, 0))
        objects: list[CachedObject | None] = []
        for key, entry in zip(keys, store.entries(keys), strict=True):
            if entry is None:
                objects.append(None)
                continue
            self._add(store.url, entry)
            objects.append(self.cache.open(f"{store.url}/{key}", entry.version, entry.size))
        return objects

    def _add(self, url: str, entry: Entry) -> None:
        with self._lock:
            known, size = self._known.get(url, (set(), 0))
            if entry.path not in known:
                known.add(entry.path)
                self._known[url] = known, size + entry.size

    @property
    def fits(self) -> bool:
        """Return whether the cache will hold all objects, as far as those that were opened tell."""
        with self._lock:
            expected = sum(
                size / len(known) * max(len(known), self._counts[url]) for url, (known, size) in self._known.items()
            )
        return expected <= WHOLE_SHARE * self.cache.size

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
        return not awaited and self.fits and self.waste(begins, ends) > _SCATTERED

    def keeps(self, begins: Int64s, ends: Int64s) -> bool:
        """Return whether the cache keeps the chunks of ranges that it does not have.

        It does not if few of their bytes are needed, and they will be evicted before the others are; nor if the cache
        is disabled.

        Args:
            begins, ends: int64[n], ascending.
        """
        if self.cache.disabled:
            return False
        return not self.scattered or self.unit != "auto" or self.fits or self.waste(begins, ends) <= _WASTED

    def waste(self, begins: Int64s, ends: Int64s) -> float:
        """Return how many times the bytes of ranges their chunks have.

        Args:
            begins, ends: int64[n], ascending.
        """
        size = self.cache.chunk
        first, last = begins // size, -(-ends // size)
        touched = int(np.minimum(last - first, last - np.concatenate(([-1], np.maximum.accumulate(last)[:-1]))).sum())
        return touched * size / max(1, int((ends - begins).sum()))
