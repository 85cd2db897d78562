"""Windows of steps whose bytes are read ahead together, and the byte ranges that they need."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import FeedmillError
from feedmill.formats.extents import Extents
from feedmill.loading.neighbors import Neighbors
from feedmill.loading.step_reader import joined
from feedmill.planning.dealing.grid import Step
from feedmill.planning.nodes.base import Located
from feedmill.storage.cache.page_map import FAR
from feedmill.storage.fetching.read_ahead import ReadAhead
from feedmill.storage.remote.range_store import RangeStore

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
        size = sum(int((each.extents.ends - each.extents.begins).sum()) for each in window.extents)
        fits = self._reader.budget // 2 * samples // max(1, size * self._positions)
        return min(self._world_size, max(1, self._world_size // _RANKS, fits))

    def _extents(self, first: int, window: list[Step]) -> list[Ranges]:
        """Return the byte ranges that steps need; none if that fails."""
        try:
            if first and self._neighbors is not None:  # the first batch does not wait for the bytes of others
                found = self._ranges(first, window, self._neighbors.positions(window))
                sizes = np.zeros(len(window), np.int64)
                for each in found:
                    np.add.at(sizes, each.steps - first, each.extents.ends - each.extents.begins)
                if sizes.max() <= self._reader.budget // 2:
                    return found
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
            Ranges(each, steps[each.sample], None if later is None else (positions[each.sample], later[each.sample]))
            for each in extents
            if isinstance(each.store, RangeStore)
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
