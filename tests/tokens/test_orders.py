"""Orders of documents: golden permutations, chunk ranges, exact ratios."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import ConfigError
from feedmill.tokens.verbs.merge import interleaved
from feedmill.tokens.verbs.shuffle import ORDERS, chunk_range, chunk_seed, chunk_shuffled, shuffled
from feedmill.tokens.verbs.split import parts_by_ratio

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/modalities/expected.json").read_text())


@pytest.mark.parametrize("seed", GOLDEN["shuffle_tokenized"])
def test_modalities_order(seed: str) -> None:
    assert shuffled(69, int(seed), "modalities").tolist() == GOLDEN["shuffle_tokenized"][seed]["order"]


@pytest.mark.parametrize(("words", "seed"), GOLDEN["hashed_seed"].items())
def test_hashed_seeds(words: str, seed: int) -> None:
    assert chunk_seed(*words.split("|")) == seed


def test_chunk_seeds_commute_as_in_the_original() -> None:
    assert chunk_shuffled(50, 1, 0).tolist() == chunk_shuffled(50, 0, 1).tolist()


@given(st.integers(0, 3000), st.integers(0, 2**31), st.sampled_from(ORDERS))
def test_orders_are_permutations(n: int, seed: int, order: str) -> None:
    assert sorted(shuffled(n, seed, order).tolist()) == list(range(n))


@given(st.integers(0, 3000), st.integers(-5, 2**40))
def test_modalities_order_is_that_of_python(n: int, seed: int) -> None:
    row = list(range(n))
    random.Random(seed).shuffle(row)
    assert shuffled(n, seed, "modalities").tolist() == row


def test_modalities_order_of_many() -> None:
    row = list(range(70_000))
    random.Random(3).shuffle(row)
    assert shuffled(70_000, 3, "modalities").tolist() == row


def test_feedmill_order_stays_what_it_is() -> None:
    assert shuffled(10, 7).tolist() == shuffled(10, 7).tolist() != shuffled(10, 8).tolist()


@pytest.mark.parametrize(("order", "seed"), [("nobody", 0), ("datatrove", -1)])
def test_unknown_orders_and_seeds(order: str, seed: int) -> None:
    with pytest.raises(ConfigError):
        shuffled(3, seed, order)


@given(st.integers(0, 200), st.integers(1, 20))
def test_chunks_cover_everything_once(n: int, chunks: int) -> None:
    ranges = [chunk_range(n, chunks, number) for number in range(chunks)]
    assert [i for part in ranges for i in part] == list(range(n))
    first = n % chunks or chunks
    assert [len(part) for part in ranges] == [-(-n // chunks)] * first + [-(-n // chunks) - 1] * (chunks - first)


@pytest.mark.parametrize(("chunks", "chunk"), [(0, 0), (2, 2), (2, -1)])
def test_chunks_that_are_not_there(chunks: int, chunk: int) -> None:
    with pytest.raises(ConfigError):
        chunk_range(10, chunks, chunk)


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(0, 100))
def test_the_merger_keeps_the_order_inside_files(counts: list[int], seed: int) -> None:
    order = interleaved(counts, seed)
    assert sorted(order.tolist()) == list(range(sum(counts)))
    begin = 0
    for count in counts:
        own = order[(order >= begin) & (order < begin + count)]
        assert (np.diff(own) > 0).all()
        begin += count
    assert interleaved(counts, None).tolist() == list(range(sum(counts)))


@given(st.integers(0, 500), st.lists(st.floats(0, 10), min_size=1, max_size=5), st.integers(0, 99))
def test_ratios_give_exact_sizes(n: int, ratio: list[float], seed: int) -> None:
    if sum(ratio) <= 0:
        with pytest.raises(ConfigError):
            parts_by_ratio(n, ratio, seed)
        return
    parts = parts_by_ratio(n, ratio, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(n))
    for part, weight in zip(parts, ratio, strict=True):
        assert abs(len(part) - n * weight / sum(ratio)) < 1 + 1e-6
        assert (np.diff(part) > 0).all()


@pytest.mark.parametrize("ratio", [[], [0, 0], [1, -1], [float("inf"), 1]])
def test_ratios_that_divide_nothing(ratio: list[float]) -> None:
    with pytest.raises(ConfigError):
        parts_by_ratio(10, ratio, 0)
