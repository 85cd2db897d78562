"""Bytes of remote objects that were requested ahead, until the last step that needs them is done.

`ReadAhead` creates one `Segment` for each request and frees it. A store finds the segments for a read in its
`HeldSegments`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.storage.fetching.fetch import RangeClient, fetcher
from feedmill.storage.fetching.lanes import Answer, Flight
from feedmill.storage.fetching.ranges import OFFSET_BITS

Int64s = npt.NDArray[np.int64]

_MOST_KNOWN = 64
"""Number of lists of paths whose objects are known by number."""


class Owner(Protocol):
    """The reader that requests segments: `ReadAhead`."""

    def sent(self, segment: Segment, future: Future[Any]) -> None:
        """Count a request as in flight until it is answered. Called by `Segment.start`."""


class SegmentStore(RangeClient):
    """A store whose ranges are read ahead. Base class of `RangeStore`.

    Attributes:
        held: segments that were read ahead.
    """

    held: HeldSegments


class Segment:
    """One request and its bytes.

    Attributes:
        owner: the reader that requested it.
        store, key: the object.
        begin, end: the byte range.
        last: number of the last step that needs it.
        data: the bytes in memory; None until a reader has waited for them.
        origin: the address in memory that the object's first byte would have; None before `locate`.
    """

    cacheable = False
    """Whether the bytes may lie in the cache on disk."""

    __slots__ = ("_future", "_lock", "begin", "data", "end", "key", "last", "origin", "owner", "store")

    def __init__(self, owner: Owner, store: SegmentStore, key: str, begin: int, end: int, last: int) -> None:
        self.owner, self.store, self.key = owner, store, key
        self.begin, self.end, self.last = begin, end, last
        self.data: memoryview | None = None
        self.origin: int | None = None
        self._future: Future[Any] | None = None
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Return the length of the range in bytes."""
        return self.end - self.begin

    def _was_sent(self) -> bool:
        return self._future is not None

    def wait(self, seconds: float) -> bool:
        """Send the request unless it was sent, and wait for it up to a time; return whether it has ended."""
        self.start()
        assert self._future is not None
        return bool(wait([self._future], seconds).done)

    def start(self) -> bool:
        """Send the request unless it was sent; return whether this call sent it."""
        if self._was_sent():  # every batch calls this for each of its segments
            return False
        with self._lock:
            if self._was_sent():
                return False
            try:
                self._future = self._submit()
            except RuntimeError:  # the interpreter is about to exit
                self._future = Future()
                self._future.cancel()
        self.owner.sent(self, self._future)
        return True

    def _submit(self) -> Future[Any]:
        return fetcher().start(self.size, self._request)

    def _request(self, flight: Flight) -> Any:
        return fetcher().request(self.store, self.key, self.begin, self.end, flight)

    def _request_again(self, flight: Flight) -> Any:
        return self._request(flight)

    def result(self) -> Any:
        """Wait for the request; return its bytes, or the exception if it failed. Raises nothing."""
        self.start()
        answer = self._future
        assert answer is not None
        try:
            if isinstance(answer, Answer):
                lane = fetcher().lane(self.store, self.size)
                return fetcher().wait(answer, lane, self.size, self._request_again)
            return answer.result()
        except (Exception, CancelledError) as error:  # the read requests it again and raises the error
            return error if isinstance(error, Exception) else RuntimeError("canceled")

    def view(self, begin: int, end: int) -> memoryview | None:
        """Wait for the request and return a subrange of its bytes; None if it failed or was canceled."""
        return self._subrange(self.result(), begin, end)

    def _subrange(self, data: Any, begin: int, end: int) -> memoryview | None:
        if isinstance(data, Exception) or len(data) != self.size:  # the object may be shorter than its index says
            return None
        self.data = memoryview(data)
        return self.data[begin - self.begin : end - self.begin]

    def locate(self) -> bool:
        """Wait for the request and set `origin`; return whether the bytes are in memory."""
        if self.data is None and self.view(self.begin, self.end) is None:
            return False
        if self.data is None:
            return False
        self.origin = int(np.frombuffer(self.data, np.uint8).__array_interface__["data"][0]) - self.begin
        return True

    def cancel(self) -> None:
        """Cancel the request. If it is in flight, it ends, but is not retried."""
        with self._lock:
            if self._future is None:
                self._future = Future()
                self._future.cancel()
            else:
                self._future.cancel()


class _File:
    """The segments of one object, sorted by begin.

    Attributes:
        begins: begins of the segments.
        longest: size of the longest segment so far, which bounds the search.
    """

    __slots__ = ("begins", "longest", "segments")

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.segments: list[Segment] = []
        self.longest = 0

    def find(self, begin: int, end: int) -> Segment | None:
        """Return a segment that contains a byte range; None if there is none, or the range is empty."""
        begins = self.begins
        for at in range(bisect_right(begins, begin) - 1, -1, -1):
            if self.segments[at].end >= end:
                return self.segments[at] if end > begin else None
            if begins[at] + self.longest < end:
                return None
        return None


def farthest(ends: Int64s) -> Int64s:
    """Return which of the ranges up to each one has the last end, int64[m].

    Args:
        ends: int64[m], ends of ranges that are sorted by their begins.
    """
    latest: Int64s = np.maximum.accumulate(np.where(ends == np.maximum.accumulate(ends), np.arange(len(ends)), 0))
    return latest


class Table:
    """All segments of a store, sorted by object and offset.

    Attributes:
        begins, ends: int64[m], with the number of the object in the bits above `OFFSET_BITS`.
        farthest: int64[m], which of the segments up to each one has the last end.
        origins: int64[m], origin of each segment; 0 if it has none.
        segments: the segments.
        files: their files in the cache on disk, for `feedmill.storage.cache.reading`; None before they are looked up.
    """

    __slots__ = ("begins", "ends", "farthest", "files", "origins", "segments")

    def __init__(self, begins: Int64s, ends: Int64s, origins: Int64s, segments: list[Segment]) -> None:
        self.begins, self.ends, self.origins, self.segments = begins, ends, origins, segments
        self.farthest = farthest(ends)
        self.files: Any = None


class Located(NamedTuple):
    """Segments that contain ranges.

    Attributes:
        rows: int64[n], which of the table's segments contains each range.
        table: the segments. It keeps their memory.
    """

    rows: Int64s
    table: Table

    def origins(self) -> Int64s | None:
        """Return the origin of each range's segment, int64[n]; None unless all bytes are known to be in memory."""
        found = self.table.origins[self.rows]
        return found if found.all() else None

    def segments(self) -> tuple[list[Segment], Int64s]:
        """Return the segments, each once, and which of them contains each range, int64[n]."""
        rows, numbers = np.unique(self.rows, return_inverse=True)
        return [self.table.segments[row] for row in rows.tolist()], numbers

    def wait(self) -> Int64s | None:
        """Wait for the segments; return what `origins` does, or None if one failed or is not in memory."""
        for row in sorted(set(self.rows.tolist())):
            segment = self.table.segments[row]
            if segment.origin is None and not segment.locate():
                return None
            self.table.origins[row] = segment.origin
        return self.origins()


class HeldSegments:
    """The segments of one store, by object and offset. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}
        self._numbers: dict[str, int] = {}
        self._table: Table | None = None
        self._known: dict[int, tuple[Sequence[str], Int64s]] = {}

    def add(self, segment: Segment) -> None:
        """Add a segment."""
        with self._lock:
            file = self._files.setdefault(segment.key, _File())
            self._numbers.setdefault(segment.key, len(self._numbers))
            self._table = None
            at = bisect_right(file.begins, segment.begin)
            file.begins.insert(at, segment.begin)
            file.segments.insert(at, segment)
            file.longest = max(file.longest, segment.size)

    def remove(self, segment: Segment) -> None:
        """Remove a segment, if it is there."""
        with self._lock:
            file = self._files.get(segment.key, _File())
            self._table = None
            for at in range(bisect_left(file.begins, segment.begin), len(file.begins)):
                if file.segments[at] is segment:
                    del file.begins[at], file.segments[at]
                    break
            if not file.begins:
                self._files.pop(segment.key, None)

    def find(self, key: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[Segment | None]:
        """Return for each range of an object a segment that contains it; None if there is none, or it is empty."""
        with self._lock:
            file = self._files.get(key)
            if file is None:
                return [None] * len(offsets)
            return [file.find(offset, offset + n) for offset, n in zip(offsets, lengths, strict=True)]

    def locate(
        self, paths: Sequence[str], key: Callable[[str], str], files: Int64s, offsets: Int64s, lengths: Int64s
    ) -> Located | None:
        """Return the segments that contain ranges; None unless all are held, or without ranges.

        Unlike `find`, this looks up all ranges in one call. Segments may overlap, as where two epochs meet.

        Args:
            paths: paths of files, the same object at each call.
            key: returns the key of a path.
            files, offsets, lengths: int64[n], number of each range's file in `paths`, its offset and its length.
        """
        with self._lock:
            numbers = self._numbers_of(paths, key, files)
            table = self._table = self._table or self._tabulated()
        if numbers is None or not (len(numbers) and table.segments):
            return None
        begins = (numbers << OFFSET_BITS) + offsets
        ends = begins + lengths
        at = np.searchsorted(table.begins, begins, side="right") - 1
        inside = ends <= table.ends[at]
        # Of several, the nearest: ranges of a first batch that was late were requested again on their own.
        if not inside.all() or at.min() < 0:
            at = np.where(inside, at, table.farthest[at])
            # Of a range before the first segment, the last one is compared: it ends in another file, or begins later.
            if not ((table.begins[at] <= begins) & (ends <= table.ends[at])).all():
                return None
        return Located(at, table)

    def _tabulated(self) -> Table:
        files = sorted((self._numbers[key] << OFFSET_BITS, file) for key, file in self._files.items())
        segments = [segment for _, file in files for segment in file.segments]
        base = np.repeat([first for first, _ in files], [len(file.segments) for _, file in files])
        begins, ends = (
            base + np.asarray([getattr(segment, name) for segment in segments], np.int64) for name in ("begin", "end")
        )
        origins = np.asarray([segment.origin or 0 for segment in segments], np.int64)
        return Table(begins, ends, origins, segments)

    def _numbers_of(self, paths: Sequence[str], key: Callable[[str], str], files: Int64s) -> Int64s | None:
        """Return the number of each file's object, int64[n]; None if one was never read ahead."""
        found = self._known.get(id(paths))
        if found is None or found[0] is not paths:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[id(paths)] = paths, np.full(len(paths), -1, np.int64)
        known = found[1]
        numbers = known[files]
        if len(numbers) and numbers.min() < 0:
            for file in set(files[numbers < 0].tolist()):
                known[file] = self._numbers.get(key(paths[file]), -1)
            numbers = known[files]
            if numbers.min() < 0:
                return None
        return numbers

    def requested_by(self, owner: Owner, key: str) -> list[Segment]:
        """Return the segments of an object that a reader requested, sorted by offset."""
        with self._lock:
            file = self._files.get(key)
            return [] if file is None else [segment for segment in file.segments if segment.owner is owner]

    @property
    def size(self) -> int:
        """Return the bytes of all segments."""
        with self._lock:
            return sum(segment.size for file in self._files.values() for segment in file.segments)
