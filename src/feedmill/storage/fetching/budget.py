"""The memory for bytes that are read ahead: its setting, what it grows to, and which parts of a window fit into it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from feedmill.storage.limits import available_memory, parse_size

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
