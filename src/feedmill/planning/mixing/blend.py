"""Exact blends: periodic schedules from weights, in which every source is always within one sample of its share.

Weights are converted to fractions through their decimal text (0.7 is 7/10, not 0.6999...), normalized, and written with
a common denominator D. The schedule repeats every D samples and gives source i exactly ``counts[i] = weight_i * D`` of
them, so the mixture does not drift.

Within the period, draw j of source i may take any slot of its window ``[floor(j / w_i), ceil((j + 1) / w_i))``: exactly
the slots for which the source's count stays strictly within one of its share. Earliest deadline first finds such a slot
for every draw and any number of sources; choosing the source that is furthest behind does not.

If D exceeds 2^20, no table of the period is stored: `lines` computes the schedule if that keeps every source within one
sample, otherwise `deadlines` computes it block by block. If D exceeds 2^50, weights are rounded to multiples of 2^-50,
an error of a thousandth of a sample in 10^12; in one group of `deadlines`, to multiples of 2^-60.

Sources: Tijdeman 1980, "The chairman assignment problem"; Baruah, Cohen, Plaxton and Varvel 1996, "Proportionate
progress" (the windows); Liu and Layland 1973 (earliest deadline first is optimal on one processor).

*Runs* (`Runs`): one source for `length` samples at a time, for batches of one source. Position *k* takes slot
``k // length`` of another schedule, and offset ``k % length`` in that slot's run; the draw is number
``ordinal of the slot * length + offset`` of its source. After *m* whole runs a source has *length* times the draws that
the inner schedule gave it in *m* slots, so it is less than ``length * inner.bound`` samples from its share. Inside a
run its error moves along a straight line from the error before the run to the error after it, and so never leaves that
bound.

*Stages* (`Stages`): weights that change at given sample counts, while each source's draws continue. Stage `s` begins at
a known position, after a known number of draws of each source. A position is therefore found by looking up its stage
and then that stage's own schedule; a draw is found in the same way. Within a stage, each source is within its
schedule's bound of its share since the stage began; in a ramp (`ramps`), of the integral of its share. Over all stages
the errors at their ends add up: after any number of samples, a source is within the sum of the bounds of the stages
begun so far. A stage that ends with a period of its schedule adds no error.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache, lru_cache
from heapq import heappop, heappush
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.kernels.bounds import bounds_of
from feedmill.planning.mixing import PERIOD_LIMIT, Change
from feedmill.planning.mixing.deadlines import ONE_GROUP_LIMIT, Deadlines, groups_of
from feedmill.planning.mixing.lines import LINES_LIMIT, Lines
from feedmill.planning.mixing.ramps import Ramp

_log = logging.getLogger("feedmill")

_ROUNDED = Fraction(1, 100)
"""By how much percentages may miss 1: those of three equal sources are written as 33%."""
_WITH_ROOM = Fraction(127, 128)
"""Bound below which weights may be rounded: rounding adds 2^-50 of a sample with every sample."""

IntArray = npt.NDArray[np.int64]

_RATIO = re.compile(r"\s*(\d{1,4300})\s*/\s*(\d{1,4300})\s*")
"""A fraction. Weights per token of hundreds of sources have thousands of digits, and states keep them; Python converts
texts of up to 4,300."""


def exact_weight(value: Any) -> Fraction:
    """Return a weight as the exact fraction of its decimal text.

    >>> exact_weight(0.7), exact_weight("30%"), exact_weight("1/3")
    (Fraction(7, 10), Fraction(3, 10), Fraction(1, 3))

    Raises:
        ConfigError: not a number, not finite, or negative.
    """
    if isinstance(value, Fraction):
        weight = value
    else:
        weight = _from_value(value)
    if weight < 0:
        raise _bad_weight(value, "is negative")
    return weight


def _from_value(value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal | np.integer | np.floating):
        raise _bad_weight(value, "is not a number")
    return _from_text(str(value).strip())


@lru_cache(4096)  # recipes of a thousand sources have few different weights
def _from_text(text: str) -> Fraction:
    ratio = _RATIO.fullmatch(text)
    if ratio and int(ratio[2]):
        return Fraction(int(ratio[1]), int(ratio[2]))
    percent = text.endswith("%")
    try:
        number = Decimal(text.removesuffix("%"))
    except InvalidOperation:
        raise _bad_weight(text, "is not a number") from None
    if not number.is_finite():
        raise _bad_weight(text, "is not a finite number")
    if number and not -30 <= number.adjusted() <= 30:
        raise _bad_weight(text, "is out of range (1e-30 to 1e30)")
    return Fraction(number) / (100 if percent else 1)


def _bad_weight(value: Any, why: str) -> ConfigError:
    return ConfigError(
        f"the weight {str(value)[:60]!r} {why}",
        kind="bad-recipe",
        fix="Give a number such as 0.7, 30% or 1/3; weights are relative to their sum.",
    )


class Shares(tuple[Fraction, ...]):
    """Weights that add up to 1, which are not added up again."""

    __slots__ = ()


def exact_sum(values: Sequence[Fraction]) -> Fraction:
    """Return the sum of fractions. One common denominator is much faster than one for each addition."""
    whole = lcm(*(value.denominator for value in values))
    return Fraction(sum(value.numerator * (whole // value.denominator) for value in values), whole)


@cache  # each stage, and each worker, normalizes its weights
def _warn_of_total(total: Fraction) -> None:
    _log.warning(
        "the percentages of a blend add up to %.4g%%, not 100%%: shares are relative to their sum", float(total * 100)
    )


def normalize(weights: Sequence[Any]) -> tuple[Fraction, ...]:
    """Return weights as exact fractions that add up to 1.

    Raises:
        ConfigError: a weight is invalid, all are zero, or percentages stand beside numbers of 1 or more: ``50%`` is
            0.5, so that ``30`` would be 60 times as much.
    """
    if isinstance(weights, Shares):
        return weights
    exact = [exact_weight(weight) for weight in weights]
    percents = [weight for weight in weights if isinstance(weight, str) and weight.strip().endswith("%")]
    if percents and len(percents) < len(weights):
        large = [w for w, value in zip(weights, exact, strict=True) if value >= 1 and not str(w).strip().endswith("%")]
        if large:
            raise ConfigError(
                f"weights are percentages and numbers: {percents[0]} is {float(exact_weight(percents[0])):g}, beside"
                f" {large[0]}",
                kind="bad-recipe",
                fix="Give all of them as percentages, or none.",
            )
    often = Counter(exact)  # arithmetic with fractions is slow
    total = exact_sum([weight * count for weight, count in often.items()])
    if not total:
        raise ConfigError(
            "the weights of the blend add up to zero",
            kind="bad-recipe",
            fix="Give at least one source a weight above 0.",
        )
    if total == 1:
        return Shares(exact)
    if percents and len(percents) >= sum(map(bool, exact)) and abs(total - 1) > _ROUNDED:
        _warn_of_total(total)
    shares = {weight: weight / total for weight in often}
    return Shares(shares[weight] for weight in exact)


@dataclass(frozen=True, slots=True, repr=False)
class Schedule:
    """A periodic order of sources. Maps any position to source and ordinal, and back, in constant time.

    Attributes:
        asked: the requested weights, normalized.
        counts: draws per source and period, int64[sources].
        source: source of each slot of the period, unsigned[D].
        ordinal: number of each slot among its source's draws, int32[D].
        slots: the slots of source 0 in order, then of source 1, ..., int32[D].
        starts: start of each source's part of `slots`, int64[sources + 1].
    """

    asked: tuple[Fraction, ...]
    counts: IntArray
    source: npt.NDArray[Any]
    ordinal: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    starts: IntArray

    @property
    def period(self) -> int:
        """Return the number of samples after which the schedule repeats."""
        return len(self.source)

    @property
    def realized(self) -> tuple[Fraction, ...]:
        """Return the weights that the counts realize."""
        return tuple(Fraction(int(count), self.period) for count in self.counts)

    @property
    def bound(self) -> Fraction:
        """Return a bound: every source is always less than this many samples from its share."""
        return Fraction(1)

    def at(self, positions: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
        """Return source and ordinal in the source's stream for positions int64[n]."""
        unsigned = positions.view(np.uint64)
        rounds = unsigned // np.uint64(self.period)
        slots = (unsigned - rounds * np.uint64(self.period)).view(np.int64)
        source = self.source.take(slots)
        ordinal = rounds.view(np.int64)
        ordinal *= self.counts.take(source)
        ordinal += self.ordinal.take(slots)
        return source, ordinal

    def positions(self, source: npt.NDArray[Any], ordinal: IntArray) -> IntArray:
        """Return the positions, int64[n], of draws given by source and ordinal; the inverse of `at`."""
        rounds, rest = np.divmod(ordinal, self.counts[source])
        positions: IntArray = rounds * self.period + self.slots[self.starts[source] + rest]
        return positions

    def position(self, source: int, ordinal: int) -> int:
        """Return the position of one draw, as an integer of any size."""
        rounds, rest = divmod(ordinal, int(self.counts[source]))
        return rounds * self.period + int(self.slots[self.starts[source] + rest])

    def drawn(self, total: int) -> list[int]:
        """Return the number of draws of each source in the first `total` positions."""
        rounds, rest = divmod(total, self.period)
        drawn: list[int] = np.bincount(self.source[:rest], minlength=len(self.counts)).tolist()
        return [rounds * count + some for count, some in zip(self.counts.tolist(), drawn, strict=True)]


@dataclass(frozen=True, slots=True)
class Runs:
    """A schedule whose slots are runs of samples.

    Attributes:
        inner: the schedule of the runs.
        length: samples in a run, at least 1.
    """

    inner: PlainSchedule | Ramp
    length: int

    def due(self, total: int) -> tuple[Fraction, ...]:
        """Return the exact number of draws of each source that are due in the first `total` positions."""
        slots, rest = divmod(total, self.length)
        due = [each * self.length for each in due_of(self.inner, slots)]
        if rest:
            due = [
                each + (after * self.length - each) * rest / self.length
                for each, after in zip(due, due_of(self.inner, slots + 1), strict=True)
            ]
        return tuple(due)

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


PlainSchedule = Schedule | Lines | Deadlines
AnySchedule = PlainSchedule | Runs


def due_of(schedule: AnySchedule | Ramp, total: int) -> tuple[Fraction, ...]:
    """Return the exact number of draws of each source that are due in the first `total` positions of a schedule."""
    if isinstance(schedule, Runs | Ramp):
        return schedule.due(total)
    return tuple(share * total for share in schedule.asked)


def run_schedule(weights: Sequence[Any], run_length: int, limit: int = PERIOD_LIMIT) -> AnySchedule:
    """Return the schedule for these weights in runs of `run_length` samples of one source; with 1, that of `schedule`.

    Raises:
        ConfigError: a weight is invalid, all are zero, or `run_length` is below 1.
    """
    if run_length < 1:
        raise ConfigError(
            f"runs of {run_length} samples are invalid", kind="bad-recipe", fix="Use runs of at least one sample."
        )
    inner = schedule(weights, limit)
    return inner if run_length == 1 else Runs(inner, run_length)


def schedule(weights: Sequence[Any], limit: int = PERIOD_LIMIT) -> PlainSchedule:
    """Return the schedule for these weights: a table of one period if it is at most `limit` long, else computed.

    A table takes about 0.6 us per slot: well under 1 ms for a period of 1,000, half a second for the longest.

    Raises:
        ConfigError: a weight is invalid, or all are zero.
    """
    asked = normalize(weights)
    period = lcm(*(share.denominator for share in asked))
    if period <= limit:
        return _table(asked, apportion(asked, period))
    lines = Lines(asked, apportion(asked, min(period, LINES_LIMIT)))
    if lines.bound < (1 if period <= LINES_LIMIT else _WITH_ROOM):
        return lines
    for longest, groups_allowed in ((ONE_GROUP_LIMIT, 1), (LINES_LIMIT, 2)):
        counts = apportion(asked, min(period, longest))
        groups = groups_of(counts)
        if groups and len(groups) <= groups_allowed:
            return Deadlines(asked, counts, groups)
    return lines


def _table(asked: tuple[Fraction, ...], counts: Sequence[int]) -> Schedule:
    source = _earliest_deadline_first(counts)
    # A stable sort by source leaves each source's slots in order; it is the inverse table already.
    slots = np.argsort(source, kind="stable")
    starts = bounds_of(counts)
    ordinal = np.empty(len(source), np.int32)
    ordinal[slots] = np.arange(len(source)) - np.repeat(starts[:-1], counts)
    return Schedule(asked, np.array(counts, np.int64), source, ordinal, slots.astype(np.int32), starts)


def apportion(shares: Sequence[Fraction], period: int) -> list[int]:
    """Return counts that add up to `period`, by largest remainder; every source with a weight gets at least one."""
    wanted = sum(1 for share in shares if share)
    if wanted > period:
        raise ConfigError(
            f"the blend has {wanted} sources, at most {period} are supported",
            kind="too-large",
            fix="Blend them in groups: a blend can be a source of another blend.",
        )
    counts = [max(1, share.numerator * period // share.denominator) if share else 0 for share in shares]
    short = max(0, period - sum(counts))  # fewer than the number of remainders above 0
    over = max(0, sum(counts) - period)
    if not short and not over:
        return counts
    unit = lcm(*(share.denominator for share in shares))  # integers are sorted much faster than fractions
    error = [
        share.numerator * (unit // share.denominator) * period - count * unit
        for share, count in zip(shares, counts, strict=True)
    ]
    for i in sorted(range(len(counts)), key=error.__getitem__, reverse=True)[:short]:
        counts[i] += 1
        error[i] -= unit
    for _ in range(over):  # the guaranteed single draws exceed the remainders
        i = min((i for i in range(len(counts)) if counts[i] > 1), key=error.__getitem__)
        counts[i] -= 1
        error[i] += unit
    return counts


def _earliest_deadline_first(counts: Sequence[int]) -> npt.NDArray[Any]:
    """Return the source of each slot of the period, in the smallest unsigned type that holds the numbers."""
    period, sources = sum(counts), len(counts)
    releases, jobs = [], []
    for i, count in enumerate(counts):
        if count:
            draw = np.arange(count, dtype=np.int64)
            releases.append(draw * period // count)
            deadline = -(-(draw + 1) * period // count)
            jobs.append(deadline * sources + i)  # one integer that sorts by deadline, then by source
    release = np.concatenate(releases)
    order = np.argsort(release, kind="stable")
    waiting = np.concatenate(jobs)[order].tolist()
    ends = np.searchsorted(release[order], np.arange(period), side="right").tolist()
    heap: list[int] = []
    chosen = []
    begin = 0
    for end in ends:
        for job in waiting[begin:end]:
            heappush(heap, job)
        begin = end
        chosen.append(heappop(heap))
    source = np.array(chosen, np.int64) % sources
    return source.astype(np.min_scalar_type(sources - 1))


class Stages:
    """An order of sources whose weights change.

    Args:
        weights: for each stage, a weight per source; a source with weight 0 pauses.
        samples: length of each stage; the last may be None (open-ended).
        run_length: samples of one source at a time; the length of every stage but the last is a multiple of it.
        ramps: for each stage, the kind of ramp on which the weights go from those of the stage before to its own; None
            if it has its own weights throughout.

    Attributes:
        schedules: one per stage.
        weights: for each stage, the weight of each source: a fraction, or a `Change`.
        samples: as given.
        starts: the start of each stage, and the end of the last one if it has an end.
        before: draws of each source before each of `starts`.
        counts: 0 for sources that are never drawn, int64[sources].

    Raises:
        ConfigError: there is no stage, a weight is invalid, a stage is empty or ends within a run, a stage follows an
            open-ended one, or a ramp has no stage before it, no end, or more than 2^27 samples.
    """

    def __init__(
        self,
        weights: Sequence[Sequence[Any]],
        samples: Sequence[int | None],
        run_length: int = 1,
        ramps: Sequence[str | None] = (),
    ) -> None:
        if not weights or len(weights) != len(samples) or len({len(weight) for weight in weights}) != 1:
            raise ConfigError("each stage needs a length and a weight per source", kind="bad-recipe")
        for number, size in enumerate(samples):
            if size is None and number < len(samples) - 1:
                raise ConfigError(
                    f"stage {number + 1} of {len(samples)} has no end",
                    kind="bad-recipe",
                    fix="Only the last stage may be open-ended: set the lengths of the others.",
                )
            if size is not None and size < 1:
                raise ConfigError(
                    f"stage {number + 1} has {size} samples", kind="bad-recipe", fix="Set at least 1, or remove it."
                )
            if size is not None and size % run_length and number < len(samples) - 1:
                raise ConfigError(
                    f"stage {number + 1} has {size:,} samples, which is not a multiple of runs of {run_length:,}",
                    kind="bad-recipe",
                    fix=f"Give it {max(size // run_length, 1) * run_length} samples, for example.",
                )
        self.samples = tuple(samples)
        kinds = ramps or [None] * len(samples)
        self.schedules: list[AnySchedule | Ramp] = []
        self.weights: list[tuple[Fraction | Change, ...]] = []
        for number, (weight, size, kind) in enumerate(zip(weights, samples, kinds, strict=True)):
            if kind is None:
                self.schedules.append(run_schedule(weight, run_length))
                self.weights.append(self.schedules[-1].asked)
                continue
            if not number or size is None or size % run_length:
                why = (
                    "is the first" if not number else "has no end" if size is None else "ends within a run of a source"
                )
                raise ConfigError(
                    f"stage {number + 1} cannot be a ramp: it {why}",
                    kind="bad-recipe",
                    fix="A ramp goes from the weights of the stage before it to its own, in a length of its own.",
                )
            ends = normalize(weights[number - 1]), normalize(weight)
            ramp = Ramp(*ends, size // run_length, kind)
            self.schedules.append(ramp if run_length == 1 else Runs(ramp, run_length))
            self.weights.append(tuple(Change(*both, kind, size) for both in zip(*ends, strict=True)))
        self.starts = [0]
        self.before = [[0] * len(weights[0])]
        for part, size in zip(self.schedules, samples, strict=True):
            if size is not None:
                self.starts.append(self.starts[-1] + size)
                self.before.append([a + b for a, b in zip(self.before[-1], part.drawn(size), strict=True)])
        self.length = None if samples[-1] is None else self.starts[-1]
        if self.starts[-1] >= 2**63:
            raise ConfigError("the stages have more than 2^63 - 1 samples", kind="too-large", fix="Shorten them.")
        self._before = np.array(self.before, np.int64)
        last = self._before[-1] > 0
        self.counts = np.where(last, 1, 0) if self.length else np.where(last, 1, self.schedules[-1].counts)

    def is_ramp(self, stage: int) -> bool:
        """Return whether the weights change within a stage."""
        return isinstance(self.weights[stage][0], Change)

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
            exact = [have + more for have, more in zip(exact, due_of(part, inside), strict=True)]
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
