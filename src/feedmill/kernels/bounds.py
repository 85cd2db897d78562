"""Where consecutive pieces of one array begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


def bounds_of(lengths: Sequence[int] | npt.NDArray[Any]) -> Int64s:
    """Return where each of consecutive pieces begins, and where the last one ends, int64[n + 1].

    Args:
        lengths: n integers or bools.

    >>> bounds_of([3, 0, 2]).tolist()
    [0, 3, 3, 5]
    """
    out = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    return out


def ranges(starts: Int64s, counts: Int64s) -> Int64s:
    """Return the concatenated ranges of ``counts[i]`` integers from ``starts[i]`` on.

    >>> ranges(np.array([5, 20]), np.array([3, 2])).tolist()
    [5, 6, 7, 20, 21]
    """
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
