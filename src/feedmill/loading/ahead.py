"""Read ahead from remote stores: fetch the byte ranges of the next batches before the batches are made.

The pipeline of a `Loader` uses this module if the plan reads from a remote store, so that batches do not wait for the
network. A thread walks over the steps of the rank in *windows*. It looks up the byte ranges of their samples in the
plan and requests them from `ReadAhead` (``storage/fetching/read_ahead.py``).

The first batch is a separate window, so that over a slow network it does not wait for more data than its own (see
`Walk`). Later windows end at the boundaries of the block shuffle, so that a block becomes one request. A request takes
at most half of the memory budget, so that the next one is fetched while the batches of the previous one are made.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, cast

import numpy as np

from feedmill.loading.ahead_windows import Window, Windows, log_unread, together
from feedmill.loading.neighbors import Neighbors
from feedmill.loading.step_reader import settings_of
from feedmill.planning.dealing.grid import Step
from feedmill.planning.remote_reads import is_scattered, window_of
from feedmill.samples.text import human_size
from feedmill.storage.fetching.budget import budget_from_environment, most_from_environment, parts
from feedmill.storage.fetching.fetch import check_stop, ending, fetcher
from feedmill.storage.fetching.lanes import SMALL
from feedmill.storage.fetching.read_ahead import ReadAhead
from feedmill.storage.remote.range_store import RangeStore

logger = logging.getLogger("feedmill")

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
        self._lock = threading.Condition()
        self._starving = threading.Event()
        self._done = self._room = 0
        self._closed = self._warned = False
        self.waited = 0.0
        # Not a daemon thread: one that runs C++ code while the interpreter exits aborts the process.
        self._thread = threading.Thread(target=copy_context().run, args=(self._walk,), name="feedmill-walk")
        self._thread.start()

    def __next__(self) -> Step:
        with self._lock:
            if not self._ready:
                self._starving.set()
                self._reader.wake()
                while not (self._ready or self._error or self._closed):
                    self._lock.wait(_RECHECK_SECONDS)
                    check_stop()
            if not self._ready:
                raise self._error or StopIteration
            step = self._ready.popleft()
            if len(self._ready) == self._room:
                self._lock.notify_all()
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
            self._lock.notify_all()
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
                self._lock.notify_all()
        except BaseException as error:  # raised by `__next__`, in the thread that uses the steps
            with self._lock:
                self._error = error
                self._lock.notify_all()

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
        fetcher().run(0, _warm, self._plan)
        fetcher().run(0, _load_ahead, self._plan)

    def _is_small(self, first: Window, rest: Window) -> bool:
        """Return whether a first batch of small samples and the rest of its window are requested together."""
        wanted = [int((ranges.extents.ends - ranges.extents.begins).sum()) for ranges in first.extents]
        count = sum(len(ranges.extents.begins) for ranges in first.extents)
        total = sum(wanted) + sum(int((each.extents.ends - each.extents.begins).sum()) for each in rest.extents)
        return sum(wanted) < SMALL * count and total <= self._reader.budget // 2

    def _wait_for_room(self, steps: int) -> bool:
        """Wait until the loader has used enough steps that a window of `steps` is next; return whether it is open."""
        with self._lock:
            self._room = max(_AHEAD_STEPS, (_AHEAD_WINDOWS - 1) * steps)
            while len(self._ready) > self._room and not (self._closed or ending()):
                self._lock.wait(_RECHECK_SECONDS)
        return not (self._closed or ending())

    def _hand_out(self, steps: Sequence[Step]) -> None:
        with self._lock:
            self._ready.extend(steps)
            self._starving.clear()
            self._lock.notify_all()

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
        found = list(parts(sizes[:count], budget, self._reader.limit if self._reader.cached else 0))
        for low, high in found:
            used = int(ends[low - 1]) if low else 0
            yield low, high, max(high, int(np.searchsorted(ends, used + _SHARED * budget, side="right")))
        if len(found) > 1:
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
    paging = settings_of(plan).paging()
    if paging is None and processes:
        logger.warning(
            "worker processes do not read remote data ahead: that requires a cache on disk, and none is configured. Set"
            " FEEDMILL_CACHE_SIZE, add a 'cache' to the recipe, or use threads."
        )
        return None
    positions, scattered = window_of(plan), is_scattered(plan)
    if paging is None:
        reader = ReadAhead(budget, None, memory, most)
        warned = 1 if scattered or rank else world_size
        return Walk(Windows(steps, plan, positions * world_size, reader), plan, reader, warned)
    budget = max(budget, min(paging.cache.size // 4, _MOST_ON_DISK))
    if paging.cache.disabled or world_size == 1 or scattered:  # ranges of others share no requests then
        reader = ReadAhead(budget, paging, memory, most)
        return Walk(Windows(steps, plan, positions * world_size, reader), plan, reader)
    reader = ReadAhead(budget, paging, memory, most, shared=True)
    neighbors = Neighbors(paging.cache, plan, rank, world_size)
    return Walk(Windows(steps, plan, positions, reader, neighbors, world_size), plan, reader)


def _warm(plan: Any) -> None:
    import feedmill.loading.generator_keys  # noqa: F401 - each batch has a generator, whose code takes long to load

    for source in getattr(plan, "sources", ()):
        source.warm()


def _load_ahead(plan: Any) -> None:
    for source in getattr(plan, "sources", ()):
        try:
            if source.is_remote:
                source.load_ahead()
        except Exception as error:  # the step that needs them loads them again, and raises the error
            logger.debug("indices are not loaded ahead: %s: %s", type(error).__name__, error)
