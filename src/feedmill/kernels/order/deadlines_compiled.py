"""The compiled loops of `feedmill.kernels.order.deadlines`.

All times and counts are relative to the border, so they stay small for any border: `rest` is the remainder of
``weight * time`` after whole draws, `phase` the remainder of the time. Quotients and remainders are updated from one
draw or slot to the next, so no loop has a division, and no product exceeds 64 bits.
"""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import njit


@njit()
def crossing(weights, period, slack, total, rest, phase, due):  # type: ignore[no-untyped-def]
    """Return the draws before the border beyond the whole ones due, int64[sources], like `deadlines._counts_before`."""
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
def fill(weights, period, slack, total, rest, phase, ahead, left, chosen):  # type: ignore[no-untyped-def]
    """Fill in the source of each slot like `deadlines._fill`, and return the number of filled slots."""
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
