"""Documents of cells, found by kernels and by NumPy, with narrow and wide counts."""

from __future__ import annotations

import numpy as np
import pytest

from feedmill.kernels.order.cells import OUTSIDE, before, select, tally
from oracles import cells as plain


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
@pytest.mark.parametrize(("documents", "block"), [(1, 4), (64, 64), (65, 64), (3000, 1024), (2048, 1024), (0, 8)])
def test_as_numpy(kind, documents, block):
    draw = np.random.default_rng(documents)
    codes = np.append(np.repeat(np.uint16(2), documents // 2), draw.integers(0, 3, documents - documents // 2))
    codes = codes.astype(np.uint16)
    codes[draw.random(documents) < 0.2] = OUTSIDE
    table = np.full((4, -(-documents // block) + 1), 7, kind)
    totals, units, marks = np.zeros(4, np.int64), np.zeros(4, np.int64), np.zeros(4, np.uint64)
    lengths, half = draw.integers(0, 9, documents), documents // 3
    assert tally(codes[:half], 0, block, lengths[:half], table, totals, units, marks) == -1
    assert tally(codes[half:], half, block, lengths[half:], table, totals, units, marks) == -1
    table[:, -1] = totals
    for cell in range(4):
        numbers = plain.members(codes, cell)
        assert (totals[cell], units[cell]) == (len(numbers), lengths[numbers].sum())
        found = select(codes, block, table, np.full(len(numbers), cell), np.arange(len(numbers)))
        assert (found == numbers).all()
        everywhere = np.arange(documents + 1)
        counted = before(codes, block, table, np.full(documents + 1, cell), everywhere)
        assert counted.tolist() == [plain.before(codes, cell, number) for number in everywhere.tolist()]


def test_codes_that_contradict_the_counts():
    table = np.array([[0, 5]], np.uint32)
    assert select(np.zeros(3, np.uint16), 8, table, np.array([0]), np.array([4])).tolist() == [-1]
    nothing = np.zeros(0, np.int64)
    totals, marks = np.zeros(1, np.int64), np.zeros(1, np.uint64)
    assert tally(np.array([0, 1], np.uint16), 0, 8, nothing, table, totals, totals.copy(), marks) == 1
