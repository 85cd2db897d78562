"""From samples to their positions, one by one and together."""

from __future__ import annotations

import numpy as np
import pytest

from feedmill.errors import NotFound
from feedmill.planning import bounds
from feedmill.planning import plan as plans
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.number_dataset import Numbered

SIZES = {"docs": 100, "code": 40}
RECIPE = {"seed": 3, "samples": 1000, "blend": [{"path": "docs", "weight": 0.7}, {"path": "code", "weight": 0.3}]}


def planned(**more: object) -> Plan:
    return Recipe.parse({**RECIPE, **more}).plan(lambda path, **_: Numbered(path, SIZES[path.rpartition("/")[2]]))


@pytest.mark.parametrize("together", [1, 30, 1 << 18])
def test_several_samples_come_where_each_of_them_does(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    monkeypatch.setattr(plans, "_TOGETHER", together)
    plan = planned()
    located = plan.locate(np.arange(1000))
    asked = [3, 17, 0, 39]
    for within in (None, 1000, 313, 0):
        wanted = np.flatnonzero((located.source == 1) & np.isin(located.index, asked))
        assert (
            plan.positions_of("code", asked, within).tolist()
            == wanted[wanted < (1000 if within is None else within)].tolist()
        )
    assert plan.positions_of(0, []).tolist() == []
    with pytest.raises(NotFound, match=r"code: there is no sample 40 \(the source has 40\)"):
        plan.positions_of("code", [3, 40, 41])


def test_a_long_skip_list_walks_the_tree_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    reach = bounds.reach
    monkeypatch.setattr(bounds, "reach", lambda *given: asked.append(given) or reach(*given))
    whole, plan = planned(), planned(skip=[{"source": "docs", "indices": list(range(0, 100, 2)), "since": 100}])
    assert len(asked) == 1
    located = whole.locate(np.arange(1000))
    gone = (located.source == 0) & (located.index % 2 == 0) & (np.arange(1000) >= 100)
    assert plan.locate(np.arange(len(plan))).index.tolist() == located.index[~gone].tolist()


@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE,
        {"source": {"path": "docs"}, "epochs": 2.5, "shuffle": {"kind": "block", "block": 4, "window": 3}},
        {"concat": [{"path": "docs"}, {"path": "code"}], "epochs": 3, "shuffle": "global"},
        {"blend_epochized": [{"path": "docs", "repetitions": 2}, {"path": "code", "repetitions": 1}], "epochs": 2},
        {"source": {"path": "code"}},
    ],
    ids=["blend", "part of an epoch", "concat", "repetitions", "endless"],
)
def test_the_next_use_is_where_the_plan_yields_the_sample_again(recipe: dict[str, object]) -> None:
    plan = Recipe.parse(recipe).plan(lambda path, **_: Numbered(path, SIZES[path.rpartition("/")[2]]))
    count = plan.length or 500
    located = plan.locate(np.arange(count))
    expected = np.full(count, -1)
    seen: dict[tuple[int, int], int] = {}
    for position in reversed(range(count)):
        sample = int(located.source[position]), int(located.index[position])
        expected[position] = seen.get(sample, -1)
        seen[sample] = position
    uses = plan.next_uses(located)
    if plan.length is None:
        assert (uses > np.arange(count)).all()
        uses = np.where(uses < count, uses, -1)
    assert uses.tolist() == expected.tolist() and (uses >= 0).any()
