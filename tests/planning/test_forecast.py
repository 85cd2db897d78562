"""What a plan will take: tokens, bytes, epochs, proofs, and the mixture over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError
from feedmill.planning import bounds
from feedmill.planning.forecast import mixture, needs, samples_for_tokens
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.number_dataset import Numbered


class Tokens(Numbered):
    """Sample `i` has `i` tokens; the files have 10 bytes a sample, an excluded one among them."""

    @property
    def lengths(self) -> Any:
        return np.arange(len(self), dtype=np.int64)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "bytes": 10 * (len(self) + 1), "excluded": 1}


def blended() -> Plan:
    return Plan.over([Tokens("docs", 101), Tokens("code", 41)], [0.75, 0.25], seed=3)


def test_needs_of_a_budget() -> None:
    docs, code = needs(blended(), 4000)
    assert (docs.tokens, docs.drawn_tokens, docs.drawn_bytes, docs.epochs) == (5050, 150_000, 30_000, 30)
    assert (code.tokens, code.drawn_tokens, code.drawn_bytes, code.epochs) == (820, 20_000, 10_000, 25)


def test_the_needs_of_many_sources_are_found_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "blend: [{path: a, max_repeats: 90}, {blend: [{path: b}, {concat: [{path: c}, {path: d}]}]}]"
    plan = Recipe.parse(text).plan(lambda path, **_: Tokens(path, 10 * (1 + ord(path[-1]) - ord("a"))))
    one_by_one = [bounds.reach(plan.node, number, 777) for number in range(4)]
    monkeypatch.setattr(bounds, "reach", None)
    assert [need.epochs for need in needs(plan, 777)] == one_by_one


def test_what_is_not_known_is_none() -> None:
    (docs,) = needs(Plan.over(Numbered("docs", 10)), 100)
    assert (docs.tokens, docs.drawn_tokens, docs.drawn_bytes, docs.epochs) == (None, None, None, 10)
    assert needs(blended(), None)[0].as_dict() == {
        "tokens": 5050, "drawn_tokens": None, "drawn_bytes": None, "epochs": None
    }  # fmt: skip


def test_a_budget_in_tokens() -> None:
    plan = blended()
    samples = samples_for_tokens(plan, 170_000)
    drawn = [sum(need.drawn_tokens or 0 for need in needs(plan, count)) for count in (samples - 1, samples)]
    assert samples == 4000 and drawn[0] < 170_000 <= drawn[1]
    with pytest.raises(ConfigError, match="the index of docs has no lengths"):
        samples_for_tokens(Plan.over(Numbered("docs", 10)), 5)
    with pytest.raises(ConfigError, match="the plan's 10 samples have fewer"):
        samples_for_tokens(Plan.over(Tokens("docs", 10), epochs=1), 46)
    with pytest.raises(ConfigError, match="the plan's 9,223,372,036,854,775,807 samples have fewer"):
        samples_for_tokens(Plan.over(Numbered("docs", 10, tokens=1)), 2**67)


def test_the_mixture_is_counted_in_windows() -> None:
    text = (
        "samples: 1000\nskip: [[0, 100]]\nblend:\n- {path: docs, weight: 3, subset: [0, 50]}\n- {path: code, weight: 1}"
    )
    plan = Recipe.parse(text).plan(lambda path, **_: Tokens(path, 100))
    found = mixture(plan, 900, windows=9)
    located = plan.locate(np.arange(900))
    for window in range(9):
        counts = np.bincount(located.source[window * 100 : window * 100 + 100], minlength=2)
        assert np.allclose(found.shares[window], counts / 100)
    assert plan.drawn(900) == [source.drawn for source in plan.report(900).sources] == [675, 225]
    assert found.ends.tolist() == list(range(100, 1000, 100))
    assert np.allclose(found.epochs[-1], [675 / 50, 225 / 100])
    with pytest.raises(ConfigError, match="0 samples"):
        mixture(plan, 0)


def test_max_repeats_is_proven_for_the_budget() -> None:
    text = "samples: 1000\nblend:\n- {path: docs, weight: 3, max_repeats: 8}\n- {path: code, weight: 1}"
    plan = Recipe.parse(text).plan(lambda path, **_: Tokens(path, 100))
    assert [limit[:4] for limit in bounds.limits(plan.node, 1000)] == [("docs", 8, 100, 750)]
    assert [limit[:4] for limit in bounds.limits(plan.node, 100)] == [("docs", 8, 100, 75)]


def test_tokens_are_those_of_the_part_that_is_used() -> None:
    plan = Recipe.parse("epochs: 2\nsource: {path: docs, subset: [0, 51]}").plan(lambda path, **_: Tokens(path, 101))
    (docs,) = needs(plan, None)
    assert docs.tokens == 5050 and docs.drawn_tokens == plan.report().sources[0].tokens == 2 * 51 * 25
    assert samples_for_tokens(plan, 51 * 25) == 51
