"""Blends whose weights change with every sample: every source stays within one sample of the integral of its weight.

The weight of a source is a line from knot to knot. Its *due* draws before slot ``t``, ``Q(t)``, are the integral of the
weight: a sequence of parabolas, which rises wherever the source has any weight. Draw ``j`` may take any slot of its
window ``[floor(Q^-1(j)), ceil(Q^-1(j + 1)))``: exactly those for which the source's count stays strictly within one of
what is due. Earliest deadline first finds a slot for every draw, by Hall's theorem: in slots ``[s, e)``, the source has
``floor(Q(e)) - ceil(Q(s)) <= Q(e) - Q(s)`` windows, which add up to at most ``e - s`` over the sources, as the weights
add up to 1. It leaves no slot empty, because ``ceil(Q(t + 1))`` draws of a source may be taken by slot ``t``, which add
up to more than ``t``. A draw whose window has not ended with the ramp takes a slot that no other needs.

The order is computed block by block, from the first: 0.1 to 0.3 us a slot for a few sources. So that a run can resume
anywhere in some seconds, a ramp has at most 2^27 slots. Windows are exact: they are computed in floating point, and in
whole numbers where the result is near one, so that all machines have the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import cos, lcm, pi
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.order.deadlines import earliest_first
from feedmill.planning.mixing.deadlines import Blocks

IntArray = npt.NDArray[np.int64]

LONGEST_RAMP = 2**27
_BITS = 16
_KNOTS = 64
_NEAR = 1e-3
"""Distance from a whole number below which a root is computed again exactly; its error is less than 1e-6."""


def progress(kind: str) -> list[Fraction]:
    """Return how much of its way a ramp has gone at equally spaced knots: 0 and 1, or the cosine's to six digits."""
    if kind == "linear":
        return [Fraction(0), Fraction(1)]
    return [Fraction(round(5e5 * (1 - cos(pi * knot / _KNOTS))), 10**6) for knot in range(_KNOTS + 1)]


class Ramp(Blocks):
    """An order of sources whose weights change from one vector to another. See `blend.Schedule` for its methods.

    Args:
        begin, end: the weights of the sources at the beginning and at the end, each adding up to 1.
        samples: length of the ramp.
        kind: ``linear``, or ``cosine``: slow at both ends, in 64 lines between points of the cosine.

    Raises:
        ConfigError: the ramp is longer than 2^27 samples.
    """

    bound = Fraction(1)

    def __init__(self, begin: Sequence[Fraction], end: Sequence[Fraction], samples: int, kind: str = "linear") -> None:
        if samples > LONGEST_RAMP:
            raise ConfigError(
                f"a ramp of {samples:,} samples is longer than {LONGEST_RAMP:,}",
                kind="too-large",
                fix="Divide it: give the weights on the way as stages of their own, each with 'ramp'.",
            )
        self.begin, self.end, self.period, self.kind = tuple(begin), tuple(end), samples, kind
        active = [i for i, ends in enumerate(zip(begin, end, strict=True)) if any(ends)]
        super().__init__(active, min(_BITS, max(samples - 1, 1).bit_length()))
        steps = progress(kind)
        self._due = [_Due([begin[i] + (end[i] - begin[i]) * step for step in steps], samples) for i in active]
        self._borders: dict[int, list[int]] = {0: [0] * len(active)}

    @property
    def asked(self) -> tuple[Fraction, ...]:
        """Return the mean weights of the ramp."""
        return tuple(due / self.period for due in self.due(self.period))

    @property
    def realized(self) -> tuple[Fraction, ...]:
        """Return the shares of the sources in the whole ramp."""
        return tuple(Fraction(count, self.period) for count in self.drawn(self.period))

    @property
    def counts(self) -> IntArray:
        """Return the number of draws of each source in the ramp, int64[sources]."""
        return np.array(self.drawn(self.period), np.int64)

    def due(self, total: int) -> tuple[Fraction, ...]:
        """Return the exact number of draws of each source that are due in the first `total` slots."""
        exact = [Fraction(0)] * len(self.begin)
        for source, due in zip(self.sources.tolist(), self._due, strict=True):
            exact[source] = due.at(total)
        return tuple(exact)

    def at(self, positions: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
        """Return source and ordinal in the source's stream for positions int64[n]."""
        source = np.empty(len(positions), np.min_scalar_type(len(self.begin) - 1))
        ordinal = np.empty(len(positions), np.int64)
        self.fill(positions, slice(None), source, ordinal)
        return source, ordinal

    def positions(self, source: npt.NDArray[Any], ordinal: IntArray) -> IntArray:
        """Return the positions, int64[n], of draws given by source and ordinal; the inverse of `at`."""
        positions = np.empty(len(ordinal), np.int64)
        for i, number in enumerate(self.sources.tolist()):
            rows = np.flatnonzero(source == number)
            if len(rows):
                positions[rows] = self.slots(i, ordinal[rows])
        return positions

    def position(self, source: int, ordinal: int) -> int:
        """Return the position of one draw."""
        return self.slot(self.sources.tolist().index(source), ordinal)

    def drawn(self, total: int) -> list[int]:
        """Return the number of draws of each source in the first `total` positions, at most `period`."""
        counts = [0] * len(self.begin)
        for source, count in zip(self.sources.tolist(), self.counts_before(total), strict=True):
            counts[source] = count
        return counts

    def _before(self, number: int) -> list[int]:
        for known in range(len(self._borders) - 1, number):
            self._deal(known, self._borders[known])
        return self._borders[number]

    def _deal(self, number: int, before: list[int]) -> IntArray:
        first = number << self._bits
        stop = min(first + (1 << self._bits), self.period)
        windows = [due.windows(count, due.released(stop) - count) for due, count in zip(self._due, before, strict=True)]
        begins, ends = (np.concatenate(column) for column in zip(*windows, strict=True))
        bounds = bounds_of([len(each) for each, _ in windows])
        source = earliest_first(begins, ends, bounds, first, stop - first)
        more = np.bincount(source, minlength=len(before)).tolist()
        self._borders[number + 1] = [a + b for a, b in zip(before, more, strict=True)]
        return source

    def _first_block(self, i: int, ordinal: int) -> int:
        begins, _ = self._due[i].windows(ordinal, 1)
        return int(begins[0]) >> self._bits

    def _first_blocks(self, i: int, ordinal: IntArray) -> IntArray:
        distinct, where = np.unique(ordinal, return_inverse=True)
        begins, _ = self._due[i].windows_of(distinct)
        return (begins >> self._bits)[where]


class _Due:
    """The integral of a weight that is a line from knot to knot, and its inverse.

    Times are in parts of a slot, as many as there are lines, so that knots are whole. The integral is in such parts of
    draws that it is whole at the knots, too.
    """

    def __init__(self, weights: Sequence[Fraction], samples: int) -> None:
        self._samples, self._parts = samples, len(weights) - 1
        unit = lcm(*(weight.denominator for weight in weights))
        self._weights = [int(weight * unit) for weight in weights]
        self._sums = [0]
        for begin, end in pairwise(self._weights):
            self._sums.append(self._sums[-1] + (begin + end) * samples)
        self._whole_draw = 2 * unit * self._parts
        self._last = self._sums[-1] // self._whole_draw
        self._floats = np.array([weight / unit for weight in self._weights])
        whole, rest = zip(*(divmod(each, self._whole_draw) for each in self._sums), strict=True)
        self._whole = np.array(whole, np.int64)
        self._rest = np.array([each / self._whole_draw for each in rest])

    def at(self, slot: int) -> Fraction:
        """Return the draws that are due before a slot."""
        return Fraction(*self._exact(slot))

    def _exact(self, slot: int) -> tuple[int, int]:
        line = min(slot * self._parts // self._samples, self._parts - 1)
        since = slot * self._parts - line * self._samples
        begin, end = self._weights[line], self._weights[line + 1]
        due = (self._sums[line] + 2 * begin * since) * self._samples + (end - begin) * since * since
        return due, self._whole_draw * self._samples

    def released(self, stop: int) -> int:
        """Return how many draws may be taken in the slots before `stop`."""
        due, unit = self._exact(stop)
        return -(-due // unit)

    def windows(self, first: int, count: int) -> tuple[IntArray, IntArray]:
        """Return the first slot of draws, and the slot before which each is due: int64[count] each.

        Draws that are not due within the ramp have a slot after its end.
        """
        floors, ceilings = self._inverse(np.arange(first, first + count + 1))
        return floors[:-1], ceilings[1:]

    def windows_of(self, draws: IntArray) -> tuple[IntArray, IntArray]:
        """Return the same of draws in any order."""
        return self._inverse(draws)[0], self._inverse(draws + 1)[1]

    def _inverse(self, due: IntArray) -> tuple[IntArray, IntArray]:
        """Return the whole slots at or below, and at or above, the times at which numbers of draws are due."""
        never = due > self._last
        wanted = np.where(never, 0, due)
        knots = np.searchsorted(self._whole + self._rest, wanted, side="right") - 1
        knots = np.clip(knots, 0, self._parts - 1)
        length = self._samples / self._parts
        begin, end = self._floats[knots], self._floats[knots + 1]
        rises = end >= begin
        # From the end of a line that falls: where the weight is small, the root of a small number keeps its digits.
        knot = np.where(rises, knots, knots + 1)
        left = np.maximum(np.abs((wanted - self._whole[knot]) - self._rest[knot]), 0.0)
        slow, fast = np.minimum(begin, end), np.maximum(begin, end)
        root = slow + np.sqrt(slow * slow + 2 * (fast - slow) / length * left)
        away = np.divide(2 * left, root, out=np.zeros_like(left), where=root > 0)
        times = knot * length + np.where(rises, away, -away)
        nearest = np.rint(times)
        floors, ceilings = np.floor(times).astype(np.int64), np.ceil(times).astype(np.int64)
        for row in np.flatnonzero((np.abs(times - nearest) < _NEAR) & ~never).tolist():
            floors[row], ceilings[row] = self._around(int(nearest[row]), int(wanted[row]))
        return np.where(never, self._samples, floors), np.where(never, self._samples + 1, ceilings)

    def _around(self, slot: int, wanted: int) -> tuple[int, int]:
        slot = min(max(slot, 0), self._samples)
        due, unit = self._exact(slot)
        if due == wanted * unit:
            return slot, slot
        return (slot - 1, slot) if due > wanted * unit else (slot, slot + 1)


__all__ = ["LONGEST_RAMP", "Ramp", "progress"]
