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

from feedmill.kernels.native import njit


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


def counts_before(rates: Rates, slot: int, *, compiled: bool = True) -> list[int]:
    """Return the number of draws of each source before a slot that is a border; integers of any size."""
    if not compiled:
        return _counts_before_plain(rates, slot)
    quotients, *state = _relative(rates, slot)
    ahead = _crossing(*_arrays(rates), *state, slot - sum(quotients))
    return [quotient + int(more) for quotient, more in zip(quotients, ahead, strict=True)]


def deal(rates: Rates, slot: int, before: list[int], after: list[int], *, compiled: bool = True) -> npt.NDArray[Any]:
    """Return the source of each slot from one border to the next.

    Args:
        rates: the sources.
        slot: the first slot.
        before: number of draws of each source before the first slot, from `counts_before`.
        after: number of draws before the next border; the difference of the sums is the number of slots.

    Returns:
        Source numbers [slots], in the smallest unsigned type that can hold them.
    """
    chosen = np.empty(sum(after) - sum(before), np.min_scalar_type(len(before) - 1))
    if compiled:
        quotients, *state = _relative(rates, slot)
        ahead = np.array([count - quotient for count, quotient in zip(before, quotients, strict=True)], np.int64)
        left = np.array([b - a for a, b in zip(before, after, strict=True)], np.int64)
        filled = _fill(*_arrays(rates), *state, ahead, left, chosen)
    else:
        filled = _fill_plain(rates, slot, before, after, chosen)
    if filled != len(chosen):
        raise AssertionError(f"no draw for slot {slot + filled} of {rates}")
    return chosen


def _arrays(rates: Rates) -> tuple[npt.NDArray[np.int64], int, int, int]:
    return np.array(rates.weights, np.int64), rates.period, rates.slack, sum(rates.weights)


def _relative(rates: Rates, slot: int) -> tuple[list[int], npt.NDArray[np.int64], int]:
    """Return the whole draws due at the time of a slot, their remainders, and the remainder of the time."""
    time, phase = divmod(slot * rates.period + rates.period - 1 - rates.start, sum(rates.weights))
    exact = [divmod(weight * time, rates.period) for weight in rates.weights]
    return [quotient for quotient, _ in exact], np.array([rest for _, rest in exact], np.int64), phase


def _counts_before_plain(rates: Rates, slot: int) -> list[int]:
    """Compute by the definitions: the test oracle of the compiled kernel."""
    sources = range(len(rates.weights))
    counts = [rates.over(i, slot) for i in sources]
    windows = {i: rates.window(i, counts[i]) for i in sources if rates.begun(i, slot) > counts[i]}
    first = slot
    while windows and rates.time(first - 1) >= min(begin for begin, _ in windows.values()):
        first -= 1
    free = [slot - k - sum(max(0, counts[i] - rates.begun(i, k)) for i in sources) for k in range(first, slot + 1)]
    chosen: list[int] = []
    usable = free[0]
    for k in range(first, slot):
        if free[k + 1 - first] < usable:
            usable -= 1
            waiting = [(end, i) for i, (begin, end) in windows.items() if i not in chosen and begin <= rates.time(k)]
            chosen += [i for _, i in sorted(waiting)[:1]]
    for i in sorted(chosen, key=lambda i: (windows[i][1], i))[: slot - sum(counts)]:
        counts[i] += 1
    return counts


def _fill_plain(rates: Rates, slot: int, before: list[int], after: list[int], chosen: npt.NDArray[Any]) -> int:
    """Compute by the definitions: the test oracle of the compiled kernel."""
    counts = list(before)
    for number in range(len(chosen)):
        time = rates.time(slot + number)
        windows = [(*rates.window(i, count), i) for i, count in enumerate(counts) if count < after[i]]
        waiting = [(end, i) for begin, end, i in windows if begin <= time]
        if not waiting or min(waiting)[0] < time:
            return number
        chosen[number] = min(waiting)[1]
        counts[min(waiting)[1]] += 1
    return len(chosen)


@njit()
def _crossing(weights, period, slack, total, rest, phase, due):  # type: ignore[no-untyped-def]
    """Return the draws before the border beyond the whole ones due, int64[sources], like `_counts_before_plain`."""
    sources = len(weights)
    gap = period // total + (1 if phase < period % total else 0) - 1
    ahead = (rest > slack).astype(np.int64)
    due -= ahead.sum()
    over = ahead * period - rest
    begin = (over + period - slack + weights - 1) // weights - 1
    end = (over + slack) // weights
    open_to = (rest + slack - weights * gap) // period > ahead  # sources with a draw that crosses the border
    first = 0
    for i in range(sources):
        if open_to[i]:
            first = min(first, begin[i])
    if due == 0:
        return ahead
    times, free = _free_slots(weights, period, slack, total, over, phase, first)
    taken = np.zeros(sources, np.bool_)
    usable = free[-1]
    for k in range(len(free) - 1, 0, -1):
        if free[k - 1] < usable:
            usable = free[k - 1]
            best = -1
            for i in range(sources):
                if open_to[i] and not taken[i] and begin[i] <= times[k] and (best < 0 or end[i] < end[best]):
                    best = i
            if best >= 0:
                taken[best] = True
    for _ in range(taken.sum() - due):
        worst = -1
        for i in range(sources):
            if taken[i] and (worst < 0 or end[i] >= end[worst]):
                worst = i
        taken[worst] = False
    return ahead + taken


@njit()
def _free_slots(weights, period, slack, total, over, phase, first):  # type: ignore[no-untyped-def]
    """Return the slots before the border back to time `first`, the last one at index 1: their times, and free slots.

    The number of free slots from a slot on excludes those needed by draws whose windows begin there and end before the
    border.
    """
    step, more = period // total, period % total
    # The window of each source's last draw that is over begins at `begin`; `part` is the remainder of that division.
    begin = (over - slack + weights - 1) // weights - 1
    part = (over - slack + weights - 1) % weights
    free = np.zeros(-first // step + 2, np.int64)
    times = np.zeros(-first // step + 2, np.int64)
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
    return times[: slots + 1], free[: slots + 1]


@njit()
def _fill(weights, period, slack, total, rest, phase, ahead, left, chosen):  # type: ignore[no-untyped-def]
    """Fill in the source of each slot like `_fill_plain`, and return the number of filled slots."""
    sources = len(weights)
    step, more = period // total, period % total
    begin = np.empty(sources, np.int64)
    begin_part = np.empty(sources, np.int64)
    end = np.empty(sources, np.int64)
    end_part = np.empty(sources, np.int64)
    whole = period // weights
    part = period % weights
    for i in range(sources):
        weight = weights[i]
        over = ahead[i] * period - rest[i]
        begin[i] = (over + period - slack + weight - 1) // weight - 1
        begin_part[i] = (over + period - slack + weight - 1) % weight
        end[i] = (over + slack) // weight
        end_part[i] = (over + slack) % weight
    time = 0
    for k in range(len(chosen)):
        best, deadline = -1, np.iinfo(np.int64).max
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
