"""Balancing against what is possible: every sample once, equal numbers, and sums near the bound that holds for all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.planning.dealing.balancing import balanced


def bound(costs: np.ndarray, ranks: int) -> float:
    """No way to deal has a lower maximum: the mean, and for each k that the k largest lie on k ranks or two on one."""
    each = len(costs) // ranks
    falling = np.sort(costs)[::-1].astype(float)
    cheapest = np.concatenate([[0], np.cumsum(falling[::-1])])
    numbers = np.arange(1, ranks + 1)
    apart = (np.cumsum(falling)[:ranks] + cheapest[numbers * (each - 1)]) / numbers
    shared = np.append(np.inf, 2 * falling[1:ranks] + cheapest[max(each - 2, 0)])
    return max(costs.sum() / ranks, float(np.max(np.minimum(apart, shared))))


@given(st.integers(1, 9), st.integers(1, 60), st.randoms(use_true_random=False))
def test_every_sample_once_and_as_many_for_each(ranks: int, each: int, dice: object) -> None:
    costs = [dice.choice([0, 1, 1, 7, dice.randrange(10**9)]) for _ in range(ranks * each)]  # type: ignore[attr-defined]
    dealt = balanced(costs, ranks)
    assert dealt.shape == (ranks, each) and sorted(dealt.ravel().tolist()) == list(range(ranks * each))
    mine = np.asarray(costs)[dealt]
    assert (np.diff(mine, axis=1) <= 0).all()
    assert np.array_equal(balanced(costs, ranks), dealt)
    kept = balanced(costs, ranks, exchange=False)
    layer = np.empty(ranks * each, int)
    layer[np.argsort(-np.asarray(costs), kind="stable")] = np.arange(ranks * each) // ranks
    assert (np.sort(layer[kept], axis=1) == np.arange(each)).all(), "one of each layer"


@pytest.mark.parametrize("sigma", [0.3, 1.2, 2.4])
@pytest.mark.parametrize(("ranks", "each"), [(8, 2), (8, 8), (64, 4), (1024, 8), (8, 1024), (100, 33), (3, 7)])
def test_near_the_bound(sigma: float, ranks: int, each: int) -> None:
    dice = np.random.default_rng(7)
    above = []
    for _ in range(5):
        costs = np.round(np.exp(dice.normal(np.log(600), sigma, ranks * each)))
        above.append(costs[balanced(costs, ranks)].sum(1).max() / bound(costs, ranks))
    assert np.mean(above) < 1.05 + 0.1 / each


def test_the_kth_of_each_rank_are_alike() -> None:
    dice = np.random.default_rng(3)
    costs = np.round(np.exp(dice.normal(6, 0.5, 64 * 8)))
    mine = costs[balanced(costs, 64)]
    plain = costs.reshape(64, 8)
    assert mine.std(axis=0).sum() < 0.5 * plain.std(axis=0).sum()


def test_small_cases_by_hand() -> None:
    assert balanced([3, 1, 2, 2], 2).tolist() == [[0, 1], [2, 3]]
    assert balanced([5], 1).tolist() == [[0]]
    assert balanced([4, 9, 4], 3).tolist() == [[1], [0], [2]]
    assert balanced([0, 0, 0, 0], 2).shape == (2, 2)
