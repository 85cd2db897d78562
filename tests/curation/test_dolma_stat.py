from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.curation.dolma_stat import Bins, shown, summarize
from feedmill.errors import DataError

NUMBERS = st.lists(st.floats(-1e6, 1e6) | st.integers(-50, 50).map(float), min_size=1, max_size=100)


def plain(numbers: list[float]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for number in numbers:
        fraction, exponent = math.frexp(number)
        key = (math.floor(fraction * 100_000), exponent)
        found[key] = found.get(key, 0) + 1
    return found


def bins(numbers: list[float]) -> Bins:
    made = Bins()
    made.add(np.array(numbers), whole=False)
    return made


@given(NUMBERS)
def test_bins_are_those_of_a_plain_loop(numbers: list[float]) -> None:
    lower, counts = bins(numbers).edges()
    want = sorted((m / 100_000 * 2.0**e, n) for (m, e), n in plain(numbers).items())
    assert list(zip(lower.tolist(), counts.tolist(), strict=True)) == want


@given(NUMBERS, st.integers(1, 30))
def test_summaries(numbers: list[float], most: int) -> None:
    made = bins(numbers)
    summary = made.summary("x", most)
    assert sum(summary.counts) == summary.total == len(numbers)
    assert len(summary.bins) == len(summary.counts) + 1 and len(summary.counts) <= max(most, 1)
    assert summary.sum == pytest.approx(sum(numbers), rel=1e-9, abs=1e-6)
    lower = made.edges()[0]
    if len(lower) > most:
        counts, edges = np.histogram(lower, most, weights=made.edges()[1])
        assert (summary.counts, summary.bins) == (counts.tolist(), edges.tolist())


@given(NUMBERS, NUMBERS)
def test_merged_bins_are_those_of_all_numbers(one: list[float], two: list[float]) -> None:
    made = bins(one)
    made.merge(bins(two))
    for ours, want in zip(made.edges(), bins([*one, *two]).edges(), strict=True):
        np.testing.assert_array_equal(ours, want)


@given(NUMBERS, st.integers(1, 12))
def test_shown_classes_hold_every_number(numbers: list[float], rows: int) -> None:
    summary = bins(numbers).summary("x", 1000)
    found: list[Any] = shown(summary, rows)
    assert len(found) <= rows
    assert sum(count for _, _, count in found) == len(numbers)
    assert sum(share for _, share, _ in found) == pytest.approx(1)


def test_the_largest_numbers() -> None:
    made = bins([-1.7e308, sys.float_info.max])
    summary = made.summary("x", 10)
    assert summary.counts == [1, 1] and summary.bins[-1] == sys.float_info.max
    assert all(math.isfinite(edge) for edge in summary.bins) and len(shown(summary)) == 2
    made.add(np.array([1e30]), whole=True)
    assert made.sum == pytest.approx(sys.float_info.max - 1.7e308)


def test_a_number_beyond_float64_is_a_bad_row(tmp_path: Path) -> None:
    rows = b'{"id":1,"attributes":{"x":[[0,1,1]]}}\n{"id":1,"attributes":{"x":[[0,1%b,1]]}}\n' % (b"0" * 400)
    (tmp_path / "x.jsonl").write_bytes(rows)
    with pytest.raises(DataError, match="too large") as caught:
        summarize([str(tmp_path / "x.jsonl")], progress=False)
    assert caught.value.record == "line 2"
