"""Read single steps through the cache on disk, in worker processes.

`feedmill.loading.ahead` fills the cache in the process of the loader.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from feedmill.errors import FeedmillError
from feedmill.planning.dealing.grid import Step
from feedmill.planning.nodes.base import Located

if TYPE_CHECKING:
    from feedmill.storage.cache.settings import DataCache
    from feedmill.storage.fetching.read_ahead import ReadAhead

logger = logging.getLogger("feedmill")


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
            from feedmill.storage.fetching.read_ahead import BUDGET, ReadAhead

            self._reader = ReadAhead(BUDGET, self.cache.use())
        number, self._number = self._number, self._number + 1
        from feedmill.storage.remote.range_store import RangeStore

        try:
            for extents in plan.extents(step.positions, joined([step.located])):
                if isinstance(extents.store, RangeStore):
                    ranges = extents.file, extents.begins, extents.ends, np.full(len(extents.file), number)
                    self._reader.want(extents.store, extents.paths, *ranges, None)
        except (FeedmillError, OSError) as error:  # reading the samples raises the error again if it concerns them
            logger.debug("samples are not read ahead: %s", error)
        try:
            yield
        finally:
            self._reader.done(number)


def step_reader(plan: Any) -> StepReader | None:
    """Return the reader for worker processes; None if the plan has no remote data, or without a cache or a budget."""
    from feedmill.storage.fetching.read_ahead import budget_from_environment

    if not getattr(plan, "is_remote", False) or not budget_from_environment():
        return None
    settings = settings_of(plan)
    return StepReader(settings) if settings.size else None


def joined(located: Sequence[Any]) -> Located | None:
    """Return the locations of several steps as one; None if they are unknown or have another type."""
    if not all(isinstance(located_step, Located) for located_step in located):
        return None
    columns = [(located_step.source, located_step.index, located_step.epoch) for located_step in located]
    return Located(*map(np.concatenate, zip(*columns, strict=True)))


def settings_of(plan: Any) -> DataCache:
    """Return the settings of the cache of a plan, or those of the environment."""
    from feedmill.storage.cache.settings import DataCache

    return getattr(plan, "cache", None) or DataCache.of()
