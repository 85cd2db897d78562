"""Loaders that start at a position of the plan."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, NotFound
from feedmill.planning import ledger
from helpers.number_dataset import Numbered


def keys(plan: fm.Plan, **options: Any) -> list[str]:
    with contextlib.closing(fm.Loader(plan, 3, **{"rank": 0, "world_size": 1, **options})) as loader:
        return [key for batch in loader for key in batch["__key__"]]


@pytest.fixture
def plan() -> fm.Plan:
    return fm.Plan.over(Numbered("n", 20), epochs=1)


@pytest.mark.parametrize("start", [0, 1, 7, 19, 20])
def test_batches_are_those_of_the_plan_from_there(plan: fm.Plan, start: int) -> None:
    assert keys(plan, start=start) == keys(plan)[start:]


def test_ranks_share_what_is_left(plan: fm.Plan) -> None:
    found = [keys(plan, start=8, rank=rank, world_size=2) for rank in range(2)]
    assert sorted([*found[0], *found[1]]) == sorted(keys(plan)[8:])


def test_a_state_overrides_the_start_and_rewinding_goes_back_to_it(plan: fm.Plan) -> None:
    first = fm.Loader(plan, 3, rank=0, world_size=1, start=6)
    next(iter(first))
    assert first.position == 9
    second = fm.Loader(plan, 3, rank=0, world_size=1, start=2, rewind=True)
    second.load_state_dict(first.state_dict())
    wanted = keys(plan)
    for begin in (9, 2):
        assert [key for batch in second for key in batch["__key__"]] == wanted[begin:]
    first.close()


@pytest.mark.parametrize("start", [-1, 21])
def test_a_start_outside_of_the_plan_is_refused(plan: fm.Plan, start: int) -> None:
    with pytest.raises(ConfigError, match=f"start={start} is not a position of the plan: expected 0 to 20"):
        keys(plan, start=start)


@pytest.mark.parametrize("end", [1, None])
def test_unskipped_positions_as_trace_shows_them_lead_to_the_start(end: int | None) -> None:
    """A loader started at the unskipped position of any entry begins with its sample, without arithmetic."""
    whole = fm.Plan.over(Numbered("n", 40), epochs=end)
    plan = whole.skipping([(0, 2), (5, 6), (10, 20), (38, 40)])
    for entry in ledger.entries(plan, range(25)):
        start = plan.position_of(entry.unskipped)
        assert start == entry.position
        loader = fm.Loader(plan, 3, rank=0, world_size=1, start=start)
        assert next(iter(loader))["__key__"][0] == entry.key
        loader.close()
    assert [plan.position_of(position) for position in (0, 1, 2, 5, 6, 12, 19, 20)] == [0, 0, 0, 3, 3, 7, 7, 7]
    assert whole.position_of(7) == 7
    if end:
        assert plan.position_of(40) == plan.position_of(38) == len(plan) == 25
    for wrong in (-1, 41) if end else (-1,):
        with pytest.raises(NotFound, match=f"no unskipped position {wrong}"):
            plan.position_of(wrong)
