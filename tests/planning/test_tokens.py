"""Weights per token: converted by the exact mean lengths, and what the tokens of a run come to."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from feedmill.errors import ConfigError
from feedmill.planning.nodes import Blend, Concat, EpochizedBlend, Leaf, Repeat, Shuffle, StagedBlend, Subset
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.tokens import Tokens, per_sample
from helpers.number_dataset import Numbered

DATA = [Numbered("a", 70, tokens=10), Numbered("b", 140, tokens=500), Numbered("c", 10)]


def test_means_are_exact_over_an_epoch_of_any_node() -> None:
    mean = Tokens(DATA).mean
    a, b = Leaf(0, 70), Leaf(1, 140)
    assert (mean(a), mean(b)) == (13, 503)
    assert mean(Subset(Subset(b, 10, 100), 1, 3)) == Fraction(500 + 4 + 500 + 5, 2)
    assert mean(Repeat(Shuffle(a, 1), 3)) == 13
    assert mean(Concat([a, Repeat(b, 2)])) == Fraction(13 * 70 + 503 * 280, 350)
    assert mean(Blend([Repeat(a), Repeat(b)], [3, 1])) == Fraction(13 * 3 + 503, 4)
    assert mean(Blend([Repeat(a), Repeat(Leaf(2, 10))], [1, 0])) == 13  # what is never drawn need not be known
    assert mean(EpochizedBlend([a, b], [2, 0.5])) == Fraction(13 * 140 + 503 * 70, 210)
    stages = [(100, [1, 1]), (None, [0, 1])]
    assert mean(StagedBlend([Repeat(a), Repeat(b)], stages)) == 503
    assert mean(StagedBlend([Repeat(a), Repeat(b)], stages, length=200)) == Fraction(13 * 50 + 503 * 150, 200)


def test_sources_without_lengths_or_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the number of tokens per sample is unknown for .*c"):
        Tokens(DATA).mean(Leaf(2, 10))
    nothing = Numbered("empty", 4, tokens=0)
    nothing.lengths[:] = 0
    with pytest.raises(ConfigError, match="empty have no tokens"):
        Tokens([nothing]).mean(Leaf(0, 4))
    assert Tokens(DATA).mean_where_known(Leaf(2, 10)) is None


def test_token_weights_become_sample_weights() -> None:
    assert per_sample([1, 1], lambda i: Fraction([13, 503][i])) == (Fraction(503, 516), Fraction(13, 516))
    assert per_sample([1, 0], lambda i: Fraction([13][i])) == (1, 0)


BOTH = """
shuffle: global
unit: tokens
blend:
- {path: a, weight: 0.25}
- {path: b, weight: 0.75}
"""


def planned(text: str, *data: Numbered) -> Plan:
    by_name = {dataset.url: dataset for dataset in data or DATA}
    return Recipe.parse(text).plan(lambda path, **options: by_name[path.rpartition("/")[2]])


def test_the_token_share_follows_after_any_number_of_samples() -> None:
    plan = planned(BOTH)
    count = 50_000
    located = plan.locate(np.arange(count))
    lengths = np.where(located.source == 0, 10, 500) + located.index % 7
    mean = np.array([13, 503])
    share = per_sample([0.25, 0.75], lambda i: Fraction(int(mean[i])))
    after = np.arange(1, count + 1)
    for i in range(2):
        mine = located.source == i
        tokens = np.cumsum(np.where(mine, lengths, 0))
        # Expected tokens, count times mean, are within one sample of their share; so are real ones where an epoch ends.
        drawn = np.cumsum(mine)
        assert np.abs(drawn - after * float(share[i])).max() < 1
        ends = np.flatnonzero(mine & (drawn % (70, 140)[i] == 0))
        assert np.array_equal(tokens[ends], drawn[ends] * mean[i])
        assert len(ends) > 5
    assert abs(lengths[located.source == 0].sum() / lengths.sum() - 0.25) < 0.001


def test_the_report_shows_realised_tokens() -> None:
    report = planned(BOTH).report(51_600)
    a, b = report.sources
    assert a.tokens == a.drawn * 13 and b.tokens == b.drawn * 503
    assert a.token_share == pytest.approx(0.25, abs=1e-3) and a.token_share + b.token_share == 1
    assert a.as_dict()["tokens"] == a.tokens and "token share" in str(report)
    located = planned(BOTH).locate(np.arange(51_600))
    real = (np.where(located.source == 0, 10, 500) + located.index % 7)[located.source == 0].sum()
    assert abs(real - a.tokens) < 70 * 6


def test_subsets_count_their_own_tokens() -> None:
    text = "{samples: 100, blend: [{path: a, subset: [0, 1]}, {path: b, subset: [0, 7]}]}"
    a, b = planned(text).report().sources
    assert (a.tokens, b.tokens) == (50 * 10, 50 * 503)


def test_stages_in_tokens_and_steps_are_converted() -> None:
    plan = planned(
        "global_batch: 8\nblend: [{path: a}, {path: b}]\nstages:\n"
        "- {tokens: 25800, weights: {a: 1, b: 1}}\n- {steps: 5, weights: {a: 1}}\n- {weights: {b: 1}}\n"
    )
    assert plan.node.stages.starts == [0, 100, 140]
    mixed = planned(
        "unit: tokens\nblend: [{path: a}, {path: b}]\nstages:\n"
        "- {samples: 516, weights: {a: 1, b: 1}}\n- {weights: {b: 1}}\n"
    )
    assert mixed.node.stages.before[1] == [503, 13]


def test_long_fractions_are_shortened_for_people_but_not_in_fingerprints() -> None:
    plan = planned(BOTH, Numbered("a", 70_001, tokens=10), Numbered("b", 99_991, tokens=500))
    assert "blend 0.928" in str(plan)
    assert any("/" in part for part in plan.fingerprints.values())
    assert plan.node.schedule.asked[0].denominator > 10**6


def test_a_nested_recipe_in_another_tools_order_has_the_mean_of_all_its_sources(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text(
        "order: nanoset\nseed: 1\nblend: [{path: a, weight: 3}, {path: b, weight: 1}]\n"
    )
    (tmp_path / "outer.yaml").write_text(
        "unit: tokens\nblend: [{recipe: inner.yaml, name: inner}, {path: a, name: own}]\n"
    )
    sources = {dataset.url: dataset for dataset in DATA}
    plan = Recipe.load(tmp_path / "outer.yaml").plan(lambda path, **_: sources[path.rpartition("/")[2]])
    inner = plan.node.children[0]
    drawn = plan.report(10_000)
    a, b, own = drawn.sources
    # Of 210 samples of an epoch the inner recipe deals 3/4 to a, so it has (3 x 13 + 503) / 4 tokens per sample.
    mean = Tokens(plan.sources).mean(inner)
    assert abs(float(mean) - (3 * 13 + 503) / 4) < 503 / 210
    assert a.asked + b.asked + own.asked == 1 and abs(float(a.asked / b.asked) - 3) < 0.1
    assert abs(float((a.asked + b.asked) * mean / (own.asked * 13)) - 1) < 1e-9
