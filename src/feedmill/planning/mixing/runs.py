"""Schedules of runs: one source for `length` samples at a time, for batches of one source.

Position *k* takes slot ``k // length`` of another schedule, and offset ``k % length`` in that slot's run; the draw is
number ``ordinal of the slot * length + offset`` of its source.

Bound: after *m* whole runs a source has *length* times the draws that the inner schedule gave it in *m* slots, so it is
less than ``length * inner.bound`` samples from its share. Inside a run its error moves along a straight line from the
error before the run to the error after it, and so never leaves that bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from feedmill.planning.mixing.blend import PlainSchedule

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """A schedule whose slots are runs of samples.

    Attributes:
        inner: the schedule of the runs.
        length: samples in a run, at least 1.
    """

    inner: PlainSchedule
    length: int

    @property
    def asked(self) -> tuple[Fraction, ...]:
        """Return the requested weights, normalized."""
        return self.inner.asked

    @property
    def realized(self) -> tuple[Fraction, ...]:
        """Return the weights that the counts realize."""
        return self.inner.realized

    @property
    def counts(self) -> IntArray:
        """Return the number of runs of each source in a period of the inner schedule, int64[sources]."""
        return self.inner.counts

    @property
    def period(self) -> int:
        """Return the number of samples after which the schedule repeats."""
        return self.inner.period * self.length

    @property
    def bound(self) -> Fraction:
        """Return a bound: every source is always less than this many samples from its share."""
        return self.inner.bound * self.length

    def at(self, positions: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
        """Return source and ordinal in the source's stream for positions int64[n]."""
        slots, offsets = np.divmod(positions, self.length)
        source, ordinal = self.inner.at(slots)
        return source, ordinal * self.length + offsets

    def positions(self, source: npt.NDArray[Any], ordinal: IntArray) -> IntArray:
        """Return the positions, int64[n], of draws given by source and ordinal; the inverse of `at`."""
        runs, offsets = np.divmod(ordinal, self.length)
        positions: IntArray = self.inner.positions(source, runs) * self.length + offsets
        return positions

    def position(self, source: int, ordinal: int) -> int:
        """Return the position of one draw, as an integer of any size."""
        run, offset = divmod(ordinal, self.length)
        return self.inner.position(source, run) * self.length + offset

    def drawn(self, total: int) -> list[int]:
        """Return the number of draws of each source in the first `total` positions."""
        slots, rest = divmod(total, self.length)
        draws = [count * self.length for count in self.inner.drawn(slots)]
        if rest:
            source, _ = self.inner.at(np.array([slots], np.int64))
            draws[int(source[0])] += rest
        return draws
