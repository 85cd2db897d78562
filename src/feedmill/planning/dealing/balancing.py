"""Balance costs over ranks heuristically, with equal or with free numbers of samples per rank.

For equal numbers (`balanced`), samples are sorted by cost and cut into layers, and each rank gets one sample of each
layer. Layers are combined by the largest differencing method for equal cardinality: of the two rows of sums with the
largest spread, the larger sums of one are added to the smaller sums of the other. With many layers, those with the
smallest spread are first combined in pairs, all at once. For free numbers (`greedy`), samples are dealt by descending
cost, each to the rank with the lowest sum so far (longest processing time first).

Afterwards samples are exchanged between the ranks with the highest and the lowest sums, as long as that helps. With
free numbers, an empty slot is exchanged like a sample of cost 0.

Sources: Graham 1969 (longest processing time first), Karmarkar and Karp 1982 (differencing), Yakir 1996 and Michiels,
Korst, Aarts and van Leeuwen 2003 (balanced largest differencing, several subsets). Sums are added element by element,
so that results are identical on every machine.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_ROWS = 20
"""Number of rows that are combined one by one; more of them are combined in pairs first."""
_CLOSE, _CLOSE_FREE = 1.001, 1.005
"""Multiple of the mean up to which the cost of a rank is not improved; with free numbers, dealing alone
usually comes this close."""
_EXCHANGES = 32
_PATIENCE = 2
"""Stop after this number of rounds without an exchange for the highest rank."""
_MANY = 64
"""Number of ranks from which on rounds are faster than a heap."""
_FREE = 4
"""Samples by which a rank may grow when samples are exchanged."""
_SHARED = 16
_COMPARED, _PAIRS = 32, 1 << 16
"""Samples of a rank that are compared with as many of another rank per round, and maximum comparisons per round."""


def balanced(costs: npt.ArrayLike, ranks: int, *, exchange: bool = True) -> IntArray:
    """Deal samples to ranks.

    Args:
        costs: cost of each sample, [n], not negative; n is a multiple of `ranks`.
        ranks: number of ranks.
        exchange: improve the result by exchanging samples of different layers. Without it, each rank has one of the
            cheapest `ranks` samples.

    Returns:
        int64[ranks, n / ranks]: the samples of each rank, most expensive first, so that the k-th samples of all ranks
        have similar costs.

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


def greedy(costs: npt.ArrayLike, ranks: int, most: int | None = None) -> list[IntArray]:
    """Deal samples to ranks, with different numbers of samples per rank.

    Args:
        costs: cost of each sample, [n], not negative. Among equal costs, the earlier sample is dealt first.
        ranks: number of ranks; with fewer samples than ranks, some get none.
        most: maximum number of samples per rank; n is at most ``ranks * most``.

    Returns:
        For each rank its samples, int64[k], most expensive first. Each has at least one if n is at least `ranks`.

    >>> [part.tolist() for part in greedy([9, 1, 5, 2, 6, 1], 2)]
    [[0, 3, 1], [4, 2, 5]]
    """
    cost = np.asarray(costs, np.float64)
    order = np.argsort(-cost, kind="stable")
    owner = (_dealt_one_by_one if ranks < _MANY else _dealt_in_rounds)(cost[order], ranks, most or len(cost))
    counts = np.bincount(owner, minlength=ranks)
    by_rank = order[np.argsort(owner, kind="stable")]
    if len(cost) <= ranks or ranks == 1:
        ends = np.cumsum(counts).tolist()
        return [by_rank[end - count : end] for count, end in zip(counts.tolist(), ends, strict=True)]
    width = int(counts.max()) + _FREE if most is None else min(int(counts.max()) + _FREE, most)
    dealt = np.full((ranks, width), len(cost))  # an empty slot has cost 0
    dealt[np.arange(width) < counts[:, None]] = by_rank
    padded = np.append(cost, 0.0)
    _exchange(dealt, padded[dealt], _CLOSE_FREE)
    filled = np.where(dealt < len(cost), padded[dealt], -1.0)
    dealt = np.take_along_axis(dealt, np.argsort(-filled, axis=1, kind="stable"), 1)
    return [row[:count] for row, count in zip(dealt, np.count_nonzero(filled >= 0, axis=1).tolist(), strict=True)]


def _dealt_one_by_one(cost: Floats, ranks: int, most: int) -> IntArray:
    """Return the rank of each sample; costs are descending.

    Each sample goes to the rank with the lowest sum; ties are broken by the fewest samples, then by the lowest number.
    """
    owner = []
    heap = [(0.0, 0, rank) for rank in range(ranks)]  # ranks that are not full
    for each in cost.tolist():
        total, count, rank = heap[0]
        owner.append(rank)
        if count + 1 == most:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (total + each, count + 1, rank))
    return np.array(owner, np.int64)


def _dealt_in_rounds(cost: Floats, ranks: int, most: int) -> IntArray:
    """Return the same result as `_dealt_one_by_one`.

    A round deals to ranks by ascending sums until a rank that got a sample could be the lowest again.
    """
    owner = np.empty(len(cost), np.int64)
    total, count = np.zeros(ranks), np.zeros(ranks, np.int64)
    done = 0
    while done < len(cost):
        free = np.flatnonzero(count < most)
        lowest = free[np.lexsort((free, count[free], total[free]))][: len(cost) - done]
        ends = total[lowest] + cost[done : done + len(lowest)]
        again = np.minimum.accumulate(np.where(count[lowest] + 1 < most, ends, np.inf))
        late = total[lowest[1:]] >= again[:-1]
        size = int(np.argmax(late)) + 1 if late.any() else len(lowest)
        chosen = lowest[:size]
        owner[done : done + size] = chosen
        total[chosen] = ends[:size]
        count[chosen] += 1
        done += size
    return owner


def _differenced(sums: Floats) -> IntArray:
    """Return the column of each layer for each slot, int64 in the shape of `sums`, whose rows are descending."""
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
    """Combine rows with the smallest spread in pairs; return the new sums, slots, and the row of each layer."""
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


def _exchange(dealt: IntArray, cost: Floats, near: float = _CLOSE) -> None:
    """Exchange samples between ranks above the mean and the lowest ones, in place."""
    ranks, each = dealt.shape
    total = _sums(cost.T)
    close = near * float(_sums(total)) / ranks
    compared = min(each, _COMPARED)
    if each > compared:
        _share(dealt, cost, total, close)
    stuck = 0
    for number in range(_EXCHANGES):
        above = int(np.count_nonzero(total > close))
        if not above:
            return
        by_total = np.argsort(-total, kind="stable")
        count = max(1, min(above, ranks // 2, _PAIRS // compared**2))
        high, low = by_total[:count], by_total[::-1][:count]
        half = (total[high] - total[low]) / 2
        columns = (np.arange(compared) * each // compared + number) % each
        gain = cost[high[:, None], columns][:, :, None] - cost[low[:, None], columns][:, None, :]
        best = np.argmin(np.abs(gain - half[:, None, None]).reshape(count, -1), 1)
        gain = gain.reshape(count, -1)[np.arange(count), best]
        useful = (gain > 0) & (gain < 2 * half)
        stuck = 0 if useful[0] else stuck + 1  # only the highest rank determines the time of a step
        if compared == each and (stuck == _PATIENCE or not useful.any()):
            return
        give, take = columns[best // compared][useful], columns[best % compared][useful]
        high, low, gain = high[useful], low[useful], gain[useful]
        for array in (dealt, cost):
            array[high, give], array[low, take] = array[low, take], array[high, give]
        total[high] -= gain
        total[low] += gain


def _share(dealt: IntArray, cost: Floats, total: Floats, close: float) -> None:
    """Redistribute the samples of the highest and the lowest rank between these two, as long as that helps, in place.

    The most expensive sample is combined with the run of neighbors in cost order that makes both sums nearly equal.
    Exchanging pairs is not enough if one sample costs as much as hundreds of others.
    """
    each = dealt.shape[1]
    for _ in range(_SHARED):
        high, low = int(np.argmax(total)), int(np.argmin(total))
        if total[high] <= close:
            return
        pool = np.concatenate([dealt[high], dealt[low]])
        costs = np.concatenate([cost[high], cost[low]])
        order = np.argsort(costs, kind="stable")
        pool, costs = pool[order], costs[order]
        sums = np.concatenate([[0.0], np.add.accumulate(costs[:-1])])
        beside = sums[each - 1 :] - sums[: len(sums) - each + 1]  # of each run of neighbors
        whole = float(sums[-1] + costs[-1])
        begin = int(np.argmin(np.abs(beside + costs[-1] - whole / 2)))
        mine = float(beside[begin] + costs[-1])
        if max(mine, whole - mine) >= total[high]:
            return
        kept = np.zeros(2 * each, np.bool_)
        kept[begin : begin + each - 1] = kept[-1] = True
        dealt[high], dealt[low] = pool[kept], pool[~kept]
        cost[high], cost[low] = costs[kept], costs[~kept]
        total[high], total[low] = mine, whole - mine


def _sums(rows: Floats) -> Floats:
    """Return the sum of the rows, added in sequence: the order of additions in `np.sum` depends on the machine."""
    total: Floats = np.add.accumulate(rows, axis=0)[-1]
    return total
