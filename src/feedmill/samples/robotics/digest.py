"""Estimate percentiles of a stream: exactly while it has few values, from clusters of values afterwards.

Source: T. Dunning and O. Ertl, "Computing Extremely Accurate Quantiles Using t-Digests" (2019). Clusters are small at
both ends of the distribution. Here the scale function k1 divides [0, 1] into cells, and the values of one cell form a
cluster, so the result does not depend on a random order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]

MAX_BUFFER, COMPRESSION = 1000, 100


class Digest:
    """Percentile digest of one quantity.

    Attributes:
        means, weights: float64[n], values or clusters in ascending order.
        pending: Number of values added but not yet merged.
    """

    __slots__ = ("_pending", "compression", "max_buffer", "means", "pending", "weights")

    def __init__(self, max_buffer: int = MAX_BUFFER, compression: int = COMPRESSION) -> None:
        self.max_buffer, self.compression = max_buffer, compression
        self.means, self.weights = np.zeros(0), np.zeros(0)
        self._pending: list[Float64s] = []
        self.pending = 0

    def add(self, values: Float64s) -> None:
        """Add values, float64[n], in any order."""
        if len(values):
            self._pending.append(values)
            self.pending += len(values)
            if self.pending > 4 * self.max_buffer:
                self.settle()

    def merge(self, means: Float64s, weights: Float64s) -> None:
        """Merge the values or clusters of another digest."""
        self.settle()
        order = np.argsort(np.concatenate((self.means, means)), kind="stable")
        self.means = np.concatenate((self.means, means))[order]
        self.weights = np.concatenate((self.weights, weights))[order]
        self._compress()

    def settle(self) -> None:
        """Merge the pending values."""
        if self._pending:
            values = np.concatenate(self._pending)
            self._pending, self.pending = [], 0
            self.merge(values, np.ones(len(values)))

    def _compress(self) -> None:
        if len(self.means) <= self.max_buffer:
            return
        ends = np.cumsum(self.weights)
        middle = (ends - self.weights / 2) / ends[-1]
        cell = np.floor(self.compression / np.pi * np.arcsin(2 * middle - 1)).astype(np.int64)
        first = np.flatnonzero(np.diff(cell, prepend=cell[0] - 1))
        weights = np.add.reduceat(self.weights, first)
        self.means = np.add.reduceat(self.means * self.weights, first) / weights
        self.weights = weights

    @property
    def exact(self) -> bool:
        """Whether no values have been clustered."""
        self.settle()
        return bool((self.weights == 1).all())

    def percentiles(self, wanted: Sequence[float], low: float, high: float) -> list[float]:
        """Return percentiles by linear interpolation between the values or the middles of clusters.

        Args:
            wanted: Percentages from 0 to 100.
            low, high: The smallest and the largest value added.
        """
        self.settle()
        if not len(self.means):
            return [float("nan")] * len(wanted)
        if self.exact:
            return [float(value) for value in np.percentile(self.means, wanted)]
        ends = np.cumsum(self.weights)
        at = np.concatenate(([0.0], ends - self.weights / 2, [ends[-1]]))
        values = np.concatenate(([low], self.means, [high]))
        return [float(value) for value in np.interp(np.asarray(wanted) / 100 * ends[-1], at, values)]
