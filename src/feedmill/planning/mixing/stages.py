"""Schedules in stages: weights that change at given sample counts, while each source's draws continue.

Stage `s` begins at a known position, after a known number of draws of each source. A position is therefore found by
looking up its stage and then that stage's own schedule; a draw is found in the same way.

Bounds: within a stage, each source is within its schedule's bound of its share since the stage began. Over all stages
the errors at their ends add up: after any number of samples, a source is within the sum of the bounds of the stages
begun so far. A stage that ends with a period of its schedule adds no error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.planning.mixing.blend import AnySchedule, run_schedule

IntArray = npt.NDArray[np.int64]


class Stages:
    """An order of sources whose weights change.

    Args:
        weights: for each stage, a weight per source; a source with weight 0 pauses.
        samples: length of each stage; the last may be None (open-ended).
        run_length: samples of one source at a time; the length of every stage but the last is a multiple of it.

    Attributes:
        schedules: one per stage.
        samples: as given.
        starts: the start of each stage, and the end of the last one if it has an end.
        before: draws of each source before each of `starts`.
        counts: 0 for sources that are never drawn, int64[sources].

    Raises:
        ConfigError: there is no stage, a weight is invalid, a stage is empty or ends within a run, or a stage follows
            an open-ended one.
    """

    def __init__(self, weights: Sequence[Sequence[Any]], samples: Sequence[int | None], run_length: int = 1) -> None:
        if not weights or len(weights) != len(samples) or len({len(each) for each in weights}) != 1:
            raise ConfigError("each stage needs a length and a weight per source", kind="bad-stage")
        for number, size in enumerate(samples):
            if size is None and number < len(samples) - 1:
                raise ConfigError(
                    f"stage {number + 1} of {len(samples)} has no end",
                    kind="bad-stage",
                    fix="Only the last stage may be open-ended: set the lengths of the others.",
                )
            if size is not None and size < 1:
                raise ConfigError(
                    f"stage {number + 1} has {size} samples", kind="bad-stage", fix="Set at least 1, or remove it."
                )
            if size is not None and size % run_length and number < len(samples) - 1:
                raise ConfigError(
                    f"stage {number + 1} has {size:,} samples, which is not a multiple of runs of {run_length:,}",
                    kind="bad-stage",
                    fix=f"Give it {max(size // run_length, 1) * run_length} samples, for example.",
                )
        self.samples = tuple(samples)
        self.schedules: list[AnySchedule] = [run_schedule(each, run_length) for each in weights]
        self.starts = [0]
        self.before = [[0] * len(weights[0])]
        for part, size in zip(self.schedules, samples, strict=True):
            if size is not None:
                self.starts.append(self.starts[-1] + size)
                self.before.append([a + b for a, b in zip(self.before[-1], part.drawn(size), strict=True)])
        self.length = None if samples[-1] is None else self.starts[-1]
        if self.starts[-1] >= 2**63:
            raise ConfigError("the stages have more than 2^63 - 1 samples", kind="too-long", fix="Shorten them.")
        self._before = np.array(self.before, np.int64)
        last = self._before[-1] > 0
        self.counts = np.where(last, 1, 0) if self.length else np.where(last, 1, self.schedules[-1].counts)

    @property
    def period(self) -> int | None:
        """Return the total length of the stages, after which a repeated node begins again; None without an end."""
        return self.length

    def at(self, positions: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
        """Return source and ordinal in the source's stream for positions int64[n]."""
        if not len(positions):
            return self.schedules[0].at(positions)
        first, last = self._stage(int(positions.min())), self._stage(int(positions.max()))
        if first == last:
            return self._in_stage(first, positions)
        source = np.empty(len(positions), np.min_scalar_type(len(self.counts) - 1))
        ordinal = np.empty(len(positions), np.int64)
        stages = np.searchsorted(np.array(self.starts[first + 1 : last + 1]), positions, side="right")
        for stage in range(last - first + 1):
            rows = np.flatnonzero(stages == stage)
            if len(rows):
                source[rows], ordinal[rows] = self._in_stage(first + stage, positions[rows])
        return source, ordinal

    def positions(self, source: npt.NDArray[Any], ordinal: IntArray) -> IntArray:
        """Return the positions, int64[n], of draws given by source and ordinal; -1 for draws that never occur."""
        stages = np.zeros(len(ordinal), np.int64)
        for before in self._before[1:]:
            stages += ordinal >= before[source]
        positions = np.full(len(ordinal), -1, np.int64)
        for stage, part in enumerate(self.schedules):
            rows = np.flatnonzero(stages == stage)
            if len(rows) and self.samples[stage] is None:
                rows = rows[part.counts[source[rows]] > 0]
            if len(rows):
                since = ordinal[rows] - self._before[stage][source[rows]]
                positions[rows] = part.positions(source[rows], since) + self.starts[stage]
        return positions

    def position(self, source: int, ordinal: int) -> int | None:
        """Return the position of one draw, as an integer of any size; None if it never occurs."""
        stage = sum(ordinal >= before[source] for before in self.before[1:])
        if stage == len(self.schedules) or not self.schedules[stage].counts[source]:
            return None
        return self.starts[stage] + self.schedules[stage].position(source, ordinal - self.before[stage][source])

    def drawn(self, total: int) -> list[int]:
        """Return the number of draws of each source in the first `total` positions, at most `length`."""
        stage = self._stage(total)
        since = self.schedules[stage].drawn(total - self.starts[stage])
        return [a + b for a, b in zip(self.before[stage], since, strict=True)]

    def asked(self, total: int) -> tuple[Fraction, ...]:
        """Return the piecewise exact number of draws of each source by the first `total` positions."""
        exact = [Fraction(0)] * len(self.counts)
        for start, part, size in zip(self.starts, self.schedules, self.samples, strict=False):
            inside = max(total - start, 0) if size is None else min(max(total - start, 0), size)
            exact = [have + share * inside for have, share in zip(exact, part.asked, strict=True)]
        return tuple(exact)

    def bound(self, total: int) -> Fraction:
        """Return the maximum distance of a source from its piecewise exact share within the first `total` samples."""
        begun = self._stage(max(total - 1, 0)) + 1
        return sum((part.bound for part in self.schedules[:begun]), Fraction(0))

    def _stage(self, position: int) -> int:
        return min(bisect_right(self.starts, position), len(self.schedules)) - 1

    def _in_stage(self, stage: int, positions: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
        if stage == 0:
            return self.schedules[0].at(positions)
        source, ordinal = self.schedules[stage].at(positions - self.starts[stage])
        ordinal += self._before[stage].take(source)
        return source, ordinal
