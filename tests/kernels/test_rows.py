"""The kernels of rows against plain loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.kernels.rows import copy_spans, count_spans, count_up, lay_out, shift_rows, targets_of


@given(rows=st.lists(st.lists(st.integers(1, 6), max_size=4), max_size=5), extra=st.integers(0, 4))
def test_lay_out(rows: list[list[int]], extra: int) -> None:
    width = max([sum(row) for row in rows], default=0) + extra + (not any(rows))
    tokens = np.full((len(rows), width), 7)
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    found = lay_out(offsets, np.array([n for row in rows for n in row], np.int64), tokens, -1)
    to = iter(found.to.tolist())
    for number, row in enumerate(rows):
        ends = [0, *np.cumsum(row).tolist(), *([width] if sum(row) < width else [])]
        shown = found.ends[number].tolist()
        assert shown[: len(ends)] == ends and set(shown[len(ends) :]) <= {width}
        places = [place for begin, end in itertools.pairwise(ends) for place in range(end - begin)]
        assert found.positions[number].tolist() == places
        assert tokens[number].tolist() == [7] * sum(row) + [-1] * (width - sum(row))
        assert [next(to) for _ in row] == [number * width + begin for begin in ends[: len(row)]]
    assert found.ends.shape[1] <= max([len(row) for row in rows], default=0) + 2


@pytest.mark.parametrize("dtype", ["<u1", "<u2", "<u4", "<i4", ">u2", ">u4"])
def test_copy_spans(dtype: str) -> None:
    random = np.random.default_rng(0)
    source = random.integers(0, 200, 500).astype(dtype)
    source.flags.writeable = False  # as a mapped file
    first, lengths = random.integers(0, 400, 20), random.integers(0, 90, 20)
    to = np.cumsum(lengths) - lengths
    out = np.zeros(int(lengths.sum()), np.int64)
    copy_spans(source, first, lengths, to, out)
    assert out.tolist() == [int(x) for a, n in zip(first, lengths, strict=True) for x in source[a : a + n]]


@given(
    st.lists(st.integers(0, 3), max_size=80),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), max_size=9),
)
def test_count_spans(values: list[int], spans: list[tuple[int, int]]) -> None:
    inside = [sorted(min(end, len(values)) for end in span) for span in spans]
    first, stop = (np.array([span[i] for span in inside], np.int64) for i in range(2))
    mask = np.array(values, np.uint8)
    assert count_spans(mask, first, stop).tolist() == [sum(v != 0 for v in values[a:b]) for a, b in inside]


@given(seed=st.integers(0, 1000), masked=st.booleans(), how=st.sampled_from(["none", "begins", "ends"]))
def test_targets(seed: int, masked: bool, how: str) -> None:
    random = np.random.default_rng(seed)
    count, width = int(random.integers(0, 4)), int(random.integers(2, 12))
    tokens = random.integers(0, 99, (count, width)).astype(random.choice(["i8", "i4", "u2"]))
    loss = random.random((count, width)) < 0.5 if masked else None
    begins = random.random((count, width)) < 0.3
    ends = np.where(begins, np.arange(width), width).astype(np.int32)
    real = random.integers(0, width + 1, count) if random.random() < 0.5 else None
    found = targets_of(
        tokens,
        -5,
        loss=loss,
        begins=begins if how == "begins" else None,
        ends=ends if how == "ends" else None,
        real=real,
    )
    assert found.dtype == np.int64 and found.shape == (count, width - 1)
    for row in range(count):
        for place in range(1, width):
            hidden = (loss is not None and not loss[row, place]) or (how != "none" and begins[row, place])
            hidden = hidden or (real is not None and place >= real[row])
            assert found[row, place - 1] == (-5 if hidden else tokens[row, place])


@given(seed=st.integers(0, 1000), dtype=st.sampled_from(["u1", "u2", "i4", "i8"]), masked=st.booleans())
def test_shift_rows(seed: int, dtype: str, masked: bool) -> None:
    random = np.random.default_rng(seed)
    width, count = int(random.integers(1, 40)), int(random.integers(0, 5))
    source = random.integers(0, 100, 60).astype(dtype)
    loss = random.integers(0, 3, 60).astype(np.uint8) if masked else None
    starts, rows = random.integers(0, 60 - width, count), random.permutation(count + 2)[:count]
    inputs, targets = np.full((count + 2, width), -1), np.full((count + 2, width), -1)
    shift_rows(source, loss, starts, rows, -5, inputs, targets)
    for start, row in zip(starts.tolist(), rows.tolist(), strict=True):
        assert inputs[row].tolist() == source[start : start + width].tolist()
        kept = np.ones(60, bool) if loss is None else loss != 0
        wanted = np.where(kept, source.astype(np.int64), -5)[start + 1 : start + width + 1]
        assert targets[row].tolist() == wanted.tolist()
    others = np.setdiff1d(np.arange(count + 2), rows)
    assert (inputs[others] == -1).all() and (targets[others] == -1).all()


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=4))
def test_count_up(places: list[list[int]]) -> None:
    flat = [(row, place) for row, found in enumerate(places) for place in sorted(found)]
    out = np.full((len(places), 10), -1)
    count_up(np.array([row for row, _ in flat], np.int64), np.array([place for _, place in flat], np.int64), out)
    for found, line in zip(places, out.tolist(), strict=True):
        assert line == [place - max([0, *(begin for begin in found if begin <= place)]) for place in range(10)]


def test_rows_longer_than_their_width_are_refused() -> None:
    tokens = np.zeros((2, 4), np.int64)
    with pytest.raises(ValueError, match="a row has 5 tokens, more than 4"):
        lay_out(np.array([0, 1, 3]), np.array([4, 2, 3]), tokens, -1)
    assert not tokens.any()
