"""Batches by budget, by brute force: a plain loop cuts and checks, without the product's arithmetic."""

from __future__ import annotations

import logging
import random
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tokens.pbin import write_pbin
from feedmill.loading.encoder import TaskEncoder
from feedmill.loading.loader import Loader
from feedmill.planning import ledger
from feedmill.planning.dealing import cuts
from feedmill.planning.dealing.balancing import greedy
from feedmill.planning.dealing.cuts import BudgetGrid, Cuts
from feedmill.planning.dealing.evenness import spread
from feedmill.planning.dealing.rules import Budget, Dealing
from feedmill.planning.nodes import Blend, Leaf, Repeat, shuffled
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore
from helpers.fakes import FakePlan
from helpers.number_dataset import Numbered


class Costly(Numbered):
    """Each sample has a cost of its own."""

    def __init__(self, name: str, costs: list[int]) -> None:
        super().__init__(name, len(costs))
        self.all = costs

    def _find_costs(self, by: str) -> np.ndarray | None:
        return np.array(self.all, np.int64) if by in ("bytes", "area") else None


def plan_of(costs: list[list[int]], length: int | None = None, seed: int = 3) -> Plan:
    datasets = [Costly(f"s{number}", each) for number, each in enumerate(costs)]
    leaves = [Repeat(shuffled(Leaf(number, len(each)), "global", number)) for number, each in enumerate(costs)]
    node = Blend(leaves, [number + 1 for number in range(len(costs))], length=length)
    return Plan(node, datasets, [each.url for each in datasets], seed)


def cost_at(plan: Any, position: int) -> int:
    """Looked up sample by sample, for the first 20,000 positions at once."""
    if "by_hand" not in plan.__dict__:
        located = plan.locate(np.arange(20000 if plan.length is None else plan.length))
        pairs = zip(located.source.tolist(), located.index.tolist(), strict=True)
        plan.by_hand = [int(plan.sources[source].all[index]) for source, index in pairs]
    return plan.by_hand[position]


def cut_by_hand(plan: Any, start: int, total: int, most: int | None, steps: int) -> list[list[int]]:
    """The positions of each global batch, and of a last one that the plan's end cuts short."""
    batches: list[list[int]] = []
    position = start
    while len(batches) < steps and (plan.length is None or position < plan.length):
        batch: list[int] = []
        spent = 0
        while plan.length is None or position < plan.length:
            cost = cost_at(plan, position)
            if spent + cost > total or len(batch) == most:
                break
            batch.append(position)
            spent += cost
            position += 1
        assert batch
        batches.append(batch)
    return batches


def taken(plan: Plan, ranks: int, budget: dict[str, int], steps: int, state: Any = None, **options: Any) -> Any:
    """What each rank gets in each step, as positions, and the state."""
    loaders = [
        Loader(plan, budget, rank=rank, world_size=ranks, transform=None, collate=list, **options)
        for rank in range(ranks)
    ]
    out: list[list[list[int]]] = []
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
        mine = []
        for step, batch in zip(range(steps), loader, strict=False):
            mine.append([sample.raw("txt").decode() for sample in batch])
            del step
        out.append(mine)
        loader.close()
    states = [loader.state_dict() for loader in loaders]
    assert all(each == states[0] for each in states)
    return out, states[0], loaders


def texts_at(plan: Plan, positions: list[int]) -> list[str]:
    return [sample.raw("txt").decode() for sample in plan.read(np.array(positions, np.int64))]


@pytest.mark.parametrize("number", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 24))])
def test_every_layout_has_the_batches_cut_by_hand(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(number)
    monkeypatch.setattr(cuts, "_BLOCK", dice.choice([1, 3, 64, 1024]))
    costs = [[dice.choice([1, 2, 5, 9, dice.randint(0, 30)]) for _ in range(dice.randint(1, 40))] for _ in range(3)]
    plan = plan_of(costs, dice.choice([None, None, dice.randint(40, 300)]), seed=number)
    total, most = dice.choice([240, 360, 720]), dice.choice([None, 24, 48])
    if all(not cost for source in costs for cost in source):
        costs[0][0] = 1
    by_hand = cut_by_hand(plan, 0, total, most, 16)
    done, state = 0, None
    while done < 12 and done < len(by_hand):
        ranks = dice.choice([1, 2, 3, 4, 6, 8])
        budget = {"bytes": total // ranks} | ({} if most is None else {"max_samples": most // ranks})
        steps = dice.randint(1, 4)
        if any(len(batch) < ranks for batch in by_hand[done : done + steps]):
            continue
        begin = by_hand[done][0]
        parts, state, loaders = taken(plan, ranks, budget, steps, state)
        expected = by_hand[done : done + steps]
        for step, batch in enumerate(expected):
            dealt = [mine[step] for mine in parts]
            assert Counter(chain.from_iterable(dealt)) == Counter(texts_at(plan, batch))
            assert all(1 <= len(part) <= (most or 10**9) // ranks for part in dealt)
            traced = ledger.ranks_of(plan, step, None, ranks, start=begin, dealing=loaders[0].dealing)
            assert [texts_at(plan, each.tolist()) for each in traced] == dealt
            for rank in range(ranks):
                mine = ledger.batch(plan, step, rank=rank, world_size=ranks, start=begin, dealing=loaders[rank].dealing)
                assert mine.positions.tolist() == traced[rank].tolist()
        assert state["position"] == expected[-1][-1] + 1
        done += len(expected)


@pytest.mark.parametrize("remainder", ["drop", "uneven", "ragged"])
def test_the_end_of_a_plan(remainder: str) -> None:
    for length in range(1, 60, 2):
        plan = plan_of([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8]], length)
        by_hand = cut_by_hand(plan, 0, 40, None, 99)
        last = sum(cost_at(plan, position) for position in by_hand[-1])
        short = last < 40
        if remainder == "drop":
            by_hand = by_hand[:-1] if short else by_hand
        elif remainder == "uneven" and short and len(by_hand[-1]) < 4:
            loader = Loader(plan, {"bytes": 10}, rank=0, world_size=4)
            with pytest.raises(ConfigError, match="the last step would have"):
                list(loader)
            assert loader.position == by_hand[-1][0]
            continue
        parts, state, _ = taken(plan, 4, {"bytes": 10}, 99, remainder=remainder)
        for step, batch in enumerate(by_hand):
            dealt = [mine[step] for mine in parts if step < len(mine)]
            assert Counter(chain.from_iterable(dealt)) == Counter(texts_at(plan, batch))
            assert all(dealt) and len(dealt) == min(4, len(batch))
        assert max(map(len, parts)) == len(by_hand)
        assert state["position"] == (by_hand[-1][-1] + 1 if by_hand else 0)


def test_greedy_deals_every_sample_near_the_best_possible() -> None:
    dice = random.Random(5)
    for _ in range(300):
        ranks = dice.randint(1, 9)
        most = dice.choice([None, dice.randint(1, 20)])
        count = dice.randint(ranks, ranks * (most or 20))
        costs = [dice.choice([0, 1, 7, dice.randrange(10**6)]) for _ in range(count)]
        parts = greedy(costs, ranks, most)
        assert sorted(chain.from_iterable(part.tolist() for part in parts)) == list(range(count))
        assert all(1 <= len(part) <= (most or count) for part in parts)
        assert all(mine == sorted(mine, reverse=True) for part in parts for mine in [[costs[n] for n in part]])
        if most is None:
            highest = max(sum(costs[n] for n in part) for part in parts)
            assert highest <= 4 / 3 * max(sum(costs) / ranks, *costs) + max(costs) / 3
    assert [part.tolist() for part in greedy([5], 3)].count([]) == 2
    even = np.random.default_rng(3).lognormal(6.4, 1.0, 2000).astype(int)
    sums = [even[part].sum() for part in greedy(even, 16)]
    assert max(sums) / np.mean(sums) < 1.002


def test_what_ranks_take_of_their_budget_is_reported() -> None:
    dice = np.random.default_rng(1)
    plan = plan_of([np.minimum(dice.lognormal(4, 1, 4000), 3000).astype(int).tolist()])
    budget, total = 4000, []
    loader = Loader(plan, {"bytes": budget, "max_samples": 80}, rank=2, world_size=4)
    for number, _ in zip(range(60), loader, strict=False):
        dealt = ledger.ranks_of(plan, number, None, 4, dealing=loader.dealing)
        total.append(max(sum(cost_at(plan, position) for position in part.tolist()) for part in dealt))
    found = loader.metrics.snapshot()
    assert found["over_budget"] == sum(each > budget for each in total)
    assert found["worst_budget_share"] == pytest.approx(max(total) / budget, abs=1e-4)
    assert 1 <= found["cost_spread"] < 1.05


RECIPE = """
seed: 3
batch: {area: 100, max_samples: 12}
blend:
  - {path: docs, weight: 0.7}
  - {path: code, weight: 0.3}
"""


def planned(text: str) -> Plan:
    costs = {"docs": [1 + n % 20 for n in range(500)], "code": [30 - n % 25 for n in range(100)]}
    return Recipe.parse(text).plan(lambda path, **_: Costly(path.rpartition("/")[2], costs[path.rpartition("/")[2]]))


def test_a_recipe_has_a_budget() -> None:
    plan = planned(RECIPE)
    assert plan.dealing == Dealing("shuffled", None, Budget("area", 100, 12))
    loaders = [Loader(plan, rank=rank, world_size=4, output="samples") for rank in range(4)]
    parts = [next(iter(loader)) for loader in loaders]
    (batch,) = cut_by_hand(plan, 0, 400, 48, 1)
    assert Counter(sample.raw("txt").decode() for part in parts for sample in part) == Counter(texts_at(plan, batch))
    assert "100 area, at most 12 samples" in repr(loaders[0])
    assert len(next(iter(Loader(plan, 5, rank=0, world_size=1, output="samples")))) == 5, "a size in place of it"
    other = Loader(plan, {"area": 50}, rank=0, world_size=4)
    assert other.dealing.budget == Budget("area", 50)
    with pytest.raises(TypeError, match="by budget"):
        len(loaders[0])
    found = spread(plan, 4, None, 2000)
    assert found.budget is not None and found.costs[1].mean < found.costs[0].mean and found.batch_size is None
    assert found.shares[0].least < found.shares[0].realized < found.shares[0].most
    assert plan.skipping([(3, 7)]).dealing == plan.dealing


def test_the_steps_of_a_sample_are_traced() -> None:
    plan = planned(RECIPE)
    batches = cut_by_hand(plan, 17, 300, 36, 60)
    for occurrence in ledger.occurrences(plan, "code", 3, samples=1500, world_size=3, start=17, first_step=5):
        where = [5 + step for step, batch in enumerate(batches) if occurrence.position in batch]
        assert [occurrence.step] == (where if occurrence.position >= 17 else [None])
    with pytest.raises(NotFound, match="there is no step 900"):
        ledger.batch(planned(RECIPE + "samples: 400"), 900, world_size=3)
    with pytest.raises(ConfigError, match="the number of ranks"):
        ledger.batch(plan, 3)


def test_a_packed_plan_has_batches_by_budget(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))
    from helpers.token_dataset import Tokenized

    text = "{seed: 1, source: docs, epochs: 2, pack: {seq_len: 64}, batch: {attention: 9000, linear: 1.5}}"
    plan = Recipe.parse(text).plan(lambda path, **_: Tokenized(path, range(64)))
    assert len(plan) > 20
    spans = plan.spans(np.arange(len(plan)))  # type: ignore[attr-defined]
    costs = []
    for row in range(len(plan)):
        lengths = [int(each) for each in spans.length[spans.row_offsets[row] : spans.row_offsets[row + 1]]]
        costs.append(sum(each * each for each in lengths) + round(1.5 * sum(lengths)))
    assert max(costs) <= 9000
    position = 0
    loaders = [Loader(plan, rank=rank, world_size=2, output="samples") for rank in range(2)]
    for step, batches in enumerate(zip(*loaders, strict=True)):
        end = position
        while end < len(plan) and sum(costs[position : end + 1]) <= 18000:
            end += 1
        rows = sorted(chain.from_iterable(part.tolist() for part in ledger.ranks_of(plan, step, None, 2)))
        assert rows == list(range(position, end)) and sum(map(len, batches)) == end - position
        position = end
    assert position == len(plan)


def test_windows_have_batches_by_budget(tmp_path: Path) -> None:
    lengths = np.random.default_rng(2).integers(1, 30, 60)
    with write_pbin(LocalStore(tmp_path), "0.pbin", 2) as out:
        out.add(np.repeat(np.arange(60), lengths), lengths)  # tokens name their document
    plan = Plan.over(open_dataset(tmp_path, seq_len=20, reuse_last_target=False), seed=2)
    rows = [np.asarray(sample["input_ids"]) for sample in plan.read(range(400))]
    costs = [int((np.unique(row, return_counts=True)[1] ** 2).sum()) for row in rows]
    position = 0
    for _, batch in zip(range(20), Loader(plan, {"attention": 1500}, rank=0, world_size=1), strict=False):
        end = position
        while sum(costs[position : end + 1]) <= 1500:
            end += 1
        assert np.asarray(batch["input_ids"]).tolist() == [row.tolist() for row in rows[position:end]]
        position = end


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "batch_size is missing"),
        ({"batch_size": {}}, "names 0 costs"),
        ({"batch_size": {"bytes": 4, "area": 4}}, "names 2 costs"),
        ({"batch_size": {"bytes": 0}}, "bytes=0 is invalid"),
        ({"batch_size": {"bytes": 1.5}}, "bytes=1.5 is invalid"),
        ({"batch_size": {"bytes": 4, "max_samples": 0}}, "max_samples=0 is invalid"),
        ({"batch_size": {"bytes": 4, "linear": 2}}, "linear=2 is invalid"),
        ({"batch_size": {"bytes": 4}, "remainder": "pad"}, "remainder='pad' is unsupported"),
        ({"batch_size": {"bytes": 4}, "deal": "contiguous"}, "cannot be combined"),
        ({"batch_size": {"bytes": 4}, "balance": "bytes"}, "cannot be combined"),
        ({"batch_size": {"pages": 4}}, "unknown cost 'pages'"),
        ({"batch_size": {"bytes": 2**50}}, "exceed 2"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Loader(plan_of([[1, 2, 3]]), rank=0, world_size=2, **options)
    with pytest.raises(ConfigError, match="no index with the costs"):
        Loader(FakePlan(), {"bytes": 4}, rank=0, world_size=2)


@pytest.mark.parametrize(
    ("costs", "budget", "words"),
    [
        ([1, 50, 1, 1], {"bytes": 40}, "position 1 exceeds the budget: sample 1 of 's0' costs 50 bytes"),
        ([1, 90, 1, 1], {"bytes": 40}, "position 1 exceeds the budget"),
        ([40, 40, 1, 1], {"bytes": 39}, "position 0 exceeds"),
        ([25, 26, 99, 1], {"bytes": 30}, "position 2 exceeds the budget: sample 2 of 's0' costs 99 bytes"),
        ([0, 0], {"bytes": 30}, "more than 1,048,576 samples"),
    ],
)
def test_batches_that_cannot_be(costs: list[int], budget: dict[str, int], words: str) -> None:
    datasets = [Costly("s0", costs)]
    plan = Plan(Repeat(Leaf(0, len(costs))), datasets, ["s0"])
    loader = Loader(plan, budget, rank=0, world_size=3)
    with pytest.raises(ConfigError, match=words):
        list(zip(range(3), loader, strict=False))


def test_samples_without_cost_fill_a_batch_to_its_number() -> None:
    plan = Plan(Repeat(Leaf(0, 2)), [Costly("s0", [0, 0])], ["s0"])
    loader = Loader(plan, {"bytes": 30, "max_samples": 7}, rank=0, world_size=3, output="samples")
    assert [len(batch) for _, batch in zip(range(3), loader, strict=False)] == [7, 7, 7]


def test_an_error_comes_at_its_batch_and_a_plan_without_a_batch_is_a_warning(caplog: Any) -> None:
    plan = Plan(Leaf(0, 40), [Costly("s0", [5] * 30 + [80] + [5] * 9)], ["s0"])
    loader = Loader(plan, {"bytes": 20}, rank=0, world_size=2)
    given = 0
    with (
        caplog.at_level(logging.WARNING, "feedmill"),
        pytest.raises(ConfigError, match="position 30 exceeds"),
    ):
        for _ in loader:
            given += 1
    assert (
        "cost more than the budget of a rank (20 bytes) in 1 of" in caplog.text
        and "sample 30 of 's0' (80 bytes)" in caplog.text
    )
    assert given == 4 and loader.position == 30
    with caplog.at_level(logging.WARNING, "feedmill"):
        assert not list(Loader(plan, {"bytes": 2000}, rank=0, world_size=2, remainder="drop"))
    assert "yields no batch" in caplog.text


def test_packs_and_runs_are_refused() -> None:
    class Packs(TaskEncoder):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return samples

    with pytest.raises(ConfigError, match="unsupported with packs and groups"):
        Loader(plan_of([[1]]), {"bytes": 4}, rank=0, world_size=1, task_encoder=Packs(), buffer=8)
    runs = plan_of([[1] * 8, [1] * 8])
    runs = Plan(Blend(list(runs.node.children), [1, 1], run_length=4), runs.sources, runs.names)
    with pytest.raises(ConfigError, match="hold several sources"):
        Loader(runs, {"bytes": 4}, rank=0, world_size=1)
    with pytest.raises(ConfigError, match="cannot be combined"):
        planned(RECIPE + "homogeneous: 8")
    with pytest.raises(ConfigError, match="names 2 costs"):
        planned(RECIPE.replace("max_samples", "pages"))


def test_walking_from_the_start_is_the_walk_of_the_run() -> None:
    plan = planned(RECIPE)
    grid = BudgetGrid(0, None, Budget("area", 100, 12), 0, 4, "drop")
    ends = Cuts(plan, grid).ends(0, 3000)
    assert ends.tolist() == [batch[-1] + 1 for batch in cut_by_hand(plan, 0, 400, 48, len(ends))]
    assert ends[-2] <= 3000 < ends[-1]
