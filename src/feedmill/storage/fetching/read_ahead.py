"""Read ahead from remote stores: fetch byte ranges before they are read, within a budget of memory.

A reader that knows what it will read next (the loader, from its plan) passes byte ranges with the number of the step
that needs each. Ranges that lie close together are merged to requests of some 4 MiB, which are sent in the order in
which their bytes are needed first. The answers are kept as `Segment` objects of the store until the last step that
needs them is done. The store's ordinary reads find them there, so reading ahead changes when bytes are fetched, and
nothing else: a range that was not fetched, or whose request failed, is requested by the read itself.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import FeedmillError
from feedmill.storage.cache.paged import PagedSegment, Paging
from feedmill.storage.cache.pages import Pages
from feedmill.storage.fetching.fetch import ending, fetcher
from feedmill.storage.fetching.ranges import OFFSET_BITS, TARGET, Requests, requests_for
from feedmill.storage.fetching.segments import Segment
from feedmill.storage.limits import parse_size

if TYPE_CHECKING:
    from feedmill.storage.remote.range_store import RangeStore

Int64s = npt.NDArray[np.int64]

BUDGET = 256 << 20
"""Default memory in bytes for what is requested and not yet used up."""
_MOST_AT_ONCE = 64
_LOOK = 0.1
"""Seconds after which a thread that waits looks whether the interpreter exits."""


def budget_from_environment() -> int:
    """Return ``$FEEDMILL_READ_AHEAD`` in bytes, or `BUDGET`; 0 turns reading ahead off. Raises `ConfigError`."""
    found = parse_size(os.environ.get("FEEDMILL_READ_AHEAD") or None, "FEEDMILL_READ_AHEAD")
    return BUDGET if found is None else found


class ReadAhead:
    """Fetches byte ranges ahead of one reader that does its steps in order.

    Args:
        budget: bytes that may be requested or kept at once.
        paging: keeps them in the page cache; None for memory.
        memory: bytes of memory, of which half may be in flight; by default the budget.
    """

    def __init__(self, budget: int, paging: Paging | None = None, memory: int | None = None) -> None:
        self.budget, self._paging = budget, paging
        self._in_flight = (budget if memory is None else memory) // 2
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._queue: deque[Segment] = deque()
        self._by_last: dict[int, list[Segment]] = {}
        self._held = self._flying = self._flying_bytes = 0
        self._awaited: int | None = None
        self._done, self._closed = -1, False

    def want(
        self,
        store: RangeStore,
        paths: Sequence[str],
        file: Int64s,
        begins: Int64s,
        ends: Int64s,
        steps: Int64s,
        hungry: threading.Event,
        last: int | None = None,
    ) -> None:
        """Request byte ranges of files of a store, in the order of their steps. Waits for room, not for answers.

        Args:
            file: int64[n], the number of each range's file in `paths`.
            begins, ends: int64[n].
            steps: int64[n], the number of the step that needs each range.
            hungry: set while the reader waits for more steps: then there is no waiting for room; see `wake`.
            last: the last step whose ranges must be requested now; those of later steps are requested only where they
                share a request with one of these. None: all.
        """
        filled = (ends > begins) & (begins >= 0) & (ends < 1 << OFFSET_BITS)
        if not filled.any():
            return
        files, file = np.unique(file[filled], return_inverse=True)
        keys = [store.key(paths[number]) for number in files.tolist()]
        base = file << OFFSET_BITS
        low, high, steps = base + begins[filled], base + ends[filled], steps[filled]
        order = np.argsort(low, kind="stable")
        low, high, steps = low[order], high[order], steps[order]
        fresh = ~self._extend(store, keys, low, high, steps)
        if not fresh.any():
            return
        low, high, steps = low[fresh], high[fresh], steps[fresh]
        last = int(steps.max()) if last is None else last
        pages = None if self._paging is None else self._paging.open(store, keys)
        if pages is None:
            requests = _needed(requests_for(low, high, fetcher().gap()), steps, last)
            if requests.size > self.budget // 2:
                requests = _needed(requests_for(low, high, 0), steps, last)
            rounds = [requests]
        else:
            rounds = self._rounds(pages, low, high, steps, last)
        for requests in rounds:
            if len(requests.begins) and self._wait_for_room(requests.size, hungry):
                self._add(store, keys, requests, pages)

    def _rounds(
        self, pages: Sequence[Pages | None], low: Int64s, high: Int64s, steps: Int64s, last: int
    ) -> list[Needed]:
        """Return requests for ranges that go to the page cache, and then those for the rest of whole objects."""
        assert self._paging is not None
        parts: list[tuple[int, int, int, int]] = []
        asked = np.ones(len(low), np.bool_)
        numbers, firsts = np.unique(low >> OFFSET_BITS, return_index=True)
        for number, a, b in zip(numbers.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(low)], strict=True):
            found, base = pages[number], number << OFFSET_BITS
            if found is None or not found.size:
                continue
            now = a + np.flatnonzero(steps[a:b] <= last)
            if not len(now):
                asked[a:b] = False
                continue
            begins, ends, need = low[now] - base, high[now] - base, steps[now]
            first, end = int(begins[0]), min(int(ends.max()), found.size)
            if found.trusted(first, end):
                parts.append((base + first, base + end, int(need.min()), int(need.max())))
            elif self._paging.whole(begins, ends, len(low)):
                parts += [(base + x, base + y, *rest) for x, y, *rest in _cells(begins, ends, need, found.size)]
            else:
                continue
            asked[a:b] = False
            asked[now] = ends > found.size
        rounds = [Needed(*np.asarray(parts, np.int64).T)] if parts else []
        if asked.any():
            rounds.append(_needed(requests_for(low[asked], high[asked], fetcher().gap()), steps[asked], last))
        return rounds

    def _extend(
        self, store: RangeStore, keys: Sequence[str], low: Int64s, high: Int64s, steps: Int64s
    ) -> npt.NDArray[np.bool_]:
        """Keep segments that have some of the ranges for longer; return which ranges they have, bool[n]."""
        segments, numbers = [], []
        for number, key in enumerate(keys):
            found = store.held.of(key, self)
            segments += found
            numbers += [number] * len(found)
        if not segments:
            return np.zeros(len(low), np.bool_)
        base = np.asarray(numbers, np.int64) << OFFSET_BITS
        begins = base + np.asarray([segment.begin for segment in segments], np.int64)
        ends = base + np.asarray([segment.end for segment in segments], np.int64)
        at = np.searchsorted(begins, low, side="right") - 1
        had = (at >= 0) & (ends[at] >= high)
        last = np.full(len(segments), -1, np.int64)
        np.maximum.at(last, at[had], steps[had])
        with self._lock:
            for number in np.flatnonzero(last >= 0).tolist():
                segment = segments[number]
                if segment.last <= self._done:  # freed meanwhile
                    had &= at != number
                else:
                    segment.last = max(segment.last, int(last[number]))
        return had

    def _add(
        self,
        store: RangeStore,
        keys: Sequence[str],
        requests: Needed,
        pages: Sequence[Pages | None] | None,
    ) -> None:
        """Queue requests in the order in which their bytes are needed."""
        order = np.argsort(requests.soonest, kind="stable")
        begins, ends = requests.begins[order], requests.ends[order]
        rows = zip(
            (begins >> OFFSET_BITS).tolist(),
            (begins & ((1 << OFFSET_BITS) - 1)).tolist(),
            (ends - begins).tolist(),
            requests.latest[order].tolist(),
            strict=True,
        )
        with self._lock:
            if self._closed:
                return
            for number, begin, size, step in rows:
                found = None if pages is None else pages[number]
                if self._paging is None or found is None or begin + size > found.size:
                    segment = Segment(self, store, keys[number], begin, begin + size, step)
                else:
                    place = keys[number], begin, begin + size, step
                    segment = PagedSegment(self, store, *place, found, self._paging)
                store.held.add(segment)
                self._queue.append(segment)
                self._by_last.setdefault(step, []).append(segment)
                self._held += size
        self._pump()

    def _pump(self) -> None:
        """Send queued requests while there is room in flight."""
        while True:
            with self._lock:
                if not self._queue or self._flying >= _MOST_AT_ONCE:
                    return
                size = self._queue[0].size
                if self._flying and self._flying_bytes + size > self._in_flight:
                    return
                segment = self._queue.popleft()
            segment.start()

    def sent(self, segment: Segment, future: Future[Any]) -> None:
        """Count a request as in flight until it is answered."""
        if future.done():  # nothing had to be requested; its callback would come back here, for each of thousands
            return
        size = segment.size
        with self._lock:
            self._flying += 1
            self._flying_bytes += size

        def answered(_: Future[Any]) -> None:
            with self._lock:
                self._flying -= 1
                self._flying_bytes -= size
            self._pump()

        future.add_done_callback(answered)

    def _wait_for_room(self, size: int, hungry: threading.Event) -> bool:
        """Wait until `size` more bytes fit into the budget, or `hungry` is set.

        Returns:
            Whether the reader is still open.
        """
        with self._room:
            self._awaited = size
            while not (self._closed or hungry.is_set() or self._has_room()):
                self._room.wait(_LOOK)
                if ending():
                    return False
            self._awaited = None
            return not self._closed

    def _has_room(self) -> bool:
        """Return whether the bytes that `want` waits for fit into the budget."""
        return self._awaited is not None and (not self._held or self._held + self._awaited <= self.budget)

    def wake(self) -> None:
        """Let a `want` that waits for room look again, because the reader is hungry."""
        with self._room:
            self._room.notify_all()

    def finish(self) -> None:
        """Wait for all requests.

        Raises:
            FeedmillError: one failed.
        """
        with self._lock:
            segments = [segment for some in self._by_last.values() for segment in some]
        for segment in segments:
            found = segment.result()
            if isinstance(found, Exception):
                where = segment.store.locate(segment.key)
                known = isinstance(found, FeedmillError)
                raise (found if known else segment.store.translate(found, where) or found) from None

    def done(self, step: int) -> None:
        """Free what no later step needs. Steps are done in ascending order."""
        freed = []
        with self._room:
            for number in range(self._done + 1, step + 1):
                for segment in self._by_last.pop(number, ()):
                    if segment.last > step:
                        self._by_last.setdefault(segment.last, []).append(segment)
                    else:
                        freed.append(segment)
            self._done = step
            self._held -= sum(segment.size for segment in freed)
            if self._has_room():  # waking a thread for nothing at every step took 15 % of the time
                self._room.notify_all()
        _drop(freed)

    def close(self) -> None:
        """Drop everything that was requested and not used."""
        with self._room:
            self._closed = True
            self._queue.clear()
            segments = [segment for some in self._by_last.values() for segment in some]
            self._by_last.clear()
            self._held = 0
            self._room.notify_all()
        _drop(segments)


class Needed(NamedTuple):
    """Requests, and when they are needed.

    Attributes:
        begins, ends: int64[n], as in `Requests`.
        soonest, latest: int64[n], the first and the last step that needs each.
    """

    begins: Int64s
    ends: Int64s
    soonest: Int64s
    latest: Int64s

    @property
    def size(self) -> int:
        """Return the bytes of all requests."""
        return int((self.ends - self.begins).sum())


def _needed(requests: Requests, steps: Int64s, last: int) -> Needed:
    """Return those of the requests that are needed until the step `last`; `steps` are those of the ranges."""
    soonest, latest = (find.reduceat(steps, requests.first) for find in (np.minimum, np.maximum))
    now = soonest <= last
    return Needed(requests.begins[now], requests.ends[now], soonest[now], latest[now])


def _cells(begins: Int64s, ends: Int64s, steps: Int64s, size: int) -> list[tuple[int, int, int, int]]:
    """Cut an object into parts of `TARGET` bytes; each range lies in the part in which it begins, which is longer then.

    Args:
        begins, ends, steps: int64[n], ranges of the object by begin, and when each is needed.
        size: bytes of the object.
    """
    last = int(steps.max())
    cells = {at: (at, min(at + TARGET, size), last, last) for at in range(0, size, TARGET)}
    cell, first = np.unique(begins // TARGET, return_index=True)
    found = [
        find.reduceat(of, first).tolist() for find, of in ((np.maximum, ends), (np.minimum, steps), (np.maximum, steps))
    ]
    for number, reach, soonest, latest in zip(cell.tolist(), *found, strict=True):
        at = number * TARGET
        if at < size:
            cells[at] = (at, min(max(cells[at][1], reach), size), soonest, latest)
    return list(cells.values())


def _drop(segments: Sequence[Segment]) -> None:
    for segment in segments:
        segment.store.held.remove(segment)
        segment.cancel()
