"""Draws with windows by their definitions, see `feedmill.kernels.order.deadlines`."""

from __future__ import annotations

from feedmill.kernels.order.deadlines import Rates


def counts_before(rates: Rates, slot: int) -> list[int]:
    """Return the number of draws of each source before a slot that is a border."""
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


def deal(rates: Rates, slot: int, before: list[int], after: list[int]) -> list[int]:
    """Return the source of each slot from one border to the next."""
    counts, chosen = list(before), []
    for number in range(sum(after) - sum(before)):
        time = rates.time(slot + number)
        windows = [(*rates.window(i, count), i) for i, count in enumerate(counts) if count < after[i]]
        waiting = [(end, i) for begin, end, i in windows if begin <= time]
        assert waiting and min(waiting)[0] >= time
        chosen.append(min(waiting)[1])
        counts[min(waiting)[1]] += 1
    return chosen
