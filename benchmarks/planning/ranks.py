"""Measure the time to balance ranks, and how equal their costs are. `plan_order.py` measures the time to deal.

1. Milliseconds to balance a global batch of 8,192 samples, and to deal it by budget.
2. The highest cost of a rank in a step divided by the mean over ranks, for packed rows of documents of log-normal
   length (median 600 tokens, sigma 1.2) by attention cost: in slices, balanced, and the lower bound of any deal.

    python -m benchmarks.planning.ranks
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from feedmill.planning.dealing.balancing import balanced, greedy


def rows(count: int, seq_len: int, dice: np.random.Generator) -> np.ndarray:
    """Return the attention cost of rows that documents fill end to end, float64[count]."""
    lengths = np.exp(dice.normal(np.log(600), 1.2, int(count * seq_len / 600))).astype(np.int64) + 1
    ends = np.cumsum(lengths)
    cuts = np.union1d(ends[ends < count * seq_len], np.arange(0, count * seq_len + 1, seq_len))
    return np.bincount(cuts[:-1] // seq_len, np.diff(cuts).astype(float) ** 2, count)[:count]


def bound(costs: np.ndarray, ranks: int) -> float:
    """Return the lower bound of the maximum of any equal-size deal; see tests/planning/dealing/test_balancing.py."""
    each = len(costs) // ranks
    falling = np.sort(costs)[::-1]
    cheapest = np.concatenate([[0], np.cumsum(falling[::-1])])
    numbers = np.arange(1, ranks + 1)
    apart = (np.cumsum(falling)[:ranks] + cheapest[numbers * (each - 1)]) / numbers
    shared = np.append(np.inf, 2 * falling[1:ranks] + cheapest[max(each - 2, 0)]) if each > 1 else np.inf
    return max(costs.sum() / ranks, float(np.max(np.minimum(apart, shared))))


def spreads(seq_len: int, ranks: int, each: int, steps: int = 20) -> Iterator[tuple[float, float, float]]:
    """Return the highest cost of a rank divided by the mean, per step: in slices, balanced, and the bound."""
    dice = np.random.default_rng([seq_len, ranks, each])
    for _ in range(steps):
        costs = rows(ranks * each, seq_len, dice)
        mean = costs.sum() / ranks
        dealt = costs[balanced(costs, ranks)].sum(axis=1).max()
        yield costs.reshape(ranks, each).sum(axis=1).max() / mean, dealt / mean, bound(costs, ranks) / mean


def main() -> None:
    """Print the two tables."""
    dice = np.random.default_rng(0)
    for ranks in (8, 64, 1024):
        costs = np.round(np.exp(dice.normal(np.log(600), 1.2, 8192)))
        for deal in (balanced, greedy):
            best = float("inf")
            for _ in range(9):
                begin = time.perf_counter()
                deal(costs, ranks)
                best = min(best, time.perf_counter() - begin)
            print(f"{deal.__name__:8} 8,192 samples over {ranks:5,} ranks   {best * 1e3:.2f} ms")
    for seq_len in (4096, 32_768):
        for ranks in (8, 64, 1024):
            for each in (1, 2, 4, 8):
                slices, dealt, least = np.mean(list(spreads(seq_len, ranks, each)), axis=0)
                print(
                    f"rows of {seq_len:6,}   {ranks:5,} x {each}   slices {slices:.3f}   balanced {dealt:.3f}"
                    f"   bound {least:.3f}   balanced / bound {dealt / least:.3f}"
                )


if __name__ == "__main__":
    main()
