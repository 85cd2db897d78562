"""Weights per token: converted by the exact mean lengths, and what the tokens of a run come to."""

import json
import random
from fractions import Fraction
from math import lcm
from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.planning.nodes import Blend, Concat, EpochizedBlend, Leaf, Repeat, Shuffle, StagedBlend, Subset
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.resuming.outline import Outline, outline_text, read_outline
from feedmill.planning.tokens import Tokens, per_sample
from helpers.counted import counted
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
    assert abs(float(a.asked * 503 / (b.asked * 13)) - 3) < 0.1
    assert a.asked + b.asked == own.asked == Fraction(1, 2)


def test_a_state_keeps_the_weights_of_many_sources() -> None:
    data = {f"s{number}": Numbered(f"s{number}", 1000 + number, tokens=100 + number) for number in range(60)}
    blend = [{"path": name, "name": name, "weight": 1 + len(data) % 7} for name in data]
    plan = Recipe.parse({"unit": "tokens", "blend": blend}).plan(lambda path, **_: data[path.rpartition("/")[2]])
    assert len(str(plan.node.schedule.asked[0])) > 80
    outline = read_outline(json.loads(json.dumps(outline_text(plan))))
    assert outline.parts() == Outline.of(plan).parts()


class Counted(Numbered):
    """Samples with any number of tokens in all."""

    def total(self, by: str, start: int = 0, stop: int | None = None) -> int | None:
        assert self._tokens is not None
        return (len(self) if stop is None else stop) * int(self._tokens[0]) - start * int(self._tokens[0]) + start % 7


@pytest.mark.parametrize("staged", [False, True])
def test_hundreds_of_different_means_fit_into_a_state_and_shares_are_those_of_tokens(staged: bool) -> None:
    """As exact fractions, those of a thousand have more digits than Python writes."""
    draw = random.Random(1)
    data = {f"s{n}": Counted(f"s{n}", draw.randint(100, 999), tokens=draw.getrandbits(40) | 1) for n in range(150)}
    weights = {name: 1 + number % 7 for number, name in enumerate(data)}
    blend = [{"path": name, "name": name, **({} if staged else {"weight": weights[name]})} for name in data]
    stages = {"stages": [{"samples": 1000, "weights": weights}, {"weights": weights}]} if staged else {}
    plan = Recipe.parse({"unit": "tokens", "blend": blend, **stages}).plan(
        lambda path, **_: data[path.rpartition("/")[2]]
    )
    outline = read_outline(json.loads(text := json.dumps(outline_text(plan))))
    assert outline.parts() == Outline.of(plan).parts() and len(text) < 100_000
    report = plan.report(1000)
    shares = report.stages[0].asked if staged else [source.asked for source in report.sources]
    assert [float(share) for share in shares] == pytest.approx([w / sum(weights.values()) for w in weights.values()])
    assert report.unit == "tokens" and "asked and realized are shares of tokens" in str(report)


def masked(folder: Path, name: str, lengths: list[int], share: float | None, seed: int) -> list[np.ndarray]:
    """Write documents, of which the mask selects a share of the tokens; return the mask of each."""
    numbers = np.random.default_rng(seed)
    mask = numbers.random(sum(lengths)) < (1 if share is None else share)
    with write_pbin(fm.open_store(folder), f"{name}.pbin", 2, loss=share is not None) as out:
        out.add(numbers.integers(0, 99, sum(lengths)), np.array(lengths), None if share is None else mask)
    return np.split(mask, np.cumsum(lengths)[:-1])


def deviation(counts: list[int]) -> Fraction:
    """How far the sum of some of the counts can be from as many times their mean."""
    mean, worst = Fraction(sum(counts), len(counts)), Fraction(0)
    for order in (sorted(counts), sorted(counts, reverse=True)):
        for k in range(len(counts)):
            worst = max(worst, abs(sum(order[:k]) - k * mean))
    return worst


@pytest.mark.parametrize("seed", range(12))
def test_realised_shares_of_loss_tokens_in_rows_are_within_the_bound(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 4)
    names = [f"s{number}" for number in range(count)]
    masks, used, members = {}, {}, []
    for number, name in enumerate(names):
        lengths = [draw.randint(5, 40), *(draw.randint(1, 40) for _ in range(draw.randint(2, 30)))]
        masks[name] = masked(tmp_path, name, lengths, draw.choice([None, 0.3, 0.6, 0.9]), seed * 10 + number)
        first, stop = draw.choice([(0, len(lengths)), (1, len(lengths)), (0, 2)])
        used[name] = [int(mask.sum()) for mask in masks[name][first:stop]]
        members.append({"path": f"{name}.pbin", "name": name, "subset": [first, stop], "weight": draw.randint(1, 9)})
    pack = {"seq_len": draw.choice([16, 64]), "method": draw.choice(["concat", "best_fit"])}
    recipe = {"unit": "loss_tokens", "samples": 700, "seed": seed, "blend": members, "pack": pack}
    plan = fm.Recipe.parse(recipe, base=tmp_path).plan()

    rows = plan.length if pack["method"] == "best_fit" else draw.randint(20, plan.length)
    found, documents = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    spans = plan.locate_spans(np.arange(rows))
    columns = (spans.located.source, spans.located.index, spans.spans.start, spans.spans.length)
    for source, index, start, length in zip(*(column.tolist() for column in columns), strict=True):
        name = plan.names[source]
        documents[name] += start == 0
        found[name] += int(masks[name][index][start : start + length].sum())
    report = plan.report(rows)
    read = sum(int(row["loss_mask"].sum()) if "loss_mask" in row else row["tokens"] for row in plan.read(range(rows)))
    assert read == sum(found.values())

    weights = [Fraction(member["weight"]) for member in members]
    asked = dict(zip(names, [weight / sum(weights) for weight in weights], strict=True))
    mean = {name: Fraction(sum(own), len(own)) for name, own in used.items()}
    # A blend is within one document of its share, a pass within its deviation, and rows end within one document.
    own = {name: mean[name] + deviation(used[name]) + max(used[name]) for name in names}
    for source in report.sources:
        name = source.name
        assert source.asked == source.realized == asked[name]
        assert abs(found[name] - asked[name] * read) <= own[name] + asked[name] * sum(own.values())
        assert abs(source.loss_tokens - found[name]) <= 2 * own[name] + 1
        assert source.loss_share == pytest.approx(source.loss_tokens / sum(one.loss_tokens for one in report.sources))


def test_shares_of_loss_tokens_are_exact_at_the_end_of_passes(tmp_path: Path) -> None:
    a = masked(tmp_path, "a", [3, 9, 14, 2], 0.5, 1)
    b = masked(tmp_path, "b", [5, 6, 7], None, 2)
    totals = [sum(int(mask.sum()) for mask in masks) for masks in (a, b)]
    parts = "blend: [{path: a.pbin, name: a, weight: 3}, {path: b.pbin, name: b, weight: 2}]"
    plan = fm.Recipe.parse(f"unit: loss_tokens\n{parts}", base=tmp_path).plan()
    per_sample = [Fraction(3, 5) / Fraction(totals[0], 4), Fraction(2, 5) / Fraction(totals[1], 3)]
    period = lcm(*(share.denominator for share in (each / sum(per_sample) for each in per_sample))) * 12
    report = plan.report(period)
    assert [source.loss_share for source in report.sources] == [0.6, 0.4]
    assert report.as_dict()["sources"][0]["loss_tokens"] == report.sources[0].drawn * totals[0] / 4
    assert "loss share" in str(report) and "loss share" not in str(planned(BOTH).report(100))
    assert Tokens(plan.sources, "loss_tokens").mean(Leaf(0, 4)) == Fraction(totals[0], 4)
    staged = f"unit: loss_tokens\n{parts.replace(', weight: 3', '').replace(', weight: 2', '')}\n"
    staged += "stages: [{tokens: 700, weights: {a: 1, b: 1}}, {weights: {a: 1}}]"
    first = fm.Recipe.parse(staged, base=tmp_path).plan().node.stages
    halves = [Fraction(4, totals[0]), Fraction(3, totals[1])]
    shares = [half / sum(halves) for half in halves]
    assert list(first.weights[0]) == shares
    assert first.samples[0] == round(700 / (shares[0] * 7 + shares[1] * 6))  # a stage's tokens are all tokens


def test_loss_tokens_that_are_unknown_are_refused(tmp_path: Path) -> None:
    masked(tmp_path, "a", [3, 9], 0.5, 1)
    nothing = masked(tmp_path, "none", [3, 9], 0.0, 1)
    assert not np.concatenate(nothing).any()
    text = "unit: loss_tokens\nblend: [{path: a.pbin}, {path: %s}]"
    with pytest.raises(ConfigError, match=r"recipe:2.*none.pbin have no tokens in the loss: their masks exclude all"):
        fm.Recipe.parse(text % "none.pbin", base=tmp_path).plan()
    sources = {"a.pbin": fm.open(tmp_path / "a.pbin"), "c": counted("c", [4, 5]), "t": Numbered("t", 4)}
    for name in ("c", "t"):
        with pytest.raises(ConfigError, match="contribute to the loss is unknown for") as error:
            fm.Recipe.parse(text % name).plan(lambda path, **_: sources[path.rpartition("/")[2]])
        assert "recipe:2" in str(error.value) and "numeric field 'loss_tokens'" in str(error.value)
    masks = text % "a.pbin, name: b" + "\npack: {seq_len: 8}\ntargets: {mask: {begin: 1, end: 2}}"
    with pytest.raises(ConfigError, match=r"recipe:4.*counts stored masks") as error:
        fm.Recipe.parse(masks, base=tmp_path).plan()
    assert "--learn-between" in str(error.value)
