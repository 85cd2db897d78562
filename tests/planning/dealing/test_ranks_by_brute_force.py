"""Random recipes, layouts, deals and balances against what a single rank sees, without the product's arithmetic.

A run hops between layouts. At each step the samples of all ranks must be the next global batch of the plan as one rank
sees it, every rank's part must be what the promises of docs/balancing.md say, and a state of any rank must continue
anywhere.
"""

from __future__ import annotations

import itertools
import json
import random
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.loading.loader import Loader
from feedmill.planning import ledger
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from helpers.token_dataset import Tokenized

SHUFFLES: list[Any] = ["none", "global", {"kind": "block", "block": 4, "window": 3}]


def sources_of(dice: random.Random) -> dict[str, Tokenized]:
    out = {}
    for number in range(dice.randint(1, 6)):
        lengths = [max(1, int(dice.lognormvariate(3, 1.2))) for _ in range(dice.randint(1, 60))]
        out[f"s{number}"] = Tokenized(f"s{number}", lengths, 1 + 100_000 * number)
    return out


def recipe_of(dice: random.Random, sources: dict[str, Tokenized]) -> dict[str, Any]:
    members: list[dict[str, Any]] = [{"path": name, "shuffle": dice.choice(SHUFFLES)} for name in sources]
    recipe: dict[str, Any] = {"seed": dice.randrange(1000)}
    kind = dice.choice(["blend", "blend", "concat"])
    if kind == "blend":
        for member in members:
            member["weight"] = dice.choice([1, 1, 0.1, 0.25, 3, round(dice.random() + 0.01, 3)])
        recipe["samples"] = dice.randint(40, 400)
    else:
        recipe |= {"shuffle": dice.choice(SHUFFLES), "epochs": dice.randint(1, 4)}
    recipe[kind] = members
    if dice.random() < 0.25:
        most = recipe.get("samples", 40)
        recipe["skip"] = [dice.randrange(min(most, 30)), [33, 36]] if kind == "blend" else []
    if dice.random() < 0.3:
        recipe["pack"] = {"seq_len": dice.choice([16, 64]), "method": dice.choice(["best_fit", "concat"])}
        recipe.pop("skip", None)
    how = dice.choice([None, "shuffled", "contiguous", "tokens", "attention"])
    if how in ("shuffled", "contiguous"):
        recipe["deal"] = how
    elif how is not None:
        recipe["balance"] = how if how == "tokens" else {"by": how, "linear": dice.choice([0, 10])}
    return {key: value for key, value in recipe.items() if value != []}


def costs_of(plan: Plan, samples: list[Any], by: str, linear: float) -> list[float]:
    """From the tokens themselves."""
    out = []
    for sample in samples:
        if hasattr(plan, "packing"):
            edges = np.asarray(sample["cu_seqlens"])
            real = int(sample["tokens"])
            documents = [int(min(b, real) - min(a, real)) for a, b in itertools.pairwise(edges)]
        else:
            number = plan.names.index(sample.source.dataset)
            documents = [int(plan.sources[number].lengths[sample.source.index])]  # type: ignore[index]
        tokens = sum(documents)
        out.append(float(tokens if by == "tokens" else sum(n * n for n in documents) + linear * tokens))
    return out


def identity(sample: Any) -> str:
    if isinstance(sample, dict):
        return json.dumps(np.asarray(sample["input_ids"]).tolist())
    return f"{sample.source.dataset}/{sample.key}"


def try_one(number: int, folder: Path) -> None:
    dice = random.Random(number)
    sources = sources_of(dice)
    recipe = recipe_of(dice, sources)
    plan = Recipe.parse(recipe, base=str(folder)).plan(lambda path, **_: sources[Path(path).name])
    total = len(plan)
    stream = [identity(sample) for sample in plan.read(np.arange(total))]
    balance = recipe.get("balance")
    by = balance["by"] if isinstance(balance, dict) else balance
    linear = balance["linear"] if isinstance(balance, dict) else 0.0
    position, state = 0, None
    for _ in range(dice.randint(1, 4)):
        world, size = dice.randint(1, 8), dice.randint(1, 6)
        remainder: Any = dice.choice(["drop", "ragged", "uneven"])
        if remainder == "uneven" and 0 < (total - position) % (world * size) < world:
            remainder = "ragged"
        # Only now and then another deal than the recipe's: it may change at a resume, too.
        deal = dice.choice([None, None, None, "contiguous", "shuffled"]) if balance is None else None
        kind, workers = deal or recipe.get("deal", "shuffled"), dice.choice([0, 0, 2])
        loaders = [
            Loader(
                plan,
                size,
                rank=r,
                world_size=world,
                remainder=remainder,
                deal=deal,
                output="samples",
                workers=workers,
            )
            for r in range(world)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(state))
        streams = [iter(loader) for loader in loaders]
        begin = position
        for step in range(dice.randint(1, 12)):
            end = min(position + world * size, total)
            if position >= total or (remainder == "drop" and end - position < world * size):
                break
            parts = [next(stream, []) for stream in streams]
            found = [[identity(sample) for sample in part] for part in parts]
            assert sorted(chain.from_iterable(found)) == sorted(stream[position:end]), (number, step)
            counts = [len(part) for part in parts]
            assert max(counts) - min(counts) <= 1 and (end - position < world * size or set(counts) == {size})
            if kind == "contiguous" and balance is None:
                assert list(chain.from_iterable(found)) == stream[position:end]
            if balance is None:
                for part in found:  # in the plan's order; the same document may come twice
                    at = -1
                    for each in part:
                        at = stream.index(each, max(at + 1, position))
                        assert at < end
            elif world > 1 and end - position == world * size:
                costs = [costs_of(plan, part, by, linear) for part in parts]
                assert all(each == sorted(each, reverse=True) for each in costs)
                sums, flat = (
                    [sum(each) for each in costs],
                    sorted(chain.from_iterable(costs), reverse=True),
                )
                dealt = [sum(flat[r::world]) for r in range(world)]  # like cards
                assert max(sums) <= max(dealt) + 1e-6
            for rank in (0, world - 1):
                traced = ledger.batch(
                    plan, step, world * size, rank=rank, world_size=world, start=begin, remainder=remainder,
                    dealing=loaders[rank].dealing,
                )  # fmt: skip
                assert [identity(sample) for sample in plan.read(traced.positions)] == found[rank]
            position = end
        states = {json.dumps(loader.state_dict()) for loader in loaders if loader.position == position}
        assert len(states) == 1, number
        (state,) = states
        for loader in loaders:
            loader.close()


@pytest.mark.parametrize(
    "first", [0, 24, *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 60, 6) if n != 24)]
)
def test_a_few_runs(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))
    for number in range(first, first + 6):
        try_one(number, tmp_path)


@pytest.mark.slow
def test_two_thousand_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))
    for number in range(1000, 3000):
        try_one(number, tmp_path)
