"""Equal numbers of samples for every rank, and costs as equal as a good heuristic makes them.

The samples are sorted by cost and cut into layers, of which each rank gets one sample each. Layers are put together by
largest differencing for equal cardinality: of the two rows of sums that spread most, the larger sums of one meet the
smaller of the other. Where there are many layers, those that spread least are first put together in pairs, all at once.
Afterwards samples are exchanged between the ranks with the highest and the lowest sums, as long as that helps.

Sources: Karmarkar and Karp 1982 (differencing), Yakir 1996 and Michiels, Korst, Aarts and van Leeuwen 2003 (balanced
largest differencing, several subsets). Sums are added element by element, so that every machine finds the same.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_ROWS = 20
"""Rows that are put together one by one; more of them are put together in pairs first."""
_CLOSE = 1.001
"""A rank at most so many times the mean is left as it is."""
_EXCHANGES = 32
_MANY_EACH = 32
"""Samples a rank from which on ranks exchange one pair by one: comparing all with all would cost more."""


def balanced(costs: npt.ArrayLike, ranks: int, *, exchange: bool = True) -> IntArray:
    """Deal samples to ranks.

    Args:
        costs: of each sample, [n], none negative; n is a multiple of `ranks`.
        ranks: how many.
        exchange: improve on it by exchanging samples of different layers. Without it each rank has one of the cheapest
            `ranks` samples.

    Returns:
        int64[ranks, n / ranks]: the samples of each rank, the costliest first, so that the k-th of each are alike.

    >>> balanced([9, 1, 5, 2, 6, 1], 2).tolist()
    [[0, 3, 5], [4, 2, 1]]
    """
    cost = np.asarray(costs, np.float64)
    each = len(cost) // ranks
    layers = np.argsort(-cost, kind="stable").reshape(each, ranks)
    if each <= 1 or ranks == 1:
        return np.ascontiguousarray(layers.T, np.int64)
    slots = _differenced(cost[layers])
    dealt = np.ascontiguousarray(np.take_along_axis(layers, slots, 1).T, np.int64)
    if exchange:
        _exchange(dealt, cost[dealt])
    order = np.argsort(-cost[dealt], axis=1, kind="stable")
    return np.take_along_axis(dealt, order, 1)


def _differenced(sums: Floats) -> IntArray:
    """Which column of each layer comes into each slot, int64 as `sums`, whose rows fall."""
    count, width = sums.shape
    slots = np.broadcast_to(np.arange(width), (count, width)).copy()
    row = np.arange(count)  # of each layer
    while len(sums) > _ROWS:
        sums, moved, row = _paired(sums, slots, row)
        slots = moved
    rows = list(sums)
    layers = [np.flatnonzero(row == number) for number in range(len(rows))]
    spread = [(float(sums[-1] - sums[0]), number) for number, sums in enumerate(rows)]
    heapq.heapify(spread)
    while len(spread) > 1:
        _, one = heapq.heappop(spread)
        _, other = heapq.heappop(spread)
        total = rows[one] + rows[other][::-1]
        order = np.argsort(-total, kind="stable")
        rows[one] = total[order]
        slots[layers[one]] = slots[layers[one]][:, order]
        slots[layers[other]] = slots[layers[other]][:, width - 1 - order]
        layers[one] = np.concatenate([layers[one], layers[other]])
        heapq.heappush(spread, (float(rows[one][-1] - rows[one][0]), one))
    return slots


def _paired(sums: Floats, slots: IntArray, row: IntArray) -> tuple[Floats, IntArray, IntArray]:
    """The rows that spread least put together in pairs, as many as are too many: new sums, slots, row of each layer."""
    count, width = sums.shape
    by_spread = np.argsort(sums[:, -1] - sums[:, 0], kind="stable")
    pairs = min(count - _ROWS, count // 2)
    kept, paired = by_spread[: count - 2 * pairs], by_spread[count - 2 * pairs :]
    one, other = paired[0::2], paired[1::2]
    total = sums[one] + sums[other][:, ::-1]
    order = np.argsort(-total, axis=1, kind="stable")
    number = np.empty(count, np.int64)
    number[kept], number[one] = np.arange(len(kept)), len(kept) + np.arange(pairs)
    number[other] = number[one]
    moved = np.empty((count, width), np.int64)
    moved[kept], moved[one], moved[other] = np.arange(width), order, width - 1 - order
    return (
        np.concatenate([sums[kept], np.take_along_axis(total, order, 1)]),
        np.take_along_axis(slots, moved[row], 1),
        number[row],
    )


def _exchange(dealt: IntArray, cost: Floats) -> None:
    """Exchange samples between ranks above the mean and the lowest ones, in place."""
    ranks, each = dealt.shape
    total = _sums(cost.T)
    close = _CLOSE * float(_sums(total)) / ranks
    for _ in range(_EXCHANGES if each <= _MANY_EACH else 2 * _EXCHANGES):
        above = int(np.count_nonzero(total > close))
        if not above:
            return
        count = max(1, min(above, ranks // 2, _MANY_EACH**2 * 64 // each**2)) if each <= _MANY_EACH else 1
        by_total = np.argsort(-total, kind="stable")
        high, low = by_total[:count], by_total[::-1][:count]
        half = (total[high] - total[low]) / 2
        give, take, gain = _best(cost[high], cost[low], half)
        useful = (gain > 0) & (gain < 2 * half)
        if not useful.any():
            return
        high, low, give, take, gain = high[useful], low[useful], give[useful], take[useful], gain[useful]
        for array in (dealt, cost):
            array[high, give], array[low, take] = array[low, take], array[high, give]
        total[high] -= gain
        total[low] += gain


def _best(high: Floats, low: Floats, half: Floats) -> tuple[IntArray, IntArray, Floats]:
    """Of each pair of ranks the samples whose exchange makes them most alike, and what it moves."""
    pairs, each = high.shape
    if each <= _MANY_EACH:
        gain = high[:, :, None] - low[:, None, :]
        best = np.argmin(np.abs(gain - half[:, None, None]).reshape(pairs, -1), 1)
        give, take = np.divmod(best, each)
        return give, take, gain[np.arange(pairs), give, take]
    order = np.argsort(low[0], kind="stable")
    rising = low[0][order]
    above = np.minimum(np.searchsorted(rising, high[0] - half[0]), each - 1)
    near = np.stack([above, np.maximum(above - 1, 0)])
    gain = high[0] - rising[near]
    which, give = np.divmod(np.argmin(np.abs(gain - half[0])).reshape(1), each)
    return give, order[near[which, give]], gain[which, give]


def _sums(rows: Floats) -> Floats:
    """The rows added up one after the other: `np.sum` adds in an order that depends on the machine."""
    total: Floats = np.add.accumulate(rows, axis=0)[-1]
    return total
