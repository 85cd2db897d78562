"""Read ahead from remote stores: fetch the byte ranges of the next batches before the batches are made.

The pipeline of a `Loader` uses this module if the plan reads from a remote store, so that batches do not wait for the
network. A thread walks over the steps of the rank in *windows* (`Windows`). It looks up the byte ranges of their
samples in the plan and requests them from `ReadAhead` (``storage/fetching/read_ahead.py``).

The first batch is a separate window, so that over a slow network it does not wait for more data than its own (see
`Walk`). Later windows end at the boundaries of the block shuffle, so that a block becomes one request. A request takes
at most half of the memory budget, so that the next one is fetched while the batches of the previous one are made.

A block of the shuffle is dealt to all ranks, so each of them needs samples from all of its parts. Through a cache on
disk, the ranks of a machine (`Neighbors`) fetch its bytes once, and as one request only if each of them asks for all
that they need together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import FeedmillError
from feedmill.formats.offsets import Extents
from feedmill.loading.step_reader import joined, settings_of
from feedmill.planning.dealing.grid import Step
from feedmill.planning.nodes.base import Located
from feedmill.planning.remote_reads import is_scattered, window_of
from feedmill.samples.text import human_size
from feedmill.storage.cache.chunks import FAR, ChunkCache
from feedmill.storage.fetching.fetch import check_stop, ending, fetcher
from feedmill.storage.fetching.lanes import SMALL
from feedmill.storage.fetching.read_ahead import (
    ReadAhead,
    Starving,
    budget_from_environment,
    most_from_environment,
    parts,
)
from feedmill.storage.remote.range_store import RangeStore

IntArray = npt.NDArray[np.int64]


class Neighbors:
    """The readers of the same plan on this machine, which come and go.

    Args:
        cache: the cache that they share; while it is disabled, each rank reads alone.
        plan: the plan of the run.
        rank, world_size: of this reader.
    """

    def __init__(self, cache: ChunkCache, plan: Any, rank: int, world_size: int) -> None:
        self._cache, self._rank, self._world_size = cache, rank, world_size
        sources = [(source.url, len(source)) for source in getattr(plan, "sources", ())]
        identity = repr((sources, getattr(plan, "seed", None), getattr(plan, "length", None), world_size))
        self._run = xxhash.xxh3_64_intdigest(identity.encode("utf-8", "surrogateescape")) or 1
        self._joined = cache.join(self._run, rank)

    def positions(self, steps: Sequence[Step]) -> list[IntArray]:
        """Return for each step the positions that other ranks of this machine read in it, int64[n] each.

        Where costs decide which rank reads a position, these are known only if all ranks are on this machine.
        """
        if self._cache.disabled:
            return [_NONE] * len(steps)
        ranks = [rank for rank in self._cache.readers.ranks(self._run) if rank != self._rank]
        return [self._of(step, ranks) for step in steps]

    def _of(self, step: Step, ranks: Sequence[int]) -> IntArray:
        count = len(step.slots)
        if step.dealt is None:
            begins = [step.first + (rank - self._rank) * count for rank in ranks]
            found = np.concatenate([_NONE, *(np.arange(begin, begin + count) for begin in begins)])
        elif len(ranks) + 1 == self._world_size:
            found = np.setdiff1d(np.arange(step.end - count * self._world_size, step.end), step.dealt)
        else:
            return _NONE
        inside = found >= 0
        return found[inside if step.length is None else inside & (found < step.length)]

    def close(self) -> None:
        """Leave the others."""
        if self._joined is not None:
            self._joined.close()


_NONE = np.zeros(0, np.int64)


logger = logging.getLogger("feedmill")

_RANKS = 8
"""Ranks of a machine that share a cache, as an estimate."""


class Window(NamedTuple):
    """Consecutive steps of a rank.

    Attributes:
        first: number of the first step.
        steps: the steps.
        extents: the byte ranges that they need.
    """

    first: int
    steps: list[Step]
    extents: list[Ranges]


class Ranges(NamedTuple):
    """Byte ranges of files of one store.

    Attributes:
        extents: the ranges.
        steps: int64[m], the number of the step that needs each.
        uses: int64[m] each: the positions of the plan that read each range now, and next; see `ReadAhead.want`.
    """

    extents: Extents
    steps: Any
    uses: tuple[Any, Any] | None


def together(window: Window, following: Window | None) -> Iterator[Ranges]:
    """Yield the ranges of two windows, those of the same files as one."""
    others = list(following.extents) if following else []
    for ranges in window.extents:
        extents = ranges.extents
        for number, other in enumerate(others):
            if other.extents.store is extents.store and other.extents.paths == extents.paths:
                del others[number]
                uses = None
                if ranges.uses is not None and other.uses is not None:
                    now, later = map(np.concatenate, zip(ranges.uses, other.uses, strict=True))
                    uses = now, later
                yield Ranges(extents.joined(other.extents), np.concatenate((ranges.steps, other.steps)), uses)
                break
        else:
            yield ranges


class Windows(Iterable[Window]):
    """The windows of a run; the first one has only the first step.

    Args:
        steps: the steps of the rank.
        plan: the plan, with the method `Plan.extents`.
        positions: number of positions of the plan per window.
        reader: will request the byte ranges.
        neighbors: ranks of this machine that share the cache of the reader. A window is then as many times `positions`
            as fit into half of the budget, because they read it together: at most `world_size` times. If a step of all
            ranks takes more than that, each of them requests its own samples.
        world_size: number of ranks, over which positions are dealt.
    """

    def __init__(
        self,
        steps: Iterator[Step],
        plan: Any,
        positions: int,
        reader: ReadAhead,
        neighbors: Neighbors | None = None,
        world_size: int = 1,
    ) -> None:
        self._steps, self._plan, self._positions, self._reader = steps, plan, positions, reader
        self._neighbors, self._world_size = neighbors, world_size

    def close(self) -> None:
        """Leave the neighbors."""
        if self._neighbors is not None:
            self._neighbors.close()

    def __iter__(self) -> Iterator[Window]:
        steps: list[Step] = []
        first = begin = 0
        for step in self._steps:
            begin = begin if steps else step.first
            steps.append(step)
            if not first or step.end // self._positions > begin // self._positions:
                window = Window(first, steps, self._extents(first, steps))
                if not first and self._neighbors is not None:
                    self._positions *= self._times(window)
                yield window
                first, steps = first + len(steps), []
        if steps:
            yield Window(first, steps, self._extents(first, steps))

    def _times(self, window: Window) -> int:
        """Return how many times the positions of a window fit into half of the budget, if they are as large as here."""
        samples = sum(len(step.slots) for step in window.steps)
        size = sum(int((extent.extents.ends - extent.extents.begins).sum()) for extent in window.extents)
        fits = self._reader.budget // 2 * samples // max(1, size * self._positions)
        return min(self._world_size, max(1, self._world_size // _RANKS, fits))

    def _extents(self, first: int, window: list[Step]) -> list[Ranges]:
        """Return the byte ranges that steps need; none if that fails."""
        try:
            if first and self._neighbors is not None:  # the first batch does not wait for the bytes of others
                extents = self._ranges(first, window, self._neighbors.positions(window))
                sizes = np.zeros(len(window), np.int64)
                for each in extents:
                    np.add.at(sizes, each.steps - first, each.extents.ends - each.extents.begins)
                if sizes.max() <= self._reader.budget // 2:
                    return extents
            return self._ranges(first, window, [])
        except Exception as error:  # reading the samples raises the error again if it concerns them
            log_unread(error)
            return []

    def _ranges(self, first: int, window: list[Step], others: list[npt.NDArray[np.int64]]) -> list[Ranges]:
        """Return the byte ranges that steps need, and those of the positions that other ranks read in them."""
        located = joined([step.located for step in window])
        parts = [step.positions for step in window] + others
        positions = np.concatenate(parts)
        if located is not None and len(positions) > len(located.index):
            located = self._plan.locate_ahead(positions)
        numbers = np.resize(np.arange(first, first + len(window)), len(parts))
        steps = np.repeat(numbers, list(map(len, parts)))
        extents, later = self._plan.extents(positions, located), self._later(located)
        return [
            Ranges(
                extent,
                steps[extent.sample],
                None if later is None else (positions[extent.sample], later[extent.sample]),
            )
            for extent in extents
            if isinstance(extent.store, RangeStore)
        ]

    def _later(self, located: Located | None) -> Any:
        """Return the position at which each sample is read again, `FAR` if none; None without a cache or locations."""
        next_uses = getattr(self._plan, "next_uses", None)
        if located is None or next_uses is None or not self._reader.cached:
            return None
        try:
            positions = next_uses(located)
        except Exception as error:  # only a hint: without it the cache evicts what was used least recently
            logger.debug("the next uses are unknown: %s: %s", type(error).__name__, error)
            return None
        return np.where(positions < 0, FAR, positions)


def log_unread(error: Exception) -> None:
    """Log why samples are not read ahead; reading them raises the error again if it concerns them."""
    exiting = isinstance(error, RuntimeError) and "shutdown" in str(error)  # thread pools reject new work then
    expected = exiting or isinstance(error, FeedmillError | OSError)
    level = logging.DEBUG if expected else logging.WARNING
    logger.log(level, "samples are not read ahead: %s: %s", type(error).__name__, error)


_SHARED = 0.75
"""Part of the budget that a part of a window takes at most, with the ranges of later steps in its requests."""
_SCATTERED = 1 << 20
"""Bytes per request below which a split window is worth a warning; a request of a whole one has 4 MiB."""
_MANY = 1000
"""Number of requests from which small ones are worth a warning."""
_RECHECK_SECONDS = 0.1
"""Time after which a wait checks whether the loader was closed."""
_AHEAD_STEPS, _AHEAD_WINDOWS = 512, 4
"""How far the walk may be ahead of the loader, in steps and in windows, whichever is more.

The budget bounds requests, but not steps that need none: those of an endless plan over little data, or over local data.
"""
_MOST_ON_DISK = 1 << 30
"""Maximum number of bytes to request ahead into a cache on disk."""


class Walk(Iterator[Step]):
    """Iterator over the steps of a rank, in order, that requests their byte ranges ahead of time.

    Args:
        windows: the steps of the rank in windows, with the byte ranges that they need.
        plan: the plan of the steps.
        reader: requests the byte ranges.
        ranks: number of ranks to which blocks are dealt without a cache, for a warning; 1 for none.

    Attributes:
        waited: seconds that the first step waited for its bytes before it was handed out.
    """

    def __init__(self, windows: Windows, plan: Any, reader: ReadAhead, ranks: int = 1) -> None:
        self._windows, self._plan, self._reader, self._ranks = windows, plan, reader, ranks
        self._ready: deque[Step | None] = deque()
        self._error: BaseException | None = None
        self._lock = threading.RLock()  # a signal handler may close it
        self._changed = threading.Condition(self._lock)  # waited for and notified; see `ReadAhead`
        self._starving = Starving()
        self._done = self._room = 0
        self._closed = self._warned = False
        self.waited = 0.0
        # Not a daemon thread: one that runs C++ code while the interpreter exits aborts the process.
        self._thread = threading.Thread(target=copy_context().run, args=(self._walk,), name="feedmill-walk")
        self._thread.start()

    def __next__(self) -> Step:
        with self._lock:
            if not self._ready:
                self._starving.now = True
                self._reader.wake()
                while not (self._ready or self._error or self._closed):
                    self._changed.wait(_RECHECK_SECONDS)
                    check_stop()
            if not self._ready:
                raise self._error or StopIteration
            step = self._ready.popleft()
            if len(self._ready) == self._room:
                self._changed.notify_all()
        if step is None:
            self._ready.append(None)
            raise StopIteration
        return step

    def ready(self) -> int:
        """Return how many steps can be taken without waiting."""
        with self._lock:
            return len(self._ready) - (bool(self._ready) and self._ready[-1] is None)

    def done(self) -> None:
        """Free the bytes of the oldest step that is not done yet."""
        self._reader.done(self._done)
        self._done += 1

    def close(self) -> None:
        """End the thread and drop its requests."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        self._reader.close()
        self._windows.close()

    def _walk(self) -> None:
        try:
            windows = iter(self._windows)
            self._start(next(windows, None), next(windows, None))
            window = next(windows, None)
            while window is not None and self._wait_for_room(len(window.steps)):
                try:
                    following = next(windows, None)
                except BaseException:
                    self._request(window, None)
                    raise
                self._request(window, following)
                window = following
            with self._lock:
                self._ready.append(None)
                self._changed.notify_all()
        except BaseException as error:  # raised by `__next__`, in the thread that uses the steps
            with self._lock:
                self._error = error
                self._changed.notify_all()

    def _start(self, first: Window | None, rest: Window | None) -> None:
        """Request the first two windows, and hand them out.

        The loader waits for the first batch. If its samples are small, it shares the requests of the rest of its
        window: a few large ones, which arrive in a fraction of a second. Where they do not, as over a slow network, its
        samples are requested again, each on its own. That is not done with a cache on disk: all processes of a machine
        together fetch each byte once.
        """
        if first is None:
            return
        shared = rest is not None and not self._reader.cached and self._is_small(first, rest)
        if shared and rest is not None:
            self._request(Window(first.first, [*first.steps, *rest.steps], list(together(first, rest))), None, first)
            return
        self._request(first, None)
        self._load_meanwhile()
        if rest is not None:
            self._request(rest, None)

    def _load_meanwhile(self) -> None:
        """Load code and indices that the next batches need, while the bytes of the first arrive. It takes long, and
        earlier it would take the interpreter from the thread that requests them."""
        fetcher().run(0, _load_code)
        fetcher().run(0, _load_ahead, self._plan)

    def _is_small(self, first: Window, rest: Window) -> bool:
        """Return whether a first batch of small samples and the rest of its window are requested together."""
        wanted = [int((ranges.extents.ends - ranges.extents.begins).sum()) for ranges in first.extents]
        count = sum(len(ranges.extents.begins) for ranges in first.extents)
        total = sum(wanted) + sum(int((extent.extents.ends - extent.extents.begins).sum()) for extent in rest.extents)
        return sum(wanted) < SMALL * count and total <= self._reader.budget // 2

    def _wait_for_room(self, steps: int) -> bool:
        """Wait until the loader has used enough steps that a window of `steps` is next; return whether it is open."""
        with self._lock:
            self._room = max(_AHEAD_STEPS, (_AHEAD_WINDOWS - 1) * steps)
            while len(self._ready) > self._room and not (self._closed or ending()):
                self._changed.wait(_RECHECK_SECONDS)
        return not (self._closed or ending())

    def _hand_out(self, steps: Sequence[Step]) -> None:
        with self._lock:
            self._ready.extend(steps)
            self._starving.now = False
            self._changed.notify_all()

    def _request(self, window: Window, following: Window | None, awaited: Window | None = None) -> None:
        """Request what the steps of a window need, and hand them out; without requests if that fails.

        A shuffle begins new blocks at each epoch, and each source of a blend at its own positions, so a window may end
        in the middle of blocks. Where a request for this window has a neighbor that the following one needs, both are
        one request.

        Args:
            awaited: part of the window that the loader waits for; see `ReadAhead.arrived`.
        """
        handed = 0
        try:
            for low, high, reach in self._parts(window, following):
                for each, need, uses in together(window, following):
                    rows = (need >= window.first + low) & (need < window.first + reach)
                    ranges = each.file[rows], each.begins[rows], each.ends[rows], need[rows]
                    store, last = cast(RangeStore, each.store), window.first + high - 1
                    planned = None if uses is None else (uses[0][rows], uses[1][rows])
                    self._reader.want(store, each.paths, *ranges, self._starving, last, planned)
                    if awaited is None and each.check is not None:
                        fetcher().run(0, each.check, sorted(set(ranges[0][need[rows] <= last].tolist())))
                if awaited is not None:
                    for each, _, _ in awaited.extents:
                        if each.check is not None:
                            fetcher().run(0, partial(each.check, sorted(set(each.file.tolist())), awaited=True))
                    self._load_meanwhile()
                    began = time.perf_counter()
                    for each, _, _ in awaited.extents:
                        store = cast(RangeStore, each.store)
                        self._reader.arrived(store, each.paths, each.file, each.begins, each.ends)
                    self.waited = time.perf_counter() - began
                self._hand_out(window.steps[handed:high])
                handed = high
            self._advise()
        except Exception as error:  # reading the samples raises the error again if it concerns them
            log_unread(error)
        self._hand_out(window.steps[handed:])

    def _parts(self, window: Window, following: Window | None) -> Iterator[tuple[int, int, int]]:
        """Yield parts of a window that take at most half of the budget.

        A step that takes more is not read ahead, or is a part of its own if the cache on disk holds it.

        Yields:
            The begin and the end of a part, and the end of the steps with which it may share requests, as numbers of
            steps from the window's first one.
        """
        count = len(window.steps)
        sizes = np.zeros(count + (len(following.steps) if following else 0), np.int64)
        for each, need, _ in [*window.extents, *(following.extents if following else ())]:
            np.add.at(sizes, need - window.first, each.ends - each.begins)
        self._reader.widen(int(max(sizes[:count].sum(), sizes[count:].sum())))
        ends, budget = np.cumsum(sizes), self._reader.budget
        parts_of_window = list(parts(sizes[:count], budget, self._reader.limit if self._reader.cached else 0))
        for low, high in parts_of_window:
            used = int(ends[low - 1]) if low else 0
            yield low, high, max(high, int(np.searchsorted(ends, used + _SHARED * budget, side="right")))
        if len(parts_of_window) > 1:
            self._warn(int(ends[count - 1]))

    def _advise(self) -> None:
        """Log, once, that samples are requested one by one because the blocks of a shuffle are dealt to ranks."""
        reader = self._reader
        few = reader.requests < _MANY or reader.bytes > SMALL * reader.requests
        if self._warned or self._ranks == 1 or few:
            return
        self._warned = True
        logger.warning(
            "a request has only %s of samples, because blocks are dealt to %d ranks. Ranks of a machine that share a"
            " cache on disk request blocks together: set FEEDMILL_CACHE_SIZE, or add a 'cache' to the recipe.",
            human_size(reader.bytes // reader.requests),
            self._ranks,
        )

    def _warn(self, window: int) -> None:
        """Log, once, that the blocks of a window do not fit into the budget together, so that samples are scattered."""
        reader = self._reader
        if self._warned or reader.bytes > _SCATTERED * reader.requests:
            return
        self._warned = True
        logger.warning(
            "a window of the shuffle takes %s, and reading ahead may take %s: it needs a request for each %s. Set"
            " FEEDMILL_READ_AHEAD=%dM%s.",
            human_size(window),
            human_size(reader.budget),
            human_size(reader.bytes // max(1, reader.requests)),
            -(-2 * window // (1 << 20)),
            "" if reader.cached else ", or give the recipe a 'cache' on disk",
        )


def walk(steps: Iterator[Step], plan: Any, rank: int, world_size: int, *, processes: bool = False) -> Walk | None:
    """Return a walk over the steps of a plan; None if the plan has no remote data or reading ahead is off.

    Args:
        steps: the steps of the rank.
        plan: the plan of the steps.
        rank, world_size: this rank, and the number of ranks, over which the positions of a window are dealt.
        processes: whether batches are made in other processes, which share only a cache on disk.

    Raises:
        ConfigError: a setting of the environment is invalid.
    """
    if not getattr(plan, "is_remote", False):
        return None
    budget = memory = budget_from_environment()
    if not budget:
        if settings_of(plan).size:
            logger.warning(
                "FEEDMILL_READ_AHEAD=0 turns reading ahead off: samples are read without the cache that is configured."
            )
        return None
    most = most_from_environment()
    use = settings_of(plan).use()
    if use is None and processes:
        logger.warning(
            "worker processes do not read remote data ahead: that requires a cache on disk, and none is configured. Set"
            " FEEDMILL_CACHE_SIZE, add a 'cache' to the recipe, or use threads."
        )
        return None
    positions, scattered = window_of(plan), is_scattered(plan)
    if use is None:
        reader = ReadAhead(budget, None, memory, most)
        warned = 1 if scattered or rank else world_size
        return Walk(Windows(steps, plan, positions * world_size, reader), plan, reader, warned)
    use.scattered = scattered
    budget = max(budget, min(use.cache.size // 4, _MOST_ON_DISK))
    if use.cache.disabled or world_size == 1 or scattered:  # ranges of others share no requests then
        reader = ReadAhead(budget, use, memory, most)
        return Walk(Windows(steps, plan, positions * world_size, reader), plan, reader)
    reader = ReadAhead(budget, use, memory, most, shared=True)
    neighbors = Neighbors(use.cache, plan, rank, world_size)
    return Walk(Windows(steps, plan, positions, reader, neighbors, world_size), plan, reader)


def _load_code() -> None:
    import feedmill.loading.generators  # noqa: F401 - each batch has a generator, whose code takes long to load


def _load_ahead(plan: Any) -> None:
    for source in getattr(plan, "sources", ()):
        try:
            if source.is_remote:
                source.load_ahead()
        except Exception as error:  # the step that needs them loads them again, and raises the error
            logger.debug("indices are not loaded ahead: %s: %s", type(error).__name__, error)
