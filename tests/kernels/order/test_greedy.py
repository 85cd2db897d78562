"""Greedy draws: compiled and plain agree, also where rounding decides."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.order.greedy import greedy, ranks
from helpers.durations import examples
from oracles import greedy as plain


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12).filter(any), st.integers(0, 600))
@settings(max_examples=examples(80), deadline=None)
def test_the_compiled_draws_are_the_plain_ones(weights: list[float], draws: int) -> None:
    row = np.array(weights) / np.sum(weights)
    choice, counts = greedy(row, draws)
    assert (choice.tolist(), counts.tolist()) == plain.greedy(row.tolist(), draws, [inf] * len(weights))
    assert np.array_equal(np.bincount(choice, minlength=len(row)), counts)
    order = ranks(choice, counts)
    assert np.array_equal(np.argsort(order), np.argsort(choice, kind="stable"))


@given(st.lists(st.integers(1, 90), min_size=2, max_size=9))
@settings(max_examples=examples(80), deadline=None)
def test_limits_are_used_up(sizes: list[int]) -> None:
    limits = np.array(sizes)
    weights = limits / limits.sum()
    choice, counts = greedy(weights, int(limits.sum()), limits)
    assert (choice.tolist(), counts.tolist()) == plain.greedy(weights.tolist(), int(limits.sum()), limits.tolist())
    assert counts.tolist() == sizes


def test_ties_go_to_the_first() -> None:
    assert greedy(np.full(4, 0.25), 8)[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize("sources", [255, 256, 257, 300])
def test_many_sources(sources: int) -> None:
    choice, counts = greedy(np.full(sources, 1 / sources), 2 * sources)
    assert choice.dtype == (np.uint8 if sources <= 256 else np.uint16)
    assert set(counts.tolist()) <= {1, 2, 3} and counts.sum() == 2 * sources
