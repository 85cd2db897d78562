"""Best-fit decreasing: the compiled kernel gives what the reference gives, and both pack."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.order.binpack import _PROBES, best_fit_decreasing, group_by
from helpers.durations import examples
from oracles.binpack import best_fit_decreasing as plain
from oracles.binpack import best_fit_within


@st.composite
def items(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    capacity = draw(st.integers(1, 70))
    return np.array(draw(st.lists(st.integers(1, capacity), max_size=120)), np.int32), capacity


@given(items())
@settings(max_examples=examples(200), deadline=None)
def test_the_kernel_packs_as_the_reference_does(case: tuple[np.ndarray, int]) -> None:
    sizes, capacity = case
    bins, count = best_fit_decreasing(sizes, capacity)
    expected, expected_count = plain(sizes, capacity)
    assert count == expected_count and np.array_equal(bins, expected) and bins.dtype == np.int32
    filled = np.bincount(bins, sizes, minlength=count)
    assert filled.max(initial=0) <= capacity and (filled > 0).all() and len(filled) == count
    assert count <= 11 / 9 * -(-int(sizes.sum()) // capacity) * 2 + 1  # no two bins could be one


@given(items(), st.lists(st.integers(0, 120), max_size=8))
@settings(max_examples=examples(100), deadline=None)
def test_groups_are_packed_as_if_each_were_alone(case: tuple[np.ndarray, int], cuts: list[int]) -> None:
    sizes, capacity = case
    bounds = np.array([0, *sorted(min(cut, len(sizes)) for cut in cuts), len(sizes)], np.int64)
    bins, count = best_fit_decreasing(sizes, capacity, bounds)
    before = 0
    for first, stop in itertools.pairwise(bounds.tolist()):
        expected, own = plain(sizes[first:stop], capacity)
        assert np.array_equal(bins[first:stop], before + expected)
        before += own
    assert before == count


@given(items(), st.lists(st.integers(0, 120), max_size=4), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_no_bin_takes_more_than_the_limit_of_a_demand(
    case: tuple[np.ndarray, int], cuts: list[int], data: st.DataObject
) -> None:
    sizes, capacity = case
    kinds = data.draw(st.integers(1, 2))
    limits = np.array(data.draw(st.lists(st.integers(1, 9), min_size=kinds, max_size=kinds)), np.int64)
    drawn = data.draw(st.lists(st.integers(0, 9), min_size=kinds * len(sizes), max_size=kinds * len(sizes)))
    demands = np.minimum(np.array(drawn, np.int64).reshape(kinds, -1), limits[:, None])
    bounds = np.array([0, *sorted(min(cut, len(sizes)) for cut in cuts), len(sizes)], np.int64)
    bins, count = best_fit_decreasing(sizes, capacity, bounds, demands, limits)
    before = 0
    for first, stop in itertools.pairwise(bounds.tolist()):
        expected, own = best_fit_within(sizes[first:stop], capacity, demands[:, first:stop], limits, _PROBES)
        assert np.array_equal(bins[first:stop], before + expected)
        before += own
    assert before == count
    for demand, limit in zip([sizes, *demands], [capacity, *limits], strict=True):
        assert np.bincount(bins, demand, minlength=count).max(initial=0) <= limit


def test_a_bin_without_room_for_images_still_takes_text() -> None:
    sizes, images = np.array([50, 40, 30, 30, 20], np.int32), np.array([[2, 0, 1, 1, 0]])
    bins, count = best_fit_decreasing(sizes, 100, None, images, np.array([2]))
    # Images first: 50 fills the images of bin 0, and 30 and 30 those of bin 1. Then 40 fills bin 1, and 20 fits bin 0.
    assert bins.tolist() == [0, 1, 1, 1, 0] and count == 2
    with pytest.raises(ValueError, match="demands must be in"):
        best_fit_decreasing(sizes, 100, None, images, np.array([1]))


def test_a_worked_example() -> None:
    # 7 opens bin 0; 6 opens 1; 4 fits bin 1 best (room 4, not 3 of bin 0); 3 fills bin 0; 2 and 1 open bin 2.
    bins, count = best_fit_decreasing(np.array([2, 4, 7, 1, 6, 3], np.int32), 10)
    assert bins.tolist() == [2, 1, 0, 2, 1, 0] and count == 3


def test_two_bins_are_never_both_half_empty() -> None:
    sizes = np.random.default_rng(0).integers(1, 4097, 20_000).astype(np.int32)
    bins, count = best_fit_decreasing(sizes, 4096)
    filled = np.sort(np.bincount(bins, sizes, minlength=count))
    assert filled[0] + filled[1] > 4096 and filled.max() <= 4096
    assert np.array_equal(bins, plain(sizes, 4096)[0])


@pytest.mark.parametrize("sizes", [[0], [11], [3, -1]])
def test_sizes_out_of_range_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match=r"\[1, 10\]"):
        best_fit_decreasing(np.array(sizes, np.int32), 10)


def test_large_capacities() -> None:
    sizes = np.array([2**20, 2**19, 2**19, 5], np.int32)
    assert best_fit_decreasing(sizes, 2**20)[0].tolist() == [0, 1, 1, 2]


@given(st.lists(st.integers(0, 9), max_size=50))
@settings(deadline=None)
def test_groups_are_a_stable_sort(groups: list[int]) -> None:
    given_groups = np.array(groups, np.int32)
    starts, order = group_by(given_groups, 10)
    assert np.array_equal(order, np.argsort(given_groups, kind="stable"))
    assert np.array_equal(np.diff(starts), np.bincount(given_groups, minlength=10))
