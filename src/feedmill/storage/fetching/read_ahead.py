"""Read ahead from remote stores: fetch byte ranges before they are read, within a budget of memory.

A reader that knows what it will read next (the loader, from its plan) passes byte ranges with the number of the step
that needs each. Ranges that lie close together are merged to requests of some MiB, which are sent in the order in
which their bytes are first needed. The answers are kept as `Segment` objects of the store until the last step that
needs them is done. The store's ordinary reads use them, so reading ahead only changes when bytes are fetched: a range
that was not fetched, or whose request failed, is requested by the read itself.

The memory for bytes that are read ahead: its setting, what it grows to, and which parts of a window fit into it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import FeedmillError
from feedmill.storage.cache.chunks import CachedObject
from feedmill.storage.cache.reading import CachedSegment, CacheUse
from feedmill.storage.fetching.fetch import ending, fetcher
from feedmill.storage.fetching.ranges import OFFSET_BITS, TARGET, Requests, requests_for
from feedmill.storage.fetching.segments import Segment, farthest
from feedmill.storage.limits import available_memory, parse_size

if TYPE_CHECKING:
    from feedmill.storage.remote.range_store import RangeStore


Int64s = npt.NDArray[np.int64]

_MAX_AT_ONCE = 64
"""Maximum number of requests of one reader in flight."""
_SOON_SECONDS = 0.2
"""Time in which requests of some MiB arrive unless the network is slow."""
_FIRST_BATCH = 1024
"""Fewer ranges than this are those of a first batch, which the reader waits for, or lie across requests for parts of
whole objects: requesting these once more would delay them."""
_RECHECK_SECONDS = 0.1
"""Time after which a waiting thread checks whether the interpreter exits."""


class Starving:
    """Whether a reader waits for more steps. An event may keep its lock where Ctrl-C interrupts it."""

    now = False


class ReadAhead:
    """Fetches byte ranges ahead of one reader that does its steps in order.

    Args:
        budget: maximum number of bytes that are requested or kept at once.
        use: the cache on disk that keeps them; None to keep them in memory.
        memory: memory in bytes, of which half may be in flight; by default the budget. The budget if the cache is
            disabled, which may happen at any time.
        most: what `widen` may raise the budget to; by default the budget.
        shared: whether other readers that do the same steps at about the same time share the cache.

    Attributes:
        requests, bytes: number of requests so far, and their bytes.
    """

    def __init__(
        self,
        budget: int,
        use: CacheUse | None = None,
        memory: int | None = None,
        most: int | None = None,
        shared: bool = False,
    ) -> None:
        self._disk, self._memory, self._use = budget, budget if memory is None else memory, use
        self._most = budget if most is None else most
        self.requests = self.bytes = 0
        self._in_flight = self._memory // 2
        self._lock = threading.Lock()
        # Only waited for and notified: the lock itself is taken, as Ctrl-C may leave a condition with its lock taken.
        self._freed = threading.Condition(self._lock)
        self._queue: deque[Segment] = deque()
        self._by_last: dict[int, list[Segment]] = {}
        self._uses, self._shared = PlannedUses(shared), shared
        self._held = self._flying = self._flying_bytes = 0
        self._awaited: tuple[int, int] | None = None
        self._done, self._closed = -1, False

    def widen(self, window: int) -> None:
        """Raise the budget for windows of that many bytes, as far as it may; see `widened`."""
        budget = widened(self._memory, self._most, window)
        if not self.cached and budget > self._memory:
            with self._lock:
                self._memory = budget
                self._freed.notify_all()

    @property
    def cached(self) -> bool:
        """Return whether the bytes go to a cache on disk."""
        return self._use is not None and not self._use.cache.disabled

    @property
    def budget(self) -> int:
        """Return the maximum number of bytes that are requested or kept at once."""
        return self._disk if self.cached else self._memory

    @property
    def limit(self) -> int:
        """Return the budget, as far as the cache holds it: more would evict chunks before they are read."""
        if self._use is None or self._use.cache.disabled:
            return self._memory
        return min(self._disk, 3 * self._use.cache.size // 4)

    def want(
        self,
        store: RangeStore,
        paths: Sequence[str],
        file: Int64s,
        begins: Int64s,
        ends: Int64s,
        steps: Int64s,
        starving: Starving | None,
        last: int | None = None,
        uses: tuple[Int64s, Int64s] | None = None,
    ) -> None:
        """Request byte ranges of files of a store, in the order of their steps.

        Waits until they fit into the budget, but not for answers.

        Args:
            paths: paths of the files.
            file: int64[n], number of each range's file in `paths`.
            begins, ends: int64[n], byte offsets.
            steps: int64[n], number of the step that needs each range.
            starving: set while the reader waits for more steps: the budget is ignored then; see `wake`. None: always.
            last: the last step whose ranges must be requested now; those of later steps are requested only where they
                share a request with one of these. None: all.
            uses: int64[n] each: positions of the plan that read each range now, and next; `FAR` if none will. The cache
                on disk evicts what is needed last.
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
        last = int(steps.max()) if last is None else last
        self._uses.done(self._done)  # here, because these requests may evict chunks
        cached_objects = None
        if self._use is not None:
            cached_objects = self._use.open(store, keys, len(paths))
            self._use.cache.count_sharers()
        # Of whole shards, other chunks than those of these ranges will be needed, too.
        if cached_objects is not None and uses is not None and self._use is not None and self._use.unit != "shard":
            now, later = (column[filled][order] for column in uses)
            self._uses.plan(cached_objects, low, high, now, later, steps <= last, last)
            self._use.held = max(self._use.held, int(now[steps <= last].max(initial=0)))
        missing = ~self._extend(store, keys, low, high, steps)
        if not missing.any():
            return
        low, high, steps = low[missing], high[missing], steps[missing]
        if cached_objects is None:
            rounds = [(self._merged(low, high, steps, last), self.limit)]
        else:
            rounds = self._rounds(cached_objects, low, high, steps, last)
        for requests, limit in rounds:
            if len(requests.begins) and self._wait_for_budget(requests.size, limit, starving):
                self._add(store, keys, requests, cached_objects)

    def arrived(self, store: RangeStore, paths: Sequence[str], file: Int64s, begins: Int64s, ends: Int64s) -> bool:
        """Wait a short time for ranges that were requested; return whether all of them have arrived.

        Those of requests that have not arrived are requested again, each on its own.

        Args:
            paths, file, begins, ends: as for `want`.
        """
        until = time.monotonic() + _SOON_SECONDS
        late = []
        rows = zip(file.tolist(), begins.tolist(), ends.tolist(), strict=True)
        for number, begin, end in rows:
            key = store.key(paths[number])
            (segment,) = store.held.find(key, [begin], [end - begin])
            if segment is not None and not segment.wait(max(0.0, until - time.monotonic())):
                late.append(Segment(self, store, key, begin, end, segment.last))
        with self._lock:
            if self._closed:
                return False
            for segment in late:
                store.held.add(segment)
                self._by_last.setdefault(segment.last, []).append(segment)
                self._held += segment.size
        for segment in late:
            segment.start()
        return not late

    def _rounds(
        self,
        cached_objects: Sequence[CachedObject | None],
        low: Int64s,
        high: Int64s,
        steps: Int64s,
        last: int,
    ) -> list[tuple[Needed, int]]:
        """Return requests, and the limit on the bytes that are held with them.

        Those that fill the cache on disk come first, then those for bytes that it should not keep.
        """
        assert self._use is not None
        rows: list[Chunk] = []
        remaining, kept = np.ones((2, len(low)), np.bool_)
        first, behind = low.copy(), high.copy()
        awaited = len(low) < _FIRST_BATCH
        for cached, base, start, stop in objects(cached_objects, low):
            now = start + np.flatnonzero(steps[start:stop] <= last)
            if not len(now):
                remaining[start:stop] = False
                continue
            begins, ends, size = low[start:stop] - base, high[start:stop] - base, cached.chunk
            part = now - start
            if self._use.whole(begins[part], ends[part], awaited=awaited) and not cached.check_complete():
                rows += [
                    (base + chunk_begin, base + chunk_end, soonest, latest)
                    for chunk_begin, chunk_end, soonest, latest in chunks(begins[part], ends[part], steps[now], cached)
                ]
                remaining[start:stop] = False
                remaining[now] = ends[part] > cached.size
                continue
            if not self._use.keeps(begins[part], ends[part]):
                kept[start:stop] = [cached.present(*pair) for pair in zip(begins.tolist(), ends.tolist(), strict=True)]
            aligned = start + np.flatnonzero(kept[start:stop])
            first[aligned] = low[aligned] // size * size
            limit = np.minimum(-(-high[aligned] // size) * size, base + cached.size)
            behind[aligned] = np.maximum(high[aligned], limit)
        rounds = [(Needed(*np.asarray(rows, np.int64).T), self.limit)] if rows else []
        for chosen, most in ((remaining & kept, self.limit), (remaining & ~kept, self._memory)):
            if chosen.any():
                rounds.append((self._merged(first[chosen], behind[chosen], steps[chosen], last), most))
        return rounds

    def _merged(self, low: Int64s, high: Int64s, steps: Int64s, last: int) -> Needed:
        """Return requests for ranges; into memory, they have no gaps that the budget does not allow."""
        requests = needed(requests_for(low, high, fetcher().gap()), steps, last)
        if not self.cached and requests.size > max(self.budget // 2, self.limit - self._held):
            return needed(requests_for(low, high, 0), steps, last)
        return requests

    def _extend(
        self, store: RangeStore, keys: Sequence[str], low: Int64s, high: Int64s, steps: Int64s
    ) -> npt.NDArray[np.bool_]:
        """Keep segments until the last step of the ranges that they contain; return which ranges those are, bool[n]."""
        segments, numbers = [], []
        for number, key in enumerate(keys):
            held = store.held.requested_by(self, key)
            segments += held
            numbers += [number] * len(held)
        if not segments:
            return np.zeros(len(low), np.bool_)
        base = np.asarray(numbers, np.int64) << OFFSET_BITS
        begins = base + np.asarray([segment.begin for segment in segments], np.int64)
        ends = base + np.asarray([segment.end for segment in segments], np.int64)
        candidate = np.searchsorted(begins, low, side="right") - 1
        # Segments overlap, as those of a first batch and of its window: then the one that ends last may contain it.
        candidate = np.where(ends[candidate] >= high, candidate, farthest(ends)[candidate])
        covered = (begins[candidate] <= low) & (ends[candidate] >= high)
        last = np.full(len(segments), -1, np.int64)
        np.maximum.at(last, candidate[covered], steps[covered])
        with self._lock:
            for number in np.flatnonzero(last >= 0).tolist():
                segment = segments[number]
                if segment.last <= self._done:  # another thread freed it meanwhile
                    covered &= candidate != number
                else:
                    segment.last = max(segment.last, int(last[number]))
        return covered

    def _add(
        self,
        store: RangeStore,
        keys: Sequence[str],
        requests: Needed,
        cached_objects: Sequence[CachedObject | None] | None,
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
                cached = None if cached_objects is None else cached_objects[number]
                position = self, store, keys[number], begin, begin + size, step
                if self._use is None or cached is None or not cached.is_aligned(begin, begin + size):
                    segment = Segment(*position)
                else:
                    segment = CachedSegment(*position, cached, self._use)
                store.held.add(segment)
                self._queue.append(segment)
                self._by_last.setdefault(step, []).append(segment)
                self._held += size
            self.requests, self.bytes = self.requests + len(begins), self.bytes + requests.size
        self._pump()

    def _pump(self) -> None:
        """Send queued requests up to the limits on number and bytes in flight."""
        while True:
            with self._lock:
                if not self._queue or self._flying >= _MAX_AT_ONCE:
                    return
                size = self._queue[0].size
                if self._flying and self._flying_bytes + size > self._in_flight:
                    return
                segment = self._queue.popleft()
            segment.start()

    def sent(self, segment: Segment, future: Future[Any]) -> None:
        if future.done():  # from the cache; its callback would recurse, thousands of levels deep
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

    def _wait_for_budget(self, size: int, limit: int, starving: Starving | None) -> bool:
        """Wait until `size` more bytes fit into the limit, or the reader is starving.

        Returns:
            Whether the reader is still open.
        """
        with self._lock:
            self._awaited = size, limit
            while not (self._closed or starving is None or starving.now or self._fits()):
                self._freed.wait(_RECHECK_SECONDS)
                if ending():
                    return False
            self._awaited = None
            return not self._closed

    def _fits(self) -> bool:
        """Return whether the bytes for which `want` waits fit into the budget. Any size fits if nothing is held."""
        return self._awaited is not None and (not self._held or self._held + self._awaited[0] <= self._awaited[1])

    def wake(self) -> None:
        """Make a waiting `want` check again, because the reader is starving."""
        with self._lock:
            self._freed.notify_all()

    def finish(self) -> None:
        """Wait for all requests.

        Raises:
            FeedmillError: one failed.
        """
        with self._lock:
            segments = [segment for kept in self._by_last.values() for segment in kept]
        for segment in segments:
            result = segment.result()
            if isinstance(result, Exception):
                url = segment.store.locate(segment.key)
                known = isinstance(result, FeedmillError)
                raise (result if known else segment.store.translate(result, url) or result) from None

    def done(self, step: int) -> None:
        """Free the segments that no later step needs. Steps must be done in ascending order."""
        freed = []
        with self._lock:
            for number in range(self._done + 1, step + 1):
                for segment in self._by_last.pop(number, ()):
                    if segment.last > step:
                        self._by_last.setdefault(segment.last, []).append(segment)
                    else:
                        freed.append(segment)
            self._done = step
            self._held -= sum(segment.size for segment in freed)
            if self._fits():  # waking the thread at every step took 15 % of the time
                self._freed.notify_all()
        _drop(freed)

    def close(self) -> None:
        """Free all segments, and cancel their requests."""
        self._uses.done(self._done, closed=True)
        with self._lock:
            self._closed = True
            self._queue.clear()
            segments = [segment for kept in self._by_last.values() for segment in kept]
            self._by_last.clear()
            self._held = 0
            self._freed.notify_all()
        _drop(segments)


def _drop(segments: Sequence[Segment]) -> None:
    """Remove segments from their stores, and cancel their requests."""
    for segment in segments:
        segment.store.held.remove(segment)
        segment.cancel()


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


def objects(cached_objects: Sequence[CachedObject | None], low: Int64s) -> Iterator[tuple[CachedObject, int, int, int]]:
    """Yield each cached object with bytes, the number of its first byte, and the rows of its ranges.

    Args:
        cached_objects: by the number of the object.
        low: int64[n], ascending, begins of ranges with the number of the object in the bits above `OFFSET_BITS`.
    """
    numbers, firsts = np.unique(low >> OFFSET_BITS, return_index=True)
    for number, start, stop in zip(numbers.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(low)], strict=True):
        cached = cached_objects[number]
        if cached is not None and cached.size:
            yield cached, number << OFFSET_BITS, start, stop


def needed(requests: Requests, steps: Int64s, last: int) -> Needed:
    """Return the requests that a step up to `last` needs.

    Args:
        steps: int64[n], the steps of the ranges from which the requests were made.
    """
    soonest, latest = (extreme.reduceat(steps, requests.first) for extreme in (np.minimum, np.maximum))
    now = soonest <= last
    return Needed(requests.begins[now], requests.ends[now], soonest[now], latest[now])


Chunk = tuple[int, int, int, int]
"""A request for a part of an object: begin, end, and the first and the last step that needs it."""


def chunks(begins: Int64s, ends: Int64s, steps: Int64s, cached: CachedObject) -> list[Chunk]:
    """Cut an object into requests of `TARGET` bytes. One is longer if a range that begins in it ends later.

    Args:
        begins, ends, steps: int64[n], ranges of the object, ascending by begin, and the step that needs each.
        cached: the object.
    """
    last, size = int(steps.max()), cached.size
    found = {begin: (begin, min(begin + TARGET, size), last, last) for begin in range(0, size, TARGET)}
    numbers, first = np.unique(begins // TARGET, return_index=True)
    columns = [
        extreme.reduceat(values, first).tolist()
        for extreme, values in ((np.maximum, ends), (np.minimum, steps), (np.maximum, steps))
    ]
    for number, reached, soonest, latest in zip(numbers.tolist(), *columns, strict=True):
        begin = number * TARGET
        if begin < size:
            reached = -(-reached // cached.chunk) * cached.chunk
            found[begin] = (begin, min(max(found[begin][1], reached), size), soonest, latest)
    return list(found.values())


def soonest_uses(begins: Int64s, ends: Int64s, uses: Int64s, size: int) -> tuple[Int64s, Int64s]:
    """Return the chunks of byte ranges, ascending and each once, and the soonest use of each, int64[m] both.

    Args:
        begins, ends: int64[n]; ranges that end where they begin or before have no chunks. Ranges of several objects are
            distinguished by bits above those of offsets, which then are also above the numbers of the chunks.
        uses: int64[n].
        size: bytes of a chunk.
    """
    first = begins // size
    counts = np.maximum((ends - 1) // size - first + 1, 0) * (ends > begins)
    rows = np.repeat(np.arange(len(begins)), counts)
    numbers = first[rows] + np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.argsort(numbers, kind="stable")  # fast for ranges that are nearly in order
    numbers, rows = numbers[order], rows[order]
    starts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1]))[: len(numbers)])
    if not len(starts):
        return numbers, numbers
    return numbers[starts], np.minimum.reduceat(uses[rows], starts)


class PlannedUses:
    """Records the uses of chunks for `ReadAhead`: that of now, and once its step is done, the next one. Thread-safe.

    Args:
        shared: whether other readers use the same chunks at about the same time: a chunk is then kept for them until
            the steps of the following call are done, too.
    """

    def __init__(self, shared: bool = False) -> None:
        self._lock, self._shared = threading.Lock(), shared
        self._later: deque[tuple[int, list[tuple[CachedObject, Int64s, Int64s]], int]] = deque()

    def plan(
        self,
        cached_objects: Sequence[CachedObject | None],
        low: Int64s,
        high: Int64s,
        now: Int64s,
        later: Int64s,
        current: npt.NDArray[np.bool_],
        last: int,
    ) -> None:
        """Record when ranges are read: now, and by `done` of the step `last`, when they are read next.

        Args:
            cached_objects, low: as for `objects`; `high` has the ends.
            now, later: int64[n], positions of the plan.
            current: bool[n], ranges of steps up to `last`.
        """
        known = list(objects(cached_objects, low))
        if not known:
            return
        size = known[0][0].chunk
        limit = np.zeros(len(low), np.int64)
        for cached, base, start, stop in known:
            limit[start:stop] = base + cached.size
        high = np.minimum(high, limit)
        for cached, numbers, uses in _by_object(known, *soonest_uses(low, high, now, size)):
            cached.plan_uses(numbers, uses)
        if current.any():
            uses_later = soonest_uses(low[current], high[current], later[current], size)
            found = list(_by_object(known, *uses_later))
            with self._lock:
                self._later.append((last, found, int(now[current].max())))

    def done(self, step: int, *, closed: bool = False) -> None:
        """Record the next uses of chunks whose step is done; with `closed`, no step follows."""
        following = int(self._shared and not closed)
        while True:
            with self._lock:
                if len(self._later) <= following or self._later[following][0] > step:
                    return
                _, found, until = self._later.popleft()
            for cached, numbers, uses in found:
                cached.plan_uses(numbers, uses, until=until)


def _by_object(
    known: Sequence[tuple[CachedObject, int, int, int]], numbers: Int64s, uses: Int64s
) -> Iterator[tuple[CachedObject, Int64s, Int64s]]:
    """Yield each object of `objects` with the numbers of its chunks and their uses, from those of all objects."""
    bases = np.asarray([base for _, base, _, _ in known], np.int64) // known[0][0].chunk
    cuts = [*np.searchsorted(numbers, bases).tolist(), len(numbers)]
    for (cached, *_), base, a, b in zip(known, bases.tolist(), cuts[:-1], cuts[1:], strict=True):
        yield cached, numbers[a:b] - base, uses[a:b]


BUDGET = 256 << 20
"""Default memory in bytes for segments that are requested or kept."""
_MOST, _SHARE = 2 << 30, 16
"""What the default may grow to: a number of bytes, and the available memory divided by a number."""


def budget_from_environment() -> int:
    """Return ``$FEEDMILL_READ_AHEAD`` in bytes, or `BUDGET`; 0 turns reading ahead off. Raises `ConfigError`."""
    budget = _from_environment()
    return BUDGET if budget is None else budget


def most_from_environment() -> int:
    """Return what a budget may grow to for large windows: ``$FEEDMILL_READ_AHEAD``, or a share of the memory.

    Raises as `budget_from_environment`.
    """
    budget = _from_environment()
    if budget is not None:
        return budget
    memory = available_memory()
    return BUDGET if memory is None else max(BUDGET, min(_MOST, memory // _SHARE))


def _from_environment() -> int | None:
    return parse_size(os.environ.get("FEEDMILL_READ_AHEAD") or None, "FEEDMILL_READ_AHEAD")


def widened(budget: int, most: int, window: int) -> int:
    """Return a budget, up to `most`, of which a window of bytes takes half: the next one is fetched beside it.

    A smaller budget splits windows: the blocks of a shuffle are then requested sample by sample.
    """
    return max(budget, min(most, 2 * window))


def parts(sizes: npt.NDArray[np.int64], budget: int, most: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the parts of a window that take at most half of the budget: begin and end, as numbers of steps.

    Args:
        sizes: int64[n], bytes of each step. One that takes more than half is a part, or in none if it takes more than
            `most`.
        budget: memory in bytes.
        most: number of bytes.
    """
    ends, low = np.cumsum(sizes), 0
    while low < len(sizes):
        used = int(ends[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(ends, used + budget // 2, side="right")))
        if ends[high - 1] - used <= max(most, budget // 2):
            yield low, high
        low = high
