"""Earliest deadline first over the draws of several sources, from any border between blocks of slots.

Source `i` has the share ``p_i / period``. Its draw ``j`` may be taken as soon as that leaves its count at most
``slack / period`` ahead of its share, and must be taken before its count would fall further behind than that: a window
of time. The sources take turns in slots, slot ``k`` at the time ``(k * period + period - 1 - start) // sum(p)``: all
times where they are the whole of a blend, else a rounded line.

`counts_before` says which draws come before slot ``K``, from that slot's neighbourhood alone. Between ``lo_i``, draws
whose window is over, and ``hi_i``, draws whose window has begun, lies at most one draw per source: it crosses the
border. ``K - sum(lo)`` of these come before. A schedule of all the draws exists (`planning.mixing.deadlines` has the
proof). Those of its crossing draws that come before the border fit into the slots that the draws with ``j < lo_i``
leave free, and the others into slots after it: two nested families of constraints, one for each side. So give the free
slots before the border, in their order, to the crossing draw whose window ends first among those whose window has
begun. That is earliest deadline first: what it leaves over fits behind the border. And as it leaves no slot idle that
could be used, it places as many draws as any other way: at least as many as wanted. Too many are taken back, those
whose windows end last, which are the easiest to place behind (the exchange property of matroids: if any draw can go
to the other side, so can the one with the longest time left).

The counts at the borders of a block fix which draws it has. No window reaches from one border to the next but one, so
only intervals that begin or end at a border have other draws in them than in the infinite schedule, and for these the
counts were chosen: earliest deadline first finds a slot for each draw.

Sources: Tijdeman 1980 (the windows); Hall 1935, Jackson 1955 (unit jobs with windows, earliest deadline first).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Rates(NamedTuple):
    """weights: draws per period, all above 0, with a sum of at most `period`; period: at most 2^60.
    slack: a draw's window in parts of `period`, below it.
    start: 0 to period - 1, moves the slots: before time t come ``(sum(weights) * t + start) // period`` of them.
    """

    weights: tuple[int, ...]
    period: int
    slack: int
    start: int

    def time(self, slot: int) -> int:
        """When a slot comes."""
        return (slot * self.period + self.period - 1 - self.start) // sum(self.weights)

    def window(self, source: int, draw: int) -> tuple[int, int]:
        """Return the first and the last time of a draw, both included."""
        weight = self.weights[source]
        return (
            -((self.slack - (draw + 1) * self.period) // weight) - 1,
            (draw * self.period + self.slack) // weight,
        )

    def over(self, source: int, slot: int) -> int:
        """Draws that must come before a slot."""
        return -((self.slack - self.weights[source] * self.time(slot)) // self.period)

    def begun(self, source: int, slot: int) -> int:
        """Draws that may come before a slot."""
        return max(0, (self.weights[source] * (self.time(slot - 1) + 1) + self.slack) // self.period)


def counts_before(rates: Rates, slot: int, *, compiled: bool = True) -> list[int]:
    """Return how many draws each source has before a slot that is a border; integers of any size."""
    if not compiled:
        return _counts_before(rates, slot)
    from feedmill.kernels.order.deadlines_compiled import crossing

    quotients, *state = _relative(rates, slot)
    ahead = crossing(*_arrays(rates), *state, slot - sum(quotients))
    return [quotient + int(more) for quotient, more in zip(quotients, ahead, strict=True)]


def deal(rates: Rates, slot: int, before: list[int], after: list[int], *, compiled: bool = True) -> npt.NDArray[Any]:
    """Return the source of each slot from one border to the next.

    Args:
        rates: the sources.
        slot: the first.
        before: draws of each source before the first slot, by `counts_before`.
        after: draws before the next border; the sum says how many slots there are.

    Returns:
        The smallest unsigned type that holds the sources' numbers [slots].
    """
    chosen = np.empty(sum(after) - sum(before), np.min_scalar_type(len(before) - 1))
    if compiled:
        from feedmill.kernels.order.deadlines_compiled import fill

        quotients, *state = _relative(rates, slot)
        ahead = np.array([count - quotient for count, quotient in zip(before, quotients, strict=True)], np.int64)
        left = np.array([b - a for a, b in zip(before, after, strict=True)], np.int64)
        filled = fill(*_arrays(rates), *state, ahead, left, chosen)
    else:
        filled = _fill(rates, slot, before, after, chosen)
    if filled != len(chosen):
        raise AssertionError(f"no draw for slot {slot + filled} of {rates}")
    return chosen


def _arrays(rates: Rates) -> tuple[npt.NDArray[np.int64], int, int, int]:
    return np.array(rates.weights, np.int64), rates.period, rates.slack, sum(rates.weights)


def _relative(rates: Rates, slot: int) -> tuple[list[int], npt.NDArray[np.int64], int]:
    """Whole draws due by the time of a slot, what remains of each in parts of the period, and that of the time."""
    time, phase = divmod(slot * rates.period + rates.period - 1 - rates.start, sum(rates.weights))
    exact = [divmod(weight * time, rates.period) for weight in rates.weights]
    return [quotient for quotient, _ in exact], np.array([rest for _, rest in exact], np.int64), phase


def _counts_before(rates: Rates, slot: int) -> list[int]:
    """By the definitions alone: the oracle of the compiled kernel."""
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


def _fill(rates: Rates, slot: int, before: list[int], after: list[int], chosen: npt.NDArray[Any]) -> int:
    """By the definitions alone: the oracle of the compiled kernel."""
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
