"""The ranks of a run that share the cache of this machine, and the positions that they read.

A block of the shuffle is dealt to all ranks, so each of them needs samples from all of its parts. Through a cache on
disk, the ranks of a machine fetch its bytes once, and as one request only if each of them asks for all that they
need together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.planning.dealing.grid import Step
from feedmill.storage.cache.pages import PageCache

IntArray = npt.NDArray[np.int64]


class Neighbors:
    """The readers of the same plan on this machine, which come and go.

    Args:
        cache: the cache that they share; while it is disabled, each rank reads alone.
        plan: the plan of the run.
        rank, world_size: of this reader.
    """

    def __init__(self, cache: PageCache, plan: Any, rank: int, world_size: int) -> None:
        self._cache, self._readers, self._rank, self._world_size = cache, cache.readers, rank, world_size
        sources = [(source.url, len(source)) for source in getattr(plan, "sources", ())]
        identity = repr((sources, getattr(plan, "seed", None), getattr(plan, "length", None), world_size))
        self._run = xxhash.xxh3_64_intdigest(identity.encode("utf-8", "surrogateescape")) or 1
        self._joined = None if self._readers is None else self._readers.join(self._run, rank)

    def positions(self, steps: Sequence[Step]) -> list[IntArray]:
        """Return for each step the positions that other ranks of this machine read in it, int64[n] each.

        Where costs decide which rank reads a position, these are known only if all ranks are on this machine.
        """
        if self._readers is None or self._cache.disabled:
            return [_NONE] * len(steps)
        ranks = [rank for rank in self._readers.ranks(self._run) if rank != self._rank]
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
            self._joined.release()


_NONE = np.zeros(0, np.int64)
