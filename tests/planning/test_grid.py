from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.planning.grid import Grid


def grids(world_size: int, **fields: object) -> list[Grid]:
    return [Grid(rank=rank, world_size=world_size, **fields) for rank in range(world_size)]  # type: ignore[arg-type]


@given(st.integers(0, 30), st.integers(0, 100), st.integers(1, 7), st.integers(1, 9))
def test_every_position_once_in_rank_order(start: int, more: int, batch_size: int, world_size: int) -> None:
    ranks = grids(world_size, start=start, length=start + more, batch_size=batch_size, drop_last=False)
    last = max(grid.steps or 0 for grid in ranks)
    positions: list[int] = []
    for number in range(last):
        for grid in ranks:
            if number < (grid.steps or 0):
                step = grid.step(number)
                assert step.first < step.stop <= step.end
                positions += range(step.first, step.stop)
    assert positions == list(range(start, start + more))
    assert last == -(-more // (batch_size * world_size))
    assert all(last - (grid.steps or 0) <= 1 for grid in ranks)


@given(st.integers(0, 30), st.integers(0, 100), st.integers(1, 7), st.integers(1, 9))
def test_drop_last_gives_all_ranks_the_same_full_batches(
    start: int, more: int, batch_size: int, world_size: int
) -> None:
    for grid in grids(world_size, start=start, length=start + more, batch_size=batch_size, drop_last=True):
        assert grid.steps == more // (batch_size * world_size)
        for number in range(grid.steps):
            assert grid.step(number).stop - grid.step(number).first == batch_size
        assert grid.end == start + grid.steps * grid.global_batch


@pytest.mark.parametrize("drop_last", [False, True])
@given(st.integers(0, 30), st.integers(0, 60), st.integers(1, 5), st.integers(1, 5))
def test_number_at_inverts_step(drop_last: bool, start: int, more: int, batch_size: int, world_size: int) -> None:
    for grid in grids(world_size, start=start, length=start + more, batch_size=batch_size, drop_last=drop_last):
        assert grid.number_at(start) == 0
        for number in range(grid.steps or 0):
            assert grid.number_at(grid.step(number).end) == number + 1
        assert grid.number_at(grid.end or 0) >= (grid.steps or 0)


def test_endless_positions_beyond_32_bits() -> None:
    grid = Grid(10**12, None, 3, 1, 2, False)
    assert grid.steps is None and grid.end is None
    assert grid.step(10**9) == (10**12 + 6 * 10**9 + 3, 10**12 + 6 * 10**9 + 6, 10**12 + 6 * 10**9 + 6)
