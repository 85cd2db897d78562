"""Dolma's search for repeated units in a sequence of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.curation.taggers.token_repetitions import Repetition as RepetitionTuple
from feedmill.curation.taggers.token_repetitions import find_periods

__all__ = [
    "RepetitionTuple",
    "find_end_first_consecutive_true",
    "find_periodic_sequences",
    "find_start_last_consecutive_true",
    "group_consecutive_values",
]


def find_periodic_sequences(
    arr: npt.NDArray[Any], max_period: int, min_period: int = 1, mask_value: int = -1
) -> Iterator[RepetitionTuple]:
    """Yield the units of `min_period` to `max_period` numbers that are repeated at least three times.

    Raises:
        ValueError: `mask_value` is in the array, which Dolma forbids.
    """
    if (arr == mask_value).any():
        raise ValueError(f"the mask value {mask_value} is in the array")
    yield from find_periods(arr, max_period, min_period)


def find_end_first_consecutive_true(arr: npt.NDArray[np.bool_]) -> int:
    """Return the number of values before the first one that is false."""
    return int(np.argmin(np.append(arr, False)))


def find_start_last_consecutive_true(arr: npt.NDArray[np.bool_]) -> int:
    """Return where the true values at the end begin, or -1 if there are none."""
    start = len(arr) - find_end_first_consecutive_true(arr[::-1])
    return start if start < len(arr) else -1


def group_consecutive_values(arr: npt.NDArray[Any], stepsize: int = 1) -> list[npt.NDArray[Any]]:
    """Return the runs in which each value is `stepsize` more than the one before."""
    return np.split(arr, np.flatnonzero(np.diff(arr) != stepsize) + 1)
