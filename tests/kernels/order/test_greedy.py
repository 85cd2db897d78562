"""Greedy draws: compiled and plain agree, also where rounding decides."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.order.greedy import greedy, ranks
from helpers.durations import examples


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12).filter(any), st.integers(0, 600))
@settings(max_examples=examples(80), deadline=None)
def test_the_compiled_draws_are_the_plain_ones(weights: list[float], draws: int) -> None:
    row = np.array(weights) / np.sum(weights)
    choice, counts = greedy(row, draws, compiled=False)
    again, counts_again = greedy(row, draws, compiled=True)
    assert np.array_equal(choice, again) and np.array_equal(counts, counts_again)
    assert np.array_equal(np.bincount(choice, minlength=len(row)), counts)
    order = ranks(choice, counts, compiled=False)
    assert np.array_equal(order, ranks(choice, counts, compiled=True))
    assert np.array_equal(np.sort(order), np.arange(draws))
    assert np.array_equal(choice[np.argsort(order)], np.sort(choice))


@given(st.lists(st.integers(1, 90), min_size=2, max_size=9))
@settings(max_examples=examples(80), deadline=None)
def test_limits_are_used_up(sizes: list[int]) -> None:
    limits = np.array(sizes)
    choice, counts = greedy(limits / limits.sum(), int(limits.sum()), limits, compiled=False)
    again, counts_again = greedy(limits / limits.sum(), int(limits.sum()), limits, compiled=True)
    assert np.array_equal(choice, again) and counts.tolist() == counts_again.tolist() == sizes


def test_ties_go_to_the_first() -> None:
    assert greedy(np.full(4, 0.25), 8)[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize("sources", [255, 256, 257, 300])
def test_many_sources(sources: int) -> None:
    choice, counts = greedy(np.full(sources, 1 / sources), 2 * sources, compiled=True)
    assert choice.dtype == (np.uint8 if sources <= 256 else np.uint16)
    assert set(counts.tolist()) <= {1, 2, 3} and counts.sum() == 2 * sources
