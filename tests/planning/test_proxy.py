"""Proxies: what a small run draws of each source, beside a model that counts every position of both runs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.loading.loader import Loader
from feedmill.planning.nodes import Leaf, Subsample, Subset
from feedmill.planning.overview import plan as overview
from feedmill.planning.permutation import derive
from feedmill.planning.plan import Plan, split_by_source
from feedmill.planning.proxy import subsamples
from feedmill.planning.recipes.recipe import Recipe
from feedmill.tracing.trace import trace
from helpers.durations import examples
from helpers.number_dataset import Growing, Numbered
from helpers.token_dataset import Tokenized


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_larger_subsample_contains_a_smaller_one(samples: int, key: int, data: st.DataObject) -> None:
    sizes = sorted(data.draw(st.lists(st.integers(1, samples), min_size=2, max_size=4)))
    found = [Subsample(Leaf(0, samples), key, size).numbers for size in sizes]
    for size, numbers in zip(sizes, found, strict=True):
        assert len(numbers) == size and (np.diff(numbers) > 0).all() and 0 <= numbers[0] <= numbers[-1] < samples
    for smaller, larger in pairwise(found):
        assert np.isin(smaller, larger).all()
    assert np.array_equal(Subsample(Leaf(0, samples), key, samples).numbers, np.arange(samples))


def test_each_sample_is_drawn_as_often_as_others() -> None:
    counts = np.zeros(20)
    for key in range(1000):
        counts[Subsample(Leaf(0, 20), derive(key, "proxy"), 5).numbers] += 1
    assert abs(counts - 250).max() < 5 * (250 * 0.75) ** 0.5


def test_impossible_subsamples_are_refused() -> None:
    for size in (0, 11):
        with pytest.raises(ConfigError, match=f"a subsample of {size} from 10 samples is impossible"):
            Subsample(Leaf(0, 10), 1, size)


def opener(data: Mapping[str, Any]) -> Callable[..., Any]:
    return lambda path, **_: data[path.rpartition("/")[2]]


class Even(Growing):
    """Samples of the same length, so that blends have short periods."""

    @property
    def lengths(self) -> np.ndarray:
        assert self._tokens is not None
        return np.full(len(self), self._tokens[0])


class Drawn:
    """Random recipes over numbered sources."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.data: dict[str, Numbered] = {}
        self.recipe: dict[str, Any] = {"seed": seed, **self._shuffle()}
        kind = self.random.choice(["blend", "blend", "staged", "ramps", "epochized", "concat", "nested", "source"])
        self.simple = kind in ("blend", "source")
        getattr(self, f"_{kind}")()

    def _shuffle(self) -> dict[str, Any]:
        kinds = ["none", "global", {"kind": "block", "block": 4, "window": 3}, {"kind": "shards", "parallel": 3}]
        return {"shuffle": self.random.choice(kinds)}

    def _member(self, **more: Any) -> dict[str, Any]:
        name, size = f"s{len(self.data)}", self.random.choice([1, 3, 40, 100, 333, 1000])
        self.data[name] = Even(name, size, tokens=self.random.choice([1, 2, 3, 5, 8, 12]))
        cut = {"subset": ["25%", "end"]} if size > 3 and self.random.random() < 0.3 else {}
        return {"path": name, "name": name, **cut, **more}

    def _weighted(self, count: int) -> list[dict[str, Any]]:
        return [self._member(weight=self.random.choice([1, 2, 0.3, 7, "1/3"])) for _ in range(count)]

    def _unit(self) -> dict[str, Any]:
        return {"unit": self.random.choice(["samples", "tokens"])}

    def _end(self) -> dict[str, Any]:
        return {"samples": self.random.randint(500, 5000)}

    def _blend(self) -> None:
        self.recipe |= {"blend": self._weighted(self.random.randint(1, 4)), **self._unit(), **self._end()}

    def _source(self) -> None:
        self.recipe |= {"source": self._member(), "epochs": self.random.choice([1, 2.5, 4])}

    def _stages(self, names: list[str], ramp: bool) -> list[dict[str, Any]]:
        stages: list[dict[str, Any]] = []
        for number in range(self.random.randint(2, 4)):
            weights = {name: self.random.randint(0, 5) for name in names}
            weights[self.random.choice(names)] = 3
            length = {self.random.choice(["samples", "steps"]): self.random.randint(40, 300)}
            kind = {"ramp": self.random.choice(["linear", "cosine"])} if ramp and number else {}
            stages.append({"weights": weights, **length, **kind})
        stages[0]["weights"] = dict.fromkeys(names, 1)
        return stages

    def _staged(self, ramp: bool = False) -> None:
        members = [self._member() for _ in range(3)]
        stages = self._stages([member["name"] for member in members], ramp)
        self.recipe |= {"global_batch": 4, "blend": members, "stages": stages, **self._unit()}

    def _ramps(self) -> None:
        self._staged(ramp=True)

    def _epochized(self) -> None:
        members = [self._member(repetitions=self.random.choice([1, 2, 1.5])) for _ in range(3)]
        self.recipe |= {"blend_epochized": members, "epochs": 2}

    def _concat(self) -> None:
        self.recipe |= {"concat": [self._member(), self._member(epochs=2)], "epochs": 2}

    def _nested(self) -> None:
        inner = {"concat": [self._member(), self._member()], "weight": 2, "name": "inner"}
        mix = {"blend": self._weighted(2), "weight": 1, "name": "mix", **self._unit()}
        self.recipe |= {"blend": [inner, mix, self._member(weight=1)], **self._end()}

    def plan(self, **more: Any) -> Plan:
        return Recipe.parse({**self.recipe, **more}).plan(opener(self.data))


def counted(plan: Plan, total: int) -> list[dict[int, int]]:
    """How often each sample of each source is drawn, position by position."""
    located = plan.locate(np.arange(total))
    out: list[dict[int, int]] = [{} for _ in plan.sources]
    for source, index in zip(located.source.tolist(), located.index.tolist(), strict=True):
        out[source][index] = out[source].get(index, 0) + 1
    return out


def used(plan: Plan, drawn: Drawn, number: int) -> int:
    """The samples of a source's subset, by the recipe."""
    size = len(plan.sources[number])
    whole = json.dumps(drawn.recipe)
    cut = f'"name": "{plan.names[number].rpartition("/")[2]}", "subset"' in whole
    return size - size // 4 if cut else size


@pytest.mark.parametrize("seed", range(60))
def test_sources_repeat_in_a_proxy_as_often_as_in_the_run_it_stands_for(seed: int) -> None:
    drawn = Drawn(seed)
    target = drawn.plan()
    whole = target.length
    assert whole is not None
    factor = Fraction(1, drawn.random.choice([2, 3, 7, 10]))
    proxy = drawn.plan(proxy={"samples": max(1, floor(whole * factor)), "of": whole})
    size = Fraction(max(1, floor(whole * factor)), whole)
    assert proxy.proxy is not None and proxy.proxy.factor == size
    length = proxy.length
    assert length is not None and abs(length - whole * size) <= 2 + len(target.sources) * (whole // max(1, length) + 1)

    seen, all_of_it = counted(proxy, length), counted(target, min(whole, round(length / size)))
    report = proxy.report()
    apart = {}
    for number, source in enumerate(report.sources):
        samples = used(target, drawn, number)
        share = ceil(samples * size)
        assert source.used == share and len(seen[number]) <= share
        assert set(seen[number]) <= set(np.arange(len(target.sources[number])).tolist())
        own, target_draws = sum(seen[number].values()), sum(all_of_it[number].values())
        if source.exact:
            assert source.drawn == own
        if drawn.simple:  # every sample of the subset comes once before one comes again
            assert max(seen[number].values(), default=0) - min(seen[number].values(), default=0) <= 1
            assert len(seen[number]) == min(share, own)
            # Each run is within one sample of its exact share, and the proxy's length is rounded to a sample.
            assert abs(own - target_draws * size) <= 2 + size
        near = {"rel": 1e-12} if drawn.simple else {"rel": 0.1, "abs": 3 / samples}
        assert source.target_repeats == pytest.approx(target_draws / samples, **near)
        assert source.repeats == source.drawn / share
        if source.target_repeats:
            apart[source.name] = abs(source.repeats / source.target_repeats - 1)
    assert report.proxy is not None
    if apart:
        assert report.proxy.largest is not None and apart[report.proxy.largest.source] == max(apart.values())
        assert abs(report.proxy.largest.difference) == max(apart.values())
    rounded = {each.name: (each.used, each.exact) for each in report.proxy.rounded}
    for number, name in enumerate(target.names):
        exact = used(target, drawn, number) * size
        assert (name in rounded) == (ceil(exact) > exact * Fraction(101, 100))
        assert name not in rounded or rounded[name] == (ceil(exact), float(exact))


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_larger_proxies_contain_smaller_ones_whatever_else_the_recipe_says(seed: int) -> None:
    drawn = Drawn(seed)
    whole = drawn.plan().length
    assert whole is not None
    small, large = ({"samples": max(1, whole * part // 12), "of": whole} for part in (1, 5))
    other = {"shuffle": "global"} if drawn.recipe["shuffle"] != "global" else {"shuffle": "none"}

    def numbers(plan: Plan) -> dict[str, set[int]]:
        parts = plan.proxy is not None and plan.report().sources
        assert parts
        found = {plan.names[node.leaves[0]]: node for node in subsamples(plan.node)}
        return {
            source.name: set(
                node.child.locate(node.numbers).index.tolist()
                if (node := found.get(source.name))
                else range(source.used)
            )
            for source in parts
        }

    in_small, in_large = numbers(drawn.plan(proxy=small)), numbers(drawn.plan(proxy=large))
    assert all(in_small[name] <= in_large[name] for name in in_small)
    assert numbers(drawn.plan(proxy=small, **other)) == in_small
    if "blend" in drawn.recipe and "stages" not in drawn.recipe:
        weighted = [{**member, "weight": 1} for member in drawn.recipe["blend"]]
        assert numbers(drawn.plan(proxy=small, blend=weighted)) == in_small


@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_a_proxy_of_full_size_is_the_run_itself(seed: int) -> None:
    drawn = Drawn(seed)
    target = drawn.plan()
    same = drawn.plan(proxy={"samples": target.length, "of": target.length})
    assert (same.fingerprint, same.length) == (target.fingerprint, target.length)
    report = same.report()
    assert report.proxy is not None and report.proxy.rounded == ()
    assert [source.target_repeats for source in report.sources] == [source.repeats for source in report.sources]


DATA = {
    "docs": Numbered("docs", 20_000, tokens=100),
    "code": Numbered("code", 4000, tokens=400),
    "rare": Numbered("rare", 30, tokens=50),
    "text": Numbered("text", 100),
}
BLEND = """
unit: tokens
blend:
- {path: docs, weight: 0.6, name: docs}
- {path: code, weight: 0.4, name: code}
- {path: rare, weight: 0.001, name: rare}
"""


def planned(text: str, proxy: Any = None, data: Mapping[str, Any] = DATA) -> Plan:
    return Recipe.parse(text).plan(opener(data), proxy=proxy)


def test_an_endless_recipe_ends_where_the_proxy_says() -> None:
    plan = planned(BLEND, "100k/20M")
    report = plan.report()
    docs, code, rare = report.sources
    assert (docs.used, code.used, rare.used) == (100, 20, 1)
    assert 99_000 < sum(source.tokens or 0 for source in report.sources) <= 100_000
    assert docs.target_repeats == pytest.approx(20e6 * 0.6 / 103 / 20_000, rel=0.01)
    for source in (docs, code):
        assert source.repeats == pytest.approx(source.target_repeats, rel=0.01)
    assert report.proxy is not None and [each.name for each in report.proxy.rounded] == ["rare"]
    assert report.proxy.largest is not None and report.proxy.largest.source == "rare"
    assert report.proxy.largest_of_others is not None and abs(report.proxy.largest_of_others.difference) < 0.01
    shown = str(report)
    assert "proxy of 100,000 of 20,000,000 tokens: repeats differ from those of the target by at most" in shown
    assert "in the target" in shown and "rare is drawn from 1 sample instead of 0.15" in shown
    assert str(plan).startswith(f"plan, {plan.length:,} samples, seed 0, proxy of 100,000 of 20,000,000 tokens")
    assert planned(BLEND + "proxy: 100k/20M").fingerprint == plan.fingerprint
    assert planned(BLEND + "proxy: {tokens: 100k, of: 20M}").fingerprint == plan.fingerprint
    half = plan.report((plan.length or 0) // 2)
    assert half.sources[0].target_repeats == pytest.approx((docs.target_repeats or 0) / 2, rel=0.01)
    single = planned("source: docs", {"samples": 150, "of": 30_000})
    assert single.length == 150 and single.report().sources[0].repeats == 1.5
    assert json.loads(json.dumps(report.as_dict()))["proxy"]["of"] == 20_000_000


def test_cutting_a_blend_is_giving_it_an_end() -> None:
    names = [f"s{number}" for number in range(60)]
    data = {name: Numbered(name, 1000 + 7 * number, tokens=100 + number) for number, name in enumerate(names)}
    members = [{"path": name, "name": name, "weight": 1 + number % 5} for number, name in enumerate(names)]
    recipe = {"unit": "tokens", "blend": members, "proxy": {"samples": 2000, "of": 8000}}
    plan = Recipe.parse(recipe).plan(opener(data))  # whose weights per sample are fractions of a hundred digits
    given = Recipe.parse({**recipe, "samples": 8000}).plan(opener(data))
    assert plan.length == given.length == 2000 and plan.fingerprint == given.fingerprint
    assert all(np.array_equal(a, b) for a, b in zip(located(plan), located(given), strict=True))
    capped = "blend: [{path: docs}, {path: code}]\nstages: [{weights: {docs: 1, code: 1}, max_repeats: 2}]"
    assert planned(capped, {"samples": 300, "of": 9000}).length == 300
    with pytest.raises(ConfigError, match="repeated too often"):
        planned(capped, {"samples": 3000, "of": 30_000})


def located(plan: Plan) -> list[np.ndarray]:
    found = plan.locate(np.arange(plan.length or 0))
    return [found.source, found.index, found.epoch]


def test_the_length_of_the_target_is_by_default_that_of_the_recipe() -> None:
    plan = planned("samples: 40k\nsource: docs", {"samples": 400})
    assert plan.length == 400 and plan.report().sources[0].used == 200
    assert plan.report().sources[0].repeats == plan.report().sources[0].target_repeats == 2
    by_tokens = planned("epochs: 2\nsource: docs", "41.2k")  # of 4,120,000 tokens
    assert by_tokens.proxy is not None and round(1 / by_tokens.proxy.factor) == 100
    assert by_tokens.length == 2 * ceil(20_000 * by_tokens.proxy.factor)


def test_other_lengths_of_a_recipe_follow_the_proxy() -> None:
    staged = "global_batch: 10\nblend: [{path: docs}, {path: code}]\nstages:\n"
    staged += "- {samples: 1005, weights: {docs: 1}}\n- {steps: 100, ramp: linear, weights: {code: 1}}\n"
    staged += "- {tokens: 806k, weights: {code: 1}}"
    plan = planned(staged, {"samples": 400, "of": 4005})
    assert plan.node.stages.starts == [0, 100, 200, 400] and plan.length == 400
    documents = {"a": Tokenized("a", [10, 20, 30] * 100), "b": Tokenized("b", [40, 5] * 100)}
    text = "blend: [{path: a, name: a}, {path: b, name: b}]\npack: {seq_len: 64, method: concat, rows: 900}"
    packed = planned(text, "6400/64k", documents)
    report = packed.report()
    assert packed.length == 90
    for source in report.sources:
        assert source.repeats == pytest.approx(source.target_repeats, rel=0.02) and source.repeats > 0.5
    assert "packed plan, 90 rows of 64 tokens, seed 0, proxy of 6,400 of 64,000 tokens" in str(packed)
    runs = planned("samples: 8000\nhomogeneous: 8\nblend: [{path: docs}, {path: code}]", {"samples": 800})
    assert runs.length == 800 and len(set(runs.locate(np.arange(8)).source.tolist())) == 1
    fields = {name: Bucketed(name, 400) for name in "ab"}
    text = "samples: 8000\nhomogeneous: {samples: 4, by: bucket}\nblend: [{path: a, name: a}, {path: b, name: b}]"
    by_value = planned(text, {"samples": 800}, fields)
    assert (
        by_value.length == 800 and [source.used for source in by_value.report().sources] == [14] * 6
    )  # of 134 and 133
    assert all(abs(source.repeats_apart or 0) < 0.08 for source in by_value.report().sources)


class Bucketed(Numbered):
    """Numbered samples in three buckets."""

    cost_fields = ("bucket",)

    def _find_costs(self, by: str) -> np.ndarray | None:
        return np.arange(len(self)) % 3 if by == "bucket" else None


def test_max_repeats_holds_in_a_proxy_if_it_does_in_the_target() -> None:
    text = "samples: 12_000\nblend: [{path: code, weight: 1, max_repeats: 1, name: code}, {path: docs, weight: 2}]"
    for size in (3, 7, 11, 1000, 3333, 12_000):
        assert planned(text, {"samples": size}).length == size
    with pytest.raises(ConfigError, match="repeated too often"):
        planned(text.replace("samples: 12_000\n", ""), {"samples": 1300, "of": 13_000})


def test_nested_recipes_are_scaled_and_have_no_proxy_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text("samples: 1000\nblend: [{path: docs, name: d}, {path: code, name: c}]\n")
    (tmp_path / "outer.yaml").write_text("epochs: 4\nsource: {recipe: inner.yaml, name: inner}\n")
    plan = Recipe.load(tmp_path / "outer.yaml").plan(opener(DATA), proxy={"samples": 400})
    assert plan.length == 400 and [source.used for source in plan.report().sources] == [2000, 400]
    (tmp_path / "inner.yaml").write_text("proxy: 1/10\nsource: docs\n")
    with pytest.raises(ConfigError, match=r"inner.yaml:1: a nested recipe cannot have 'proxy'"):
        Recipe.load(tmp_path / "outer.yaml").plan(opener(DATA))


@pytest.mark.parametrize(
    ("proxy", "more", "message"),
    [
        ("1M", "", r"recipe:7: the proxy lacks 'of', .* the recipe never ends. Write it as \{tokens: 1000000, of"),
        ("2B/1B", "", r"recipe:7: proxy: a proxy of 2,000,000,000 tokens is larger than the run of 1,000,000,000"),
        ("{samples: 9}", "samples: 8", "a proxy of 9 samples is larger than the recipe's own run of 8"),
        ("1M/", "", "proxy.of: input should be a valid integer"),
        ("many", "", "proxy.tokens: input should be a valid integer"),
        ("{samples: 1, tokens: 2}", "", "give exactly one of 'tokens' or 'samples'"),
        ("{of: 3}", "", "give exactly one of 'tokens' or 'samples'"),
        ("{tokens: 3, size: 3}", "", "unknown key 'size'"),
        ("{tokens: 5, of: 1000}", "", "a proxy of 5 tokens has less than one sample"),
        ("1M/2M", "samples: 100", r"recipe:7: the recipe ends after about .* and the proxy is of a run of 2,000,000"),
        ("2/100", "samples: 1000", r"0\.02 of it is a proxy of [\d,]+ tokens"),
        ("1M/2M", "pack: {seq_len: 8, rows: 100}\nsamples: 100\norder: nanoset\nseed: 1", "cannot be combined"),
    ],
)
def test_impossible_proxies_are_refused_with_their_line(proxy: str, more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        planned(f"{BLEND}proxy: {proxy}\n{more}")
    assert "recipe" in str(error.value)


def test_unknown_tokens_and_orders_of_other_tools_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"recipe:1: the number of tokens per sample is unknown for text"):
        planned("proxy: 1k/2k\nblend: [{path: text}, {path: docs}]")
    with pytest.raises(ConfigError, match="'order' cannot be combined with 'proxy'"):
        planned("order: nanoset\nseed: 1\nproxy: 1k/2k\nblend: [{path: docs, weight: 1}, {path: code, weight: 1}]")
    with pytest.raises(ConfigError, match="stage 2 has less than one sample in the proxy"):
        planned(
            "blend: [{path: docs}]\nstages: [{samples: 1000, weights: {docs: 1}}, {samples: 9, weights: {docs: 1}}, "
            "{samples: 900, weights: {docs: 1}}]",
            {"samples": 10},
        )
    with pytest.raises(ConfigError, match=r"the proxy lacks 'of'.* ends after a number of rows"):
        planned("source: docs\npack: {seq_len: 64, rows: 10}", "1k", {"docs": Tokenized("docs", [9] * 50)})
    with pytest.raises(ConfigError, match="'groups' and 'proxy' cannot be combined"):
        planned("blend: [{path: docs, groups: n}]", {"samples": 10, "of": 100})
    with pytest.raises(ConfigError, match="a plan has no proxy"):
        overview(planned(BLEND), proxy="1M/2M")


def test_a_run_of_a_proxy_resumes_and_is_traced_as_one() -> None:
    plan = planned(BLEND, "100k/20M")
    loader = Loader(plan, 4, rank=0, world_size=2, output="samples")
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [[sample.key for sample in batch] for batch in batches]
    again = Loader(planned(BLEND + "proxy: 100k/20M"), 4, rank=0, world_size=2, output="samples")
    again.load_state_dict(state)
    assert [[sample.key for sample in batch] for batch in again] == rest
    larger = Loader(planned(BLEND, "200k/20M"), 4, rank=0, world_size=2, output="samples")
    with pytest.raises(ConfigError, match="subsample of"):
        larger.load_state_dict(state)
    report = trace(plan, step=0, global_batch=8)
    assert report.as_dict()["proxy"] == "proxy of 100,000 of 20,000,000 tokens"
    assert trace(planned(BLEND), step=0, global_batch=8).as_dict()["proxy"] is None
    facts = overview(plan).as_dict()
    assert facts["proxy"]["largest"]["source"] == "rare" and facts["sources"][0]["target_repeats"] is not None


def test_parts_of_a_subset_are_drawn() -> None:
    node = Subsample(Subset(Leaf(0, 100), 40, 60), 7, 5)
    located = node.locate(np.arange(5))
    assert ((located.index >= 40) & (located.index < 60)).all() and (np.diff(located.index) > 0).all()
    plan = planned("epochs: 1\nshuffle: none\nconcat: [{path: docs, name: d}, {path: code, name: c}]", {"samples": 240})
    assert [end for _, end in split_by_source(plan)] == [0, 1]
