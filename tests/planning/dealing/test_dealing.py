"""Dealing by brute force: nothing here uses the product's arithmetic of ranks."""

from __future__ import annotations

import random
from collections import Counter
from itertools import chain
from math import sqrt
from typing import Any, ClassVar

import numpy as np
import pytest

from feedmill.errors import ConfigError
from feedmill.loading.loader import Loader
from feedmill.planning.dealing.dealer import MOST_AHEAD, Dealer, dealing_of
from feedmill.planning.dealing.grid import REMAINDERS, Grid
from feedmill.planning.dealing.rules import Balance, Dealing
from feedmill.planning.nodes import Blend, Leaf, Repeat, shuffled
from feedmill.planning.nodes.base import LONGEST
from helpers.fakes import FakePlan


def dealt(plan: Any, grid: Grid, kind: str, numbers: range) -> list[list[int]]:
    return [step.slots.tolist() for step in Dealer(plan, grid, Dealing(kind)).ahead(numbers)]


@pytest.mark.parametrize("kind", ["shuffled", "contiguous"])
def test_every_step_is_the_same_global_batch(kind: str) -> None:
    dice = random.Random(kind)
    for _ in range(300):
        start, more = dice.randrange(50), dice.choice([None, *range(1, 200, 7)])
        ranks, size, remainder = dice.randint(1, 9), dice.randint(1, 8), dice.choice(REMAINDERS)
        length, total = None if more is None else start + more, ranks * size
        plan = FakePlan(length=length)
        whole = None if more is None else more // total
        steps = 20 if more is None else -(-more // total)
        if remainder == "drop" and whole is not None:
            steps = whole
        shares: list[list[list[int]]] = []
        for rank in range(ranks):
            grid = Grid(start, length, size, rank, ranks, remainder)
            count = grid.steps if grid.steps is not None else steps
            mine = dealt(plan, grid, kind, range(count))
            assert all(each == sorted(each) for each in mine)
            assert Dealer(plan, grid, Dealing(kind)).ranks(0)[rank].tolist() == mine[0] if mine else True
            shares.append(mine)
        for number in range(steps):
            first = start + number * total
            end = first + total if length is None or remainder == "pad" else min(first + total, length)
            parts = [mine[number] for mine in shares if number < len(mine)]
            assert sorted(chain.from_iterable(parts)) == list(range(first, end))
            if end - first == total:
                assert {len(part) for part in parts} == {size} and len(parts) == ranks
            elif remainder == "uneven" and end - first >= ranks:
                assert len(parts) == ranks and max(map(len, parts)) - min(map(len, parts)) <= 1
            if kind == "contiguous":
                assert list(chain.from_iterable(parts)) == list(range(first, end))


def test_a_step_asked_alone_is_the_step_of_the_run() -> None:
    grid = Grid(3, None, 5, 2, 4, "uneven")
    dealer = Dealer(FakePlan(), grid, Dealing())
    several = [step.slots.tolist() for step in dealer.ahead(range(700, 1700))]
    assert several == [dealer.steps([number])[0].slots.tolist() for number in range(700, 1700)]
    again = Dealer(FakePlan(), Grid(3 + 700 * 20, None, 5, 2, 4, "uneven"), Dealing())
    assert [step.slots.tolist() for step in again.ahead(range(1000))] == several, "as after a resume"


def test_the_parts_of_more_ranks_are_parts_of_the_parts_of_fewer() -> None:
    two = [dealt(FakePlan(), Grid(0, None, 8, rank, 2, "drop"), "shuffled", range(30)) for rank in range(2)]
    eight = [dealt(FakePlan(), Grid(0, None, 2, rank, 8, "drop"), "shuffled", range(30)) for rank in range(8)]
    for number in range(30):
        for rank in range(2):
            assert sorted(chain.from_iterable(eight[4 * rank + n][number] for n in range(4))) == two[rank][number]


def test_at_the_last_positions_there_are() -> None:
    start = LONGEST - 3 * 8 - 5
    steps = list(Dealer(FakePlan(), Grid(start, None, 4, 1, 2, "drop"), Dealing()).ahead(range(3)))
    assert [step.end for step in steps] == [start + 8, start + 16, start + 24]
    assert all(step.end - 8 <= min(step.slots) <= max(step.slots) < step.end for step in steps)


def blend(sizes: list[int], weights: list[float]) -> Blend:
    leaves = [Repeat(shuffled(Leaf(number, size), "global", number)) for number, size in enumerate(sizes)]
    return Blend(leaves, weights)


def worst(weights: list[float], ranks: int, size: int, kind: str, steps: int = 1000) -> float:
    """How far the share of a source on a rank is from its share, in standard deviations of a random deal."""
    node = blend([997] * len(weights), weights)
    most = 0.0
    for rank in range(ranks):
        slots = dealt(FakePlan(), Grid(0, None, size, rank, ranks, "drop"), kind, range(steps))
        counts = Counter(node.locate(np.concatenate(slots).astype(np.int64)).source.tolist())
        for source, weight in enumerate(weights):
            share = weight / sum(weights)
            deviation = sqrt(steps * size * share * (1 - share))
            most = max(most, abs(counts[source] - steps * size * share) / deviation) if deviation else most
    return most


@pytest.mark.parametrize(("weights", "ranks", "size"), [([1, 1, 1, 1], 4, 1), ([0.75, 0.25], 8, 1)])
def test_no_rank_specializes_as_they_did(weights: list[float], ranks: int, size: int) -> None:
    assert worst(weights, ranks, size, "contiguous") > 15
    assert worst(weights, ranks, size, "shuffled") < 4


@pytest.mark.parametrize("number", range(10))
def test_no_rank_specializes(number: int) -> None:
    _random_mixtures(range(number, number + 1))


@pytest.mark.slow
def test_no_rank_specializes_in_many_mixtures() -> None:
    _random_mixtures(range(10, 160))


def _random_mixtures(numbers: range) -> None:
    for number in numbers:
        dice = random.Random(number)
        weights = [dice.choice([0.1, 0.25, 0.5, 1, 2, dice.random()]) for _ in range(dice.randint(2, 8))]
        assert worst(weights, dice.choice([2, 3, 4, 8, 16]), dice.choice([1, 1, 2, 4]), "shuffled") < 4.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deal": "random"}, "deal='random' is unknown"),
        ({"deal": "contiguous", "balance": "tokens"}, "cannot be combined"),
        ({"balance": {"within": "batch"}}, "it needs by"),
        ({"balance": {"by": "tokens", "per": 3}}, "'per' is unknown"),
        ({"balance": {"by": "tokens", "linear": 3}}, "linear"),
        ({"balance": {"by": "attention", "linear": -3}}, "linear"),
        ({"balance": {"by": "tokens", "within": "step"}}, "within 'step' is unsupported"),
        ({"balance": "tokens"}, "no index with the costs"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Loader(FakePlan(), 4, rank=0, world_size=2, **options)


def test_what_a_recipe_says_can_be_overridden(caplog: pytest.LogCaptureFixture) -> None:
    plan = FakePlan()
    plan.dealing = Dealing("contiguous")  # type: ignore[attr-defined]
    assert dealing_of(plan).kind == "contiguous" and dealing_of(plan, "shuffled").kind == "shuffled"
    plan.dealing = Dealing("shuffled", Balance("tokens"))  # type: ignore[attr-defined]
    assert dealing_of(plan).balance == Balance("tokens") and not caplog.records
    assert dealing_of(plan, "contiguous").balance is None
    assert "overrides the recipe's balance by tokens" in caplog.text
    assert dealing_of(plan, None, "bytes").balance == Balance("bytes")


def test_positions_are_located_together() -> None:
    class Counting(FakePlan):
        calls: ClassVar[list[int]] = []

        def locate_ahead(self, positions: np.ndarray) -> None:
            self.calls.append(len(positions))

    list(Dealer(Counting(), Grid(0, None, 64, 4095, 4096, "drop"), Dealing()).ahead(range(640)))
    assert Counting.calls[:6] == [1024, 2048, 4096, 8192, MOST_AHEAD, 640 * 64 - 31 * 1024]
