"""Read ahead from remote stores: fetch the byte ranges of the next batches before the batches are made.

The pipeline of a `Loader` uses this module if the plan reads from a remote store, so that batches do not wait for the
network. A thread walks over the steps of the rank in *windows*. It looks up the byte ranges of their samples in the
plan and requests them from `ReadAhead` (``storage/fetching/read_ahead.py``).

The first batch is a separate window, so that it does not wait for more data than its own. Later windows end at the
window boundaries of the block shuffle, so that a block becomes one request. A request takes at most half of the memory
budget, so that the next one is fetched while the batches of the previous one are made.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from feedmill.errors import FeedmillError
from feedmill.formats.extents import Extents
from feedmill.planning.dealing.grid import Step
from feedmill.planning.nodes.base import Located
from feedmill.planning.nodes.shuffle import DEFAULT_BLOCK, DEFAULT_WINDOW
from feedmill.storage.cache.settings import DataCache
from feedmill.storage.fetching.fetch import ending, fetcher
from feedmill.storage.fetching.read_ahead import BUDGET, ReadAhead, budget_from_environment
from feedmill.storage.remote.range_store import RangeStore

logger = logging.getLogger("feedmill")

WINDOW = DEFAULT_BLOCK * DEFAULT_WINDOW
"""Positions per window for each source that is read from a remote store."""
_MOST_SOURCES = 16
_MOST_ON_DISK = 1 << 30
"""Maximum number of bytes to request ahead into a cache on disk."""


class Walk(Iterator[Step]):
    """Iterator over the steps of a rank, in order, that requests their byte ranges ahead of time.

    Args:
        steps: the steps of the rank.
        plan: the plan, with the method `Plan.extents`.
        positions: number of positions of the plan per window.
        reader: requests the byte ranges.
    """

    def __init__(self, steps: Iterator[Step], plan: Any, positions: int, reader: ReadAhead) -> None:
        self._steps, self._plan, self._positions, self._reader = steps, plan, positions, reader
        self._ready: deque[Step | None] = deque()
        self._error: BaseException | None = None
        self._lock = threading.Condition()
        self._hungry = threading.Event()
        self._handed = self._done = 0
        self._closed = False
        # Not a daemon thread: one that runs C++ code while the interpreter exits aborts the process.
        self._thread = threading.Thread(target=self._walk, name="feedmill-walk")
        self._thread.start()

    def __next__(self) -> Step:
        with self._lock:
            if not self._ready:
                self._hungry.set()
                self._reader.wake()
                while not (self._ready or self._error or self._closed):
                    self._lock.wait()
            if not self._ready:
                raise self._error or StopIteration
            step = self._ready.popleft()
        if step is None:
            self._ready.append(None)
            raise StopIteration
        return step

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

    def _walk(self) -> None:
        try:
            while not (self._closed or ending()) and (window := self._next_window()):
                self._request(window)
            with self._lock:
                self._ready.append(None)
                self._lock.notify_all()
        except BaseException as error:  # raised by `__next__`, in the thread that uses the steps
            with self._lock:
                self._error = error
                self._lock.notify_all()

    def _hand_out(self, steps: list[Step]) -> None:
        self._handed += len(steps)
        with self._lock:
            self._ready.extend(steps)
            self._hungry.clear()
            self._lock.notify_all()

    def _next_window(self) -> list[Step]:
        """Return the steps of the next window; the first window has only the first step."""
        window: list[Step] = []
        begin = None
        for step in self._steps:
            window.append(step)
            begin = step.first if begin is None else begin
            if not self._handed or step.end // self._positions > begin // self._positions:
                break
        return window

    def _request(self, window: list[Step]) -> None:
        """Request the byte ranges of a window's steps and hand the steps out; if that fails, only hand them out."""
        number = self._handed
        try:
            positions = np.concatenate([step.positions for step in window])
            extents = self._plan.extents(positions, _joined([step.located for step in window]))
            steps = np.repeat(np.arange(number, number + len(window)), [len(step.slots) for step in window])
            self._within_budget(extents, steps, number, window)
        except Exception as error:  # reading the samples raises the error again if it concerns them
            # Thread pools reject new work while the interpreter exits.
            exiting = isinstance(error, RuntimeError) and "shutdown" in str(error)
            expected = exiting or isinstance(error, FeedmillError | OSError)
            level = logging.DEBUG if expected else logging.WARNING
            logger.log(level, "samples are not read ahead: %s: %s", type(error).__name__, error)
        self._hand_out(window[self._handed - number :])

    def _within_budget(self, extents: list[Extents], steps: Any, first: int, window: list[Step]) -> None:
        """Request a window in parts of at most half of the budget, and hand out each part after its request."""
        needs = [steps[extent.sample] for extent in extents]
        bytes_of_step = np.zeros(len(window), np.int64)
        for extent, need in zip(extents, needs, strict=True):
            np.add.at(bytes_of_step, need - first, extent.ends - extent.begins)
        ends = np.cumsum(bytes_of_step)
        half = self._reader.budget // 2
        low = 0
        while low < len(window):
            used = int(ends[low - 1]) if low else 0
            high = max(low + 1, int(np.searchsorted(ends, used + half, side="right")))
            if ends[high - 1] - used <= half:  # a larger step is not read ahead
                for extent, need in zip(extents, needs, strict=True):
                    rows = (need >= first + low) & (need < first + high)
                    ranges = extent.file[rows], extent.begins[rows], extent.ends[rows], need[rows]
                    if isinstance(extent.store, RangeStore):
                        self._reader.want(extent.store, extent.paths, *ranges, self._hungry)
            self._hand_out(window[low:high])
            low = high


class StepReader:
    """Reader of single steps through the cache on disk, in a worker process; `Walk` fills the cache in the parent.

    It waits for ranges that the parent is fetching, and requests the ranges that the parent has not begun.

    Args:
        cache: the settings of the cache.
    """

    def __init__(self, cache: DataCache) -> None:
        self.cache = cache
        self._reader: ReadAhead | None = None
        self._number = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_number": 0}

    @contextlib.contextmanager
    def reading(self, plan: Any, step: Step) -> Iterator[None]:
        """Request the bytes of a step, and keep them until the ``with`` block ends."""
        if self._reader is None:
            self._reader = ReadAhead(BUDGET, self.cache.paging())
        number, self._number = self._number, self._number + 1
        try:
            for extents in plan.extents(step.positions, _joined([step.located])):
                if isinstance(extents.store, RangeStore):
                    ranges = extents.file, extents.begins, extents.ends, np.full(len(extents.file), number)
                    self._reader.want(extents.store, extents.paths, *ranges, _ALWAYS)
        except (FeedmillError, OSError) as error:  # reading the samples raises the error again if it concerns them
            logger.debug("samples are not read ahead: %s", error)
        try:
            yield
        finally:
            self._reader.done(number)


_ALWAYS = threading.Event()
_ALWAYS.set()


def _joined(located: Sequence[Any]) -> Located | None:
    """Return the locations of several steps as one; None if they are unknown or have another type."""
    if not all(isinstance(located_step, Located) for located_step in located):
        return None
    columns = [(located_step.source, located_step.index, located_step.epoch) for located_step in located]
    return Located(*map(np.concatenate, zip(*columns, strict=True)))


def walk(steps: Iterator[Step], plan: Any, world_size: int, *, processes: bool = False) -> Walk | None:
    """Return a walk over the steps of a plan; None if the plan has no remote data or reading ahead is off.

    Args:
        steps: the steps of the rank.
        plan: the plan of the steps.
        world_size: number of ranks, over which the positions of a window are dealt.
        processes: whether batches are made in other processes, which share only a cache on disk.

    Raises:
        ConfigError: a setting of the environment is invalid.
    """
    if not getattr(plan, "is_remote", False):
        return None
    budget = memory = budget_from_environment()
    if not budget:
        return None
    paging = _settings(plan).paging()
    if paging is None and processes:
        logger.warning(
            "worker processes do not read remote data ahead: that requires a cache on disk, and none is configured. Set"
            " FEEDMILL_CACHE_SIZE, add a 'cache' to the recipe, or use threads."
        )
        return None
    if paging is not None:
        budget = max(budget, min(paging.cache.size // 4, _MOST_ON_DISK))
    remote = sum(source.is_remote for source in getattr(plan, "sources", ()))
    positions = WINDOW * max(1, min(remote, _MOST_SOURCES)) * world_size
    fetcher().run(0, _warm, plan)  # runs during the first requests
    return Walk(steps, plan, positions, ReadAhead(budget, paging, memory))


def _warm(plan: Any) -> None:
    for source in getattr(plan, "sources", ()):
        source.warm()


def step_reader(plan: Any) -> StepReader | None:
    """Return the reader for worker processes; None if the plan has no remote data, or without a cache or a budget."""
    if not getattr(plan, "is_remote", False) or not budget_from_environment():
        return None
    settings = _settings(plan)
    return StepReader(settings) if settings.size else None


def _settings(plan: Any) -> DataCache:
    return getattr(plan, "cache", None) or DataCache.of()
