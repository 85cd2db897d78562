"""Dolma's histograms of attributes, over those of `feedmill.curation.dolma_stat`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.curation.dolma_stat import Bins

__all__ = [
    "FixedBucketsValTracker",
    "InferBucketsValTracker",
    "SummaryTuple",
    "cumsum_with_reset",
    "equal_count_hist",
    "merge_bins",
]

_ROOM = 1 << 16
"""Numbers that are gathered before they are counted."""
Array = npt.NDArray[Any]


class SummaryTuple(NamedTuple):
    """Counts (shares if asked for) and edges of bins, and number and sum of all numbers."""

    counts: list[Any]
    bins: list[float]
    total: int
    sum: int | float


class FixedBucketsValTracker:
    """Histogram that numbers are added to, with Dolma's bins."""

    def __init__(self) -> None:
        self._bins = Bins()
        self._numbers: list[float] = []
        self._times: list[int] = []

    def add(self, values: float | list[float], counts: int | list[int] = 1) -> None:
        """Add a number with its count, or several of them."""
        if isinstance(values, list) != isinstance(counts, list):
            raise ValueError("values and counts must both be lists, or neither")
        self._numbers += values if isinstance(values, list) else [values]
        self._times += counts if isinstance(counts, list) else [counts]
        if len(self._numbers) >= _ROOM:
            self._count()

    def _count(self) -> None:
        numbers = np.repeat(np.array(self._numbers, np.float64), self._times)
        self._bins.add(numbers, whole=bool((numbers == np.floor(numbers)).all()))
        self._numbers, self._times = [], []

    def __len__(self) -> int:
        self._count()
        return len(self._bins.edges()[0])

    @property
    def total(self) -> int:
        """Number of numbers."""
        self._count()
        return self._bins.total

    @property
    def sum(self) -> int | float:
        """Sum of the numbers."""
        self._count()
        return self._bins.sum

    def summarize(self, n: int, density: bool = False) -> SummaryTuple:
        """Return at most `n` bins of equal width, with `density` the share of numbers per unit of width."""
        self._count()
        found = self._bins.summary("", n)
        counts: list[Any] = found.counts
        if density:
            counts = (np.array(counts) / np.diff(found.bins) / max(sum(counts), 1)).tolist()
        return SummaryTuple(counts, found.bins, found.total, found.sum)


class InferBucketsValTracker(FixedBucketsValTracker):
    """`FixedBucketsValTracker`; the number of bins has no effect."""

    def __init__(self, n: int = 0, b: int | None = None) -> None:  # noqa: ARG002
        super().__init__()


def merge_bins(bin_a: Array, count_a: Array, bin_b: Array, count_b: Array) -> tuple[Array, Array]:
    """Return the edges of two histograms, sorted, and the counts at each; edges within one may repeat."""
    edges, inverse = np.unique(np.concatenate((bin_a, bin_b)), return_inverse=True)
    counts = np.bincount(inverse, np.concatenate((count_a, count_b)), len(edges))
    return edges, counts.astype(np.int64)


def cumsum_with_reset(arr: npt.ArrayLike, reset_value: int = 0) -> Array:
    """Return the sums from the last `reset_value` on, which is 0 there; of equal length."""
    values = np.asarray(arr)
    sums = np.cumsum(values)
    last = np.maximum.accumulate(np.where(values == reset_value, np.arange(len(values)), -1))
    return sums - np.where(last >= 0, sums[last] if len(sums) else 0, 0)


def equal_count_hist(
    a: npt.ArrayLike, bins: Any = 10, density: bool = False, weights: npt.ArrayLike | None = None
) -> tuple[Array, Array]:
    """Return counts and edges of bins of about equal counts, for sorted values with weights.

    Values that outweigh a bin end one. Where none does, bins end where the weights since the last end reach a multiple
    of what is left for each bin.
    """
    values = np.asarray(a)
    if not isinstance(bins, int):
        counts, edges = np.histogram(values, bins, weights=weights, density=density)
        return counts, edges
    if not values.size:
        return np.array([]), np.array([])
    weight = np.ones(len(values), np.int64) if weights is None else np.asarray(weights, np.int64)
    ended = np.zeros(len(values), np.bool_)
    ends: set[int] = {len(values) - 1}
    wanted = min(bins, len(values)) - 1
    while wanted > 0 and not ended.all():
        new = _ends(np.where(ended, -1, weight), wanted)
        wanted += bool(new[-1])  # the last value ends a bin anyway
        chosen = np.flatnonzero(new)
        if len(chosen) > wanted:
            chosen = chosen[:: len(chosen) // wanted]
        ends.update(chosen.tolist())
        ended |= new
        wanted -= len(chosen)
    last = np.array(sorted(ends))
    counts = np.diff(np.cumsum(weight)[last], prepend=0)
    middle = [(values[k] + values[k + 1]) / 2 for k in last[:-1]]
    edges = np.array([values[0], *middle, values[-1]])
    return (counts / counts.sum() if density else counts), edges


def _ends(left: Array, wanted: int) -> npt.NDArray[np.bool_]:
    """Return which values end a bin, where `wanted` bins are left and values of ended bins are -1."""
    share = left[left > 0].sum() // wanted
    new: npt.NDArray[np.bool_] = left >= share
    if not new.any():
        times = np.round(cumsum_with_reset(left, -1) / share).astype(np.int64)
        new = times > np.roll(times, 1)
        if not times.any():
            new = np.arange(len(left)) == left.argmax()
    return new
