"""Distribution of numbers in bounded memory: exact count, sum, minimum and maximum, and a fine histogram.

A bin holds the numbers that agree in sign, exponent and the first ten bits of the fraction. There are a thousand bins
per doubling, so quantiles are within 0.1 % of the exact value (for subnormal numbers, within 2.2e-308). A bin stores
its smallest number, so results are exact for few numbers, and for integers up to 2,048. Merging the series of parts
gives the series of the whole, except for the last digits of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_SHIFT = 52 - 10
_MAGNITUDE = np.int64((1 << 63) - 1)
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


class Series:
    """Distribution of numbers.

    Attributes:
        count, total: number of values, and their sum.
        low, high: the minimum and the maximum; 0 if there are none.
    """

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0
        self.low = self.high = 0.0
        self._keys: Ints = np.zeros(0, np.int64)
        self._counts: Ints = np.zeros(0, np.int64)
        self._values: Floats = np.zeros(0)

    def add(self, numbers: npt.ArrayLike) -> None:
        """Add numbers, which must be finite."""
        values = np.sort(np.asarray(numbers, np.float64)) + 0.0  # no negative zero
        if not len(values):
            return
        keys = bin_keys(values)
        firsts = np.concatenate(([0], np.flatnonzero(np.diff(keys)) + 1))
        part = Series()
        part.count, part.total = len(values), float(np.sum(values))
        part.low, part.high = float(values[0]), float(values[-1])
        part._keys, part._values = keys[firsts], values[firsts]
        part._counts = np.diff(np.append(firsts, len(values)))
        self.merge(part)

    def merge(self, other: Series) -> None:
        """Add all numbers of another series."""
        if not other.count:
            return
        self.low = min(self.low, other.low) if self.count else other.low
        self.high = max(self.high, other.high) if self.count else other.high
        self.count += other.count
        self.total += other.total
        values = np.concatenate((self._values, other._values))
        order = np.argsort(values, kind="stable")
        keys = np.concatenate((self._keys, other._keys))[order]
        firsts = np.concatenate(([0], np.flatnonzero(np.diff(keys)) + 1))
        self._keys, self._values = keys[firsts], values[order][firsts]
        self._counts = np.add.reduceat(np.concatenate((self._counts, other._counts))[order], firsts)

    def as_state(self) -> dict[str, Any]:
        """Return the whole distribution as numbers and bytes."""
        arrays = {"keys": self._keys.tobytes(), "counts": self._counts.tobytes(), "values": self._values.tobytes()}
        return {"count": self.count, "total": self.total, "low": self.low, "high": self.high, **arrays}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Series:
        """Return the distribution of `as_state`."""
        made = cls()
        made.count, made.total, made.low, made.high = (state[name] for name in ("count", "total", "low", "high"))
        made._keys, made._counts = (np.frombuffer(state[name], np.int64) for name in ("keys", "counts"))
        made._values = np.frombuffer(state["values"], np.float64)
        return made

    @property
    def mean(self) -> float:
        """The mean of all numbers; 0.0 without any."""
        return self.total / self.count if self.count else 0.0

    @property
    def bins(self) -> tuple[Floats, Ints]:
        """Return the non-empty bins in ascending order: the smallest number and the count of each."""
        return self._values, self._counts

    def quantiles(self, shares: Sequence[float] = QUANTILES) -> list[float]:
        """Return the quantiles at the given shares."""
        if not self.count:
            return [0.0 for _ in shares]
        ends = np.cumsum(self._counts)
        places = np.searchsorted(ends, np.ceil(np.asarray(shares) * self.count), side="left")
        values: list[float] = self._values[np.minimum(places, len(ends) - 1)].tolist()
        return values

    def histogram(self, bins: int) -> tuple[Floats, Ints]:
        """Counts in `bins` (at most) classes of equal width, or of equal ratio where the numbers span more than a
        thousandfold: float64[n + 1] edges, int64[n] counts. Whole numbers get classes of whole width.
        """
        if not self.count:
            return np.zeros(1), np.zeros(0, np.int64)
        positive = self._values[self._values > 0]
        least = float(positive[0]) if len(positive) else 0.0
        whole = bool((self._values == np.floor(self._values)).all())
        edges = _edges(self.low, least, self.high, bins, whole=whole)
        at = np.searchsorted(edges, self._values, side="right") - 1
        counts = np.bincount(np.clip(at, 0, len(edges) - 2), self._counts, len(edges) - 1)
        return edges, counts.astype(np.int64)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data: count, sum, mean, min, max, quantiles (``p01`` to ``p99``)."""
        named = {f"p{round(share * 100):02d}": value for share, value in zip(QUANTILES, self.quantiles(), strict=True)}
        return {
            "count": self.count,
            "sum": self.total,
            "mean": self.mean,
            "min": self.low,
            "max": self.high,
            **named,
        }


def bin_keys(values: Floats) -> Ints:
    """Return the bin of each number, int64[n]. Bins ascend with the numbers."""
    bits = values.view(np.int64)
    magnitude = (bits & _MAGNITUDE) >> _SHIFT
    found: Ints = np.where(bits < 0, -magnitude - 1, magnitude)
    return found


def _edges(low: float, least: float, high: float, bins: int, *, whole: bool) -> Floats:
    """Return the edges of bins, float64[n + 1]; `least` is the smallest number above 0."""
    if low == high:
        return np.array([low, high + 1.0 if whole else high])
    if not np.isfinite(high - low):  # the range can exceed the largest float
        return np.asarray(2 * np.linspace(low / 2, high / 2, bins + 1), np.float64)
    if low >= 0 and 1000 * least < high and least > 0:  # the smallest number may have been rounded to 0
        steps = np.geomspace(least, high, bins + (low == least))
        edges = np.unique(np.round(steps)) if whole else steps
        edges = edges if low == least else np.concatenate(([low], edges))
    elif whole:
        width = max(1.0, float(np.ceil((high - low + 1) / bins)))
        return np.asarray(low + width * np.arange(int(np.floor((high - low) / width)) + 2), np.float64)
    else:
        edges = np.linspace(low, high, bins + 1)
    edges[-1] = high
    return np.asarray(edges, np.float64)
