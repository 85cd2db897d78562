"""Bytes of remote objects that were requested ahead, until the last step that needs them is done.

`ReadAhead` creates one `Segment` for each request and frees it. A store finds the segments for a read in its
`HeldSegments`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.storage.fetching.fetch import fetcher
from feedmill.storage.fetching.flights import Answer, Flight

if TYPE_CHECKING:
    from feedmill.storage.fetching.read_ahead import ReadAhead
    from feedmill.storage.remote.range_store import RangeStore


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

    paged = False
    """Whether the bytes may lie in the page cache."""

    __slots__ = ("_future", "_lock", "begin", "data", "end", "key", "last", "origin", "owner", "store")

    def __init__(self, owner: ReadAhead, store: RangeStore, key: str, begin: int, end: int, last: int) -> None:
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

    def start(self) -> bool:
        """Send the request unless it was sent; return whether this call sent it."""
        with self._lock:
            if self._future is not None:
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


class HeldSegments:
    """The segments of one store, by object and offset. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}

    def add(self, segment: Segment) -> None:
        """Add a segment."""
        with self._lock:
            file = self._files.setdefault(segment.key, _File())
            at = bisect_right(file.begins, segment.begin)
            file.begins.insert(at, segment.begin)
            file.segments.insert(at, segment)
            file.longest = max(file.longest, segment.size)

    def remove(self, segment: Segment) -> None:
        """Remove a segment, if it is there."""
        with self._lock:
            file = self._files.get(segment.key, _File())
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

    def locate(self, key: str, offsets: Sequence[int], lengths: Sequence[int]) -> list[Segment] | None:
        """Return for each range of an object the last segment that begins before it; None unless it has all of it.

        Unlike `find`, this does not look for a longer segment that begins earlier, and takes a third of the time.
        """
        with self._lock:
            file = self._files.get(key)
            if file is None:
                return None
            begins, segments = file.begins, file.segments
            located = [segments[bisect_right(begins, offset) - 1] for offset in offsets]
        for segment, offset, length in zip(located, offsets, lengths, strict=True):
            if not (segment.begin <= offset and offset + length <= segment.end):
                return None
        return located

    def requested_by(self, owner: ReadAhead, key: str) -> list[Segment]:
        """Return the segments of an object that a reader requested, sorted by offset."""
        with self._lock:
            file = self._files.get(key)
            return [] if file is None else [segment for segment in file.segments if segment.owner is owner]

    @property
    def size(self) -> int:
        """Return the bytes of all segments."""
        with self._lock:
            return sum(segment.size for file in self._files.values() for segment in file.segments)
