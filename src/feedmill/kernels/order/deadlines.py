"""Schedule the draws of several sources by earliest deadline first, starting at any border between blocks of slots.

Source `i` has the share ``p_i / period``. Draw ``j`` has a window of time: it may be taken once the source's count is
then at most ``slack / period`` ahead of its share, and must be taken before the count falls further behind than that.
Slot ``k`` is at the time ``(k * period + period - 1 - start) // sum(p)``. If the sources are a whole blend, the slots
cover all times; otherwise they follow a rounded line.

`counts_before` computes which draws come before slot ``K`` from the neighborhood of that slot. Let ``lo_i`` be the
number of draws whose window is over, and ``hi_i`` the number whose window has begun. They differ by at most one draw
per source, which crosses the border. ``K - sum(lo)`` of the crossing draws come before the border. A schedule of all
draws exists (`planning.mixing.deadlines` has the proof). In it, the crossing draws before the border fit into the slots
that the draws with ``j < lo_i`` leave free, and the others fit into slots after the border: two nested families of
constraints, one for each side. So each free slot before the border, in order, gets the crossing draw whose window ends
first among those whose window has begun. This is earliest deadline first, and the remaining draws fit after the border.
It leaves no usable slot idle, so it places as many draws as possible, and at least as many as required. Surplus draws
are removed, beginning with those whose windows end last, because these are the easiest to place after the border (the
exchange property of matroids: if any draw can move to the other side, so can the one with the latest deadline).

The counts at the borders of a block determine its draws. No window extends over two borders. So only intervals that
begin or end at a border contain other draws than in the infinite schedule, and the counts were chosen for these:
earliest deadline first finds a slot for each draw.

In compiled code all times and counts are relative to the border, so they stay small for any border: `rest` is the
remainder of ``weight * time`` after whole draws, `phase` the remainder of the time. Quotients and remainders are
updated from one draw or slot to the next, so no loop has a division, and no product exceeds 64 bits.

Sources: Tijdeman 1980 (the windows); Hall 1935, Jackson 1955 (unit jobs with windows, earliest deadline first).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import kernel

Int64s = npt.NDArray[np.int64]


class Rates(NamedTuple):
    """Rates of the sources.

    Attributes:
        weights: draws per period, all above 0, with a sum of at most `period`.
        period: at most 2^60.
        slack: length of a draw's window in units of ``1 / period``, below `period`.
        start: 0 to period - 1, offset of the slots: ``(sum(weights) * t + start) // period`` slots are before time t.
    """

    weights: tuple[int, ...]
    period: int
    slack: int
    start: int

    def time(self, slot: int) -> int:
        """Return the time of a slot."""
        return (slot * self.period + self.period - 1 - self.start) // sum(self.weights)

    def window(self, source: int, draw: int) -> tuple[int, int]:
        """Return the first and the last time of a draw, both included."""
        weight = self.weights[source]
        return (
            -((self.slack - (draw + 1) * self.period) // weight) - 1,
            (draw * self.period + self.slack) // weight,
        )

    def over(self, source: int, slot: int) -> int:
        """Return the number of draws that must come before a slot."""
        return -((self.slack - self.weights[source] * self.time(slot)) // self.period)

    def begun(self, source: int, slot: int) -> int:
        """Return the number of draws that may come before a slot."""
        return max(0, (self.weights[source] * (self.time(slot - 1) + 1) + self.slack) // self.period)


def counts_before(rates: Rates, slot: int) -> list[int]:
    """Return the number of draws of each source before a slot that is a border; integers of any size."""
    quotients, rest, phase = _relative(rates, slot)
    ahead = _crossing(*_arrays(rates), rest, phase, slot - sum(quotients))
    return [quotient + int(more) for quotient, more in zip(quotients, ahead, strict=True)]


def deal(rates: Rates, slot: int, before: list[int], after: list[int]) -> npt.NDArray[Any]:
    """Return the source of each slot from one border to the next.

    Args:
        rates: the sources.
        slot: the first slot.
        before: number of draws of each source before the first slot, from `counts_before`.
        after: number of draws before the next border; the difference of the sums is the number of slots.

    Returns:
        Source numbers [slots], in the smallest unsigned type that can hold them.
    """
    chosen = np.empty(sum(after) - sum(before), np.int64)
    quotients, rest, phase = _relative(rates, slot)
    ahead = np.array([count - quotient for count, quotient in zip(before, quotients, strict=True)], np.int64)
    left = np.array([b - a for a, b in zip(before, after, strict=True)], np.int64)
    work = np.empty((6, len(left)), np.int64)
    filled = _fill(*_arrays(rates), rest, phase, ahead, left, chosen, work)
    if filled != len(chosen):
        raise AssertionError(f"no draw for slot {slot + filled} of {rates}")
    return chosen.astype(np.min_scalar_type(len(before) - 1))


def earliest_first(begins: Int64s, ends: Int64s, bounds: Int64s, first: int, count: int) -> npt.NDArray[np.int64]:
    """Return the sources of `count` slots from slot `first` on, by earliest deadline first among given windows.

    Args:
        begins: the first slot of each draw, int64[draws]: those of source 0 in order, then those of source 1, ...
        ends: the slot before which each is due, int64[draws].
        bounds: where the draws of each source begin, int64[sources + 1].
    """
    chosen = np.empty(count, np.int64)
    filled = _earliest_first(begins, ends, bounds, first, np.zeros(len(bounds) - 1, np.int64), chosen)
    if filled != count:
        raise AssertionError(f"no draw for slot {first + filled}")
    return chosen


@kernel("i64[:], i64[:], i64[:], i64, out i64[:], out i64[:] -> i64")
def _earliest_first(begins, ends, bounds, first, taken, chosen):  # type: ignore[no-untyped-def]
    """Fill in the source of each slot, and return the number of filled slots; `taken` counts the draws by source."""
    sources = len(taken)
    for k in range(len(chosen)):
        best, deadline = -1, _LAST
        for i in range(sources):
            draw = bounds[i] + taken[i]
            if draw < bounds[i + 1] and ends[draw] < deadline and begins[draw] <= first + k:
                best, deadline = i, ends[draw]
        if best < 0 or deadline <= first + k:
            return k
        chosen[k] = best
        taken[best] += 1
    return len(chosen)


def _arrays(rates: Rates) -> tuple[npt.NDArray[np.int64], int, int, int]:
    return np.array(rates.weights, np.int64), rates.period, rates.slack, sum(rates.weights)


def _relative(rates: Rates, slot: int) -> tuple[list[int], npt.NDArray[np.int64], int]:
    """Return the whole draws due at the time of a slot, their remainders, and the remainder of the time."""
    time, phase = divmod(slot * rates.period + rates.period - 1 - rates.start, sum(rates.weights))
    exact = [divmod(weight * time, rates.period) for weight in rates.weights]
    return [quotient for quotient, _ in exact], np.array([rest for _, rest in exact], np.int64), phase


_LAST = (1 << 63) - 1


def _crossing(
    weights: Int64s, period: int, slack: int, total: int, rest: Int64s, phase: int, due: int
) -> npt.NDArray[np.int64]:
    """Return the draws before the border beyond the whole ones due, int64[sources]."""
    gap = period // total + (1 if phase < period % total else 0) - 1
    ahead = (rest > slack).astype(np.int64)
    due -= int(ahead.sum())
    if due == 0:
        return ahead
    over = ahead * period - rest
    begin = (over + period - slack + weights - 1) // weights - 1
    end = (over + slack) // weights
    open_to = (rest + slack - weights * gap) // period > ahead  # sources with a draw that crosses the border
    first = int(begin[open_to].min(initial=0))
    slots = np.zeros((2, -first // (period // total) + 2), np.int64)
    taken, work = np.zeros(len(weights), np.bool_), np.empty((2, len(weights)), np.int64)
    _cross(weights, period, slack, total, over, phase, due, begin, end, open_to, first, slots, work, taken)
    return ahead + taken


@kernel("i64[:], i64, i64, i64, i64[:], i64, i64, i64[:], i64[:], b[:], i64, out i64[:,:], out i64[:,:], out b[:]")
def _cross(weights, period, slack, total, over, phase, due, begin, end, open_to, first, slots, work, taken):  # type: ignore[no-untyped-def]
    """Set `taken` for the sources that have a draw before the border beyond `due`; `slots` is for `_free_slots`."""
    sources = len(weights)
    times, free = slots[0], slots[1]
    last = _free_slots(weights, period, slack, total, over, phase, first, times, free, work[0], work[1])
    usable, count = free[last], 0
    for k in range(last, 0, -1):
        if free[k - 1] < usable:
            usable = free[k - 1]
            best = -1
            for i in range(sources):
                if open_to[i] and not taken[i] and begin[i] <= times[k] and (best < 0 or end[i] < end[best]):
                    best = i
            if best >= 0:
                taken[best] = True
                count += 1
    for _ in range(count - due):
        worst = -1
        for i in range(sources):
            if taken[i] and (worst < 0 or end[i] >= end[worst]):
                worst = i
        taken[worst] = False


@kernel
def _free_slots(weights, period, slack, total, over, phase, first, times, free, begin, part):  # type: ignore[no-untyped-def]
    """Find the slots before the border back to time `first`: fill their times, and free slots. Return the last's index.

    Index 1 is the last slot before the border. The number of free slots from a slot on excludes those needed by draws
    whose windows begin there and end before the border. Index 0 of both arrays is 0.
    """
    step, more = period // total, period % total
    # The window of each source's last draw that is over begins at `begin`; `part` is the remainder of that division.
    for i in range(len(weights)):
        begin[i] = (over[i] - slack + weights[i] - 1) // weights[i] - 1
        part[i] = (over[i] - slack + weights[i] - 1) % weights[i]
    slots = 0
    time = -step - (1 if phase < more else 0)
    phase += total - more if phase < more else -more
    while time >= first:
        before = time - step - (1 if phase < more else 0)
        phase += total - more if phase < more else -more
        slots += 1
        times[slots] = time
        free[slots] = free[slots - 1] + 1
        for i in range(len(weights)):
            while begin[i] > before:
                free[slots] -= 1
                begin[i] -= period // weights[i]
                part[i] -= period % weights[i]
                if part[i] < 0:
                    part[i] += weights[i]
                    begin[i] -= 1
        time = before
    return slots


@kernel("i64[:], i64, i64, i64, i64[:], i64, i64[:], out i64[:], out i64[:], out i64[:,:] -> i64")
def _fill(weights, period, slack, total, rest, phase, ahead, left, chosen, work):  # type: ignore[no-untyped-def]
    """Fill in the source of each slot, and return the number of filled slots.

    Args:
        work: int64[6, sources], scratch space.
    """
    sources = len(weights)
    step, more = period // total, period % total
    begin, begin_part, end, end_part, whole, part = work[0], work[1], work[2], work[3], work[4], work[5]
    for i in range(sources):
        weight = weights[i]
        whole[i], part[i] = period // weight, period % weight
        over = ahead[i] * period - rest[i]
        begin[i] = (over + period - slack + weight - 1) // weight - 1
        begin_part[i] = (over + period - slack + weight - 1) % weight
        end[i] = (over + slack) // weight
        end_part[i] = (over + slack) % weight
    time = 0
    for k in range(len(chosen)):
        best, deadline = -1, _LAST
        for i in range(sources):
            if end[i] < deadline and begin[i] <= time and left[i] > 0:
                best, deadline = i, end[i]
        if best < 0 or deadline < time:
            return k
        chosen[k] = best
        left[best] -= 1
        begin[best] += whole[best]
        begin_part[best] += part[best]
        if begin_part[best] >= weights[best]:
            begin_part[best] -= weights[best]
            begin[best] += 1
        end[best] += whole[best]
        end_part[best] += part[best]
        if end_part[best] >= weights[best]:
            end_part[best] -= weights[best]
            end[best] += 1
        time += step
        phase += more
        if phase >= total:
            phase -= total
            time += 1
    return len(chosen)
