"""Ranges of remote files: which requests to make for them, and many requests at once.

A request costs as much CPU as some 256 KiB of bytes, and a round trip of latency, so ranges that lie close together are
fetched in one request. Bridged gaps of more than 32 KiB add up to at most a quarter of the requested bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from feedmill.storage.base import bad_range

if TYPE_CHECKING:
    from obstore import Bytes
    from obstore.store import ObjectStore

SMALL = 256 << 10
"""Requests below this size are bound by latency, and more of them are in flight."""
LARGEST = 8 << 20
"""Merged requests grow to this size; beyond it only memory use grows."""
_NEAR, _FAR = 32 << 10, 1 << 20
_SMALL_AT_ONCE, _LARGE_AT_ONCE = 64, 16
_WASTE = 4
_WRONG_RANGES = 3
"""Requests that are made until an answer has the range that was asked for."""
_SMOOTHING = 0.1

Span = tuple[int, int]


def merge(
    file: str, offsets: Sequence[int], lengths: Sequence[int], gap: int = SMALL
) -> tuple[list[Span], list[tuple[int, int]]]:
    """Merge neighboring ranges to requests.

    Args:
        file: path or URL, for errors.
        gap: the largest gap to bridge, in bytes; see `Fetcher.gap`.

    Returns:
        The requests, as (begin, end); and for each range the number of its request and its offset in it.

    Raises:
        ConfigError: a range is negative or too large.
    """
    places = [(0, 0)] * len(offsets)
    ranges = sorted((int(o), int(n), i) for i, (o, n) in enumerate(zip(offsets, lengths, strict=True)))
    for offset, length, _ in ranges:
        if offset < 0 or length < 0 or offset + length >= 1 << 63:
            raise bad_range(file, offset, length)
    gap = affordable_gap(*_gaps(ranges), gap)
    spans: list[Span] = []
    for offset, length, i in ranges:
        if not length:
            continue
        start, end = spans[-1] if spans else (0, -gap - 1)
        if offset - end <= gap and max(end, offset + length) - start <= max(LARGEST, end - start):
            spans[-1] = (start, max(end, offset + length))
        else:
            spans.append((offset, offset + length))
        places[i] = (len(spans) - 1, offset - spans[-1][0])
    return spans, places


def affordable_gap(gaps: npt.NDArray[np.int64], wanted: int, gap: int) -> int:
    """Return the largest gap to bridge so that what is bridged is at most a quarter of what is asked for.

    Args:
        gaps: int64[n], bytes between neighboring ranges; 0 or less if they touch or overlap.
        wanted: bytes of the ranges.
        gap: the largest gap that saves time.
    """
    near = min(gap, _NEAR)
    wide = np.sort(gaps[(gaps > near) & (gaps <= gap)])
    count = int(np.searchsorted(np.cumsum(wide), wanted // _WASTE, side="right"))
    return int(wide[count - 1]) if count else near


def _gaps(ranges: Sequence[tuple[int, int, int]]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the gaps between ranges that are sorted by offset, and the bytes of the ranges."""
    end, wanted, gaps = -1, 0, []
    for offset, length, _ in ranges:
        if length:
            if end >= 0:
                gaps.append(offset - end)
            end, wanted = max(end, offset + length), wanted + length
    return np.asarray(gaps, np.int64), wanted


class Failed(Exception):
    """A request failed: its number, and the error."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__(str(error))
        self.number, self.error = number, error


class Fetcher:
    """Fetches ranges of objects with threads. One for each process, see `fetcher`.

    Threads, not asyncio: an answer that arrives at asyncio while the interpreter exits can abort the process.

    Attributes:
        requests, bytes: answered so far.
    """

    def __init__(self) -> None:
        self.requests = self.bytes = 0
        self._latency, self._rate = 0.0, 0.0
        self._small = ThreadPoolExecutor(_SMALL_AT_ONCE, "feedmill-fetch")
        self._large = ThreadPoolExecutor(_LARGE_AT_ONCE, "feedmill-fetch-large")

    def gap(self) -> int:
        """Return the largest gap worth bridging: what the network delivers while a request waits for its turn."""
        return int(min(_FAR, SMALL + self._rate * self._latency / _SMALL_AT_ONCE))

    def fetch(self, store: ObjectStore, requests: Sequence[tuple[str, int, int]]) -> list[Bytes]:
        """Return ranges of objects, in order. If one request fails, those that have not begun are cancelled.

        Args:
            requests: key of the object, begin, end.

        Raises:
            Failed: the first error of `obstore`, with the number of its request.
        """
        if len(requests) == 1:
            return [self._one(store, 0, *requests[0])]
        futures = [
            self._pool(end - begin).submit(self._one, store, number, key, begin, end)
            for number, (key, begin, end) in enumerate(requests)
        ]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def submit(self, store: ObjectStore, key: str, begin: int, end: int) -> Future[Bytes]:
        """Return the future bytes of a range of an object; its error is `Failed`."""
        return self._pool(end - begin).submit(self._one, store, 0, key, begin, end)

    def _pool(self, size: int) -> ThreadPoolExecutor:
        return self._small if size < SMALL else self._large

    def _one(self, store: ObjectStore, number: int, key: str, begin: int, end: int) -> Bytes:
        import obstore

        for again in reversed(range(_WRONG_RANGES)):
            asked = time.perf_counter()
            try:
                data = obstore.get_range(store, key, start=begin, end=end)
                break
            except Exception as error:
                if not again or "Requested " not in str(error):  # the answer to another range: not retried by obstore
                    raise Failed(number, error) from error
        self.requests += 1
        self.bytes += len(data)
        self._measure(end - begin, time.perf_counter() - asked)
        return data

    def _measure(self, size: int, seconds: float) -> None:
        if size < SMALL:
            self._latency += _SMOOTHING * (seconds - self._latency)
        elif seconds > self._latency:
            self._rate += _SMOOTHING * (size / (seconds - self._latency) - self._rate)


_lock = threading.Lock()
_fetchers: list[Fetcher] = []


def fetcher() -> Fetcher:
    """Return the fetcher of this process; its threads start when they are needed."""
    with _lock:
        if not _fetchers:
            _fetchers.append(Fetcher())
        return _fetchers[0]
