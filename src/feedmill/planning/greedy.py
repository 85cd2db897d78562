"""Costs as equal as possible for every rank, with numbers of samples that are free.

Samples are dealt by falling cost, each to the rank with the lowest sum so far (longest processing time first; Graham
1969: the costliest rank has at most 4/3 of the best possible cost). Afterwards the costliest and the cheapest rank
exchange samples, or one gives a sample to the other, as long as that helps.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

_EXCHANGES = 64
_CLOSE = 1.001
"""A rank at most so many times the mean is left as it is."""
_COMPARED = 512
"""Samples of a rank that are compared with those of another, at most."""


def greedy(costs: npt.ArrayLike, ranks: int, most: int | None = None) -> list[IntArray]:
    """Deal samples to ranks.

    Args:
        costs: int64[n] of each sample, none negative. Of equal costs the earlier sample is dealt first.
        ranks: how many; with fewer samples than ranks some get none.
        most: samples per rank, at most; n is at most ``ranks * most``.

    Returns:
        For each rank its samples, int64[k], the costliest first. Each has at least one where n is at least `ranks`.

    >>> [part.tolist() for part in greedy([9, 1, 5, 2, 6, 1], 2)]
    [[0, 3, 1], [4, 2, 5]]
    """
    cost = np.asarray(costs, np.int64)
    order = np.argsort(-cost, kind="stable")
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    heap = [(0, 0, rank) for rank in range(ranks)]  # sum, samples and number of each rank that takes more
    for sample, each in zip(order.tolist(), cost[order].tolist(), strict=True):
        total, count, rank = heap[0]
        dealt[rank].append(sample)
        if count + 1 == most:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (total + each, count + 1, rank))
    parts = [np.array(samples, np.int64) for samples in dealt]
    if len(cost) > ranks > 1:
        _exchange(parts, cost, most)
    return [part[np.argsort(-cost[part], kind="stable")] for part in parts]


def _exchange(parts: list[IntArray], cost: IntArray, most: int | None) -> None:
    """Even out the costliest and the cheapest rank, in place."""
    sums = np.array([cost[part].sum() for part in parts], np.int64)
    close = _CLOSE * float(sums.sum()) / len(parts)
    for _ in range(_EXCHANGES):
        high, low = int(sums.argmax()), int(sums.argmin())
        if sums[high] <= close:
            return
        give, take = parts[high][:_COMPARED], parts[low][:_COMPARED]
        gain = cost[give][:, None] - cost[take][None, :]
        if len(parts[high]) > 1 and (most is None or len(parts[low]) < most):
            gain = np.concatenate([gain, cost[give][:, None]], axis=1)  # the last column: nothing comes back
        apart = int(sums[high] - sums[low])
        row, column = np.unravel_index(int(np.argmin(np.abs(2 * gain - apart))), gain.shape)
        moved = int(gain[row, column])
        if not 0 < moved < apart:
            return
        sample = parts[high][row]
        if column == len(take):
            parts[high], parts[low] = np.delete(parts[high], row), np.append(parts[low], sample)
        else:
            parts[high][row], parts[low][column] = parts[low][column], sample
        sums[high] -= moved
        sums[low] += moved
