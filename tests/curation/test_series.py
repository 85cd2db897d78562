from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feedmill.curation.series import Series, bin_keys

NUMBERS = st.lists(st.floats(-1e9, 1e9) | st.integers(-3000, 3000).map(float), max_size=200)


def series(numbers: list[float]) -> Series:
    found = Series()
    found.add(numbers)
    return found


@given(NUMBERS)
def test_what_is_exact(numbers: list[float]) -> None:
    found = series(numbers).as_dict()
    assert found["count"] == len(numbers)
    assert found["min"] == min(numbers, default=0) and found["max"] == max(numbers, default=0)
    assert found["sum"] == pytest.approx(math.fsum(numbers), rel=1e-9, abs=1e-5)


@example([0.0, 2.2250738585e-313], [1.0])  # below the least normal number bins have one width, not one ratio
@given(NUMBERS.filter(len), st.lists(st.floats(0.001, 1), min_size=1))
def test_quantiles_are_within_a_thousandth(numbers: list[float], shares: list[float]) -> None:
    ordered = sorted(numbers)
    for share, value in zip(shares, series(numbers).quantiles(shares), strict=True):
        want = ordered[math.ceil(share * len(ordered)) - 1]
        assert abs(value - want) <= abs(want) / 1000 + sys.float_info.min


@given(st.lists(st.integers(-2048, 2048).map(float), min_size=1, max_size=300), st.floats(0.001, 1))
def test_quantiles_of_whole_numbers_are_exact(numbers: list[float], share: float) -> None:
    assert series(numbers).quantiles([share]) == [sorted(numbers)[math.ceil(share * len(numbers)) - 1]]


@given(NUMBERS, st.lists(st.integers(0, 200), max_size=5))
def test_parts_make_the_whole(numbers: list[float], cuts: list[int]) -> None:
    whole, parts = series(numbers), Series()
    places = [0, *sorted(cuts), len(numbers)]
    for begin, end in itertools.pairwise(places):
        parts.merge(series(numbers[begin:end]))
    assert (parts.count, parts.low, parts.high) == (whole.count, whole.low, whole.high)
    assert parts.total == pytest.approx(whole.total, rel=1e-9, abs=1e-3)
    for ours, want in zip(parts.bins, whole.bins, strict=True):
        np.testing.assert_array_equal(ours, want)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=50))
def test_bins_rise_with_numbers(numbers: list[float]) -> None:
    keys = bin_keys(np.sort(np.array(numbers)) + 0.0)
    assert (np.diff(keys) >= 0).all()


@example([0.0, 5e-324], 1)
@given(NUMBERS.filter(len) | st.lists(st.floats(0, 1), min_size=1), st.integers(1, 40))
def test_histograms_hold_every_number(numbers: list[float], bins: int) -> None:
    edges, counts = series(numbers).histogram(bins)
    assert counts.sum() == len(numbers) and len(edges) == len(counts) + 1 <= bins + 2
    assert edges[0] <= min(numbers) and edges[-1] >= max(numbers)
    assert (np.diff(edges) >= 0).all()


def test_histograms_of_whole_numbers_have_whole_edges() -> None:
    edges, counts = series([1, 1, 9]).histogram(20)
    assert edges.tolist() == list(range(1, 11)) and counts.tolist() == [2, 0, 0, 0, 0, 0, 0, 0, 1]
    edges, counts = series([0, *range(1, 100_000)]).histogram(5)
    assert (edges == np.floor(edges)).all() and (np.diff(edges) > 0).all()
    assert counts.sum() == 100_000


def test_nothing() -> None:
    assert Series().quantiles() == [0.0] * 7
    assert Series().histogram(5)[1].tolist() == []
    assert Series().mean == 0
