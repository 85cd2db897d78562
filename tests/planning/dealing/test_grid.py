from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.planning.dealing.grid import REMAINDERS, Grid


def grids(world_size: int, **fields: object) -> list[Grid]:
    return [Grid(rank=rank, world_size=world_size, **fields) for rank in range(world_size)]  # type: ignore[arg-type]


@given(st.integers(0, 30), st.integers(0, 100), st.integers(1, 7), st.integers(1, 9))
def test_every_position_once_in_rank_order(start: int, more: int, batch_size: int, world_size: int) -> None:
    ranks = grids(world_size, start=start, length=start + more, batch_size=batch_size, remainder="uneven")
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
def test_drop_gives_all_ranks_the_same_full_batches(start: int, more: int, batch_size: int, world_size: int) -> None:
    for grid in grids(world_size, start=start, length=start + more, batch_size=batch_size, remainder="drop"):
        assert grid.steps == more // (batch_size * world_size)
        for number in range(grid.steps):
            assert grid.step(number).stop - grid.step(number).first == batch_size
        assert grid.end == start + grid.steps * grid.global_batch


@pytest.mark.parametrize("remainder", REMAINDERS)
@given(st.integers(0, 30), st.integers(0, 60), st.integers(1, 5), st.integers(1, 5))
def test_number_at_inverts_step(remainder: str, start: int, more: int, batch_size: int, world_size: int) -> None:
    for grid in grids(world_size, start=start, length=start + more, batch_size=batch_size, remainder=remainder):
        assert grid.number_at(start) == 0
        for number in range(grid.steps or 0):
            assert grid.number_at(grid.step(number).end) == number + 1
        assert grid.number_at(grid.end or 0) >= (grid.steps or 0)


def test_endless_positions_beyond_32_bits() -> None:
    grid = Grid(10**12, None, 3, 1, 2, "uneven")
    assert grid.steps is None and grid.end is None
    assert grid.step(10**9)[:3] == (10**12 + 6 * 10**9 + 3, 10**12 + 6 * 10**9 + 6, 10**12 + 6 * 10**9 + 6)
    assert grid.step(10**9).real == 3


@given(st.integers(0, 30), st.integers(1, 100), st.integers(1, 7), st.integers(1, 9))
def test_pad_gives_all_ranks_whole_batches_and_every_position_once(
    start: int, more: int, batch_size: int, world_size: int
) -> None:
    ranks = grids(world_size, start=start, length=start + more, batch_size=batch_size, remainder="pad")
    assert {grid.steps for grid in ranks} == {-(-more // (batch_size * world_size))}
    found: list[int] = []
    for number in range(ranks[0].steps or 0):
        for grid in ranks:
            step = grid.step(number)
            positions = step.positions.tolist()
            assert len(positions) == batch_size and 0 <= min(positions) <= max(positions) < start + more
            assert step.number == number + -(-start // grid.global_batch) and step.end <= start + more
            found += positions[: step.real]
    assert found == list(range(start, start + more))
