"""Many children that differ in constants only are followed in one pass, each to where it leads alone."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.planning.nodes import Blend, BlockShuffle, Concat, Leaf, Node, Repeat, ShardShuffle, Shuffle, Subset, base
from helpers.durations import examples

KINDS = ("stored", "global", "block", "shards", "subset", "twice", "nested")


def child(number: int, kind: str, rng: np.random.Generator, most: int = 2**61) -> Node:
    """Return a tree over one leaf; the sizes cover one sample, small and large ranges."""
    size = int(rng.integers(1, [2, 40, 3000, 10**6, most][rng.integers(5)]))
    key = int(rng.integers(0, 2**64, dtype=np.uint64))
    node: Node = Leaf(number, size)
    if kind in ("subset", "nested") and size > 1:
        start = int(rng.integers(size - 1))
        node = Subset(node, start, int(rng.integers(start + 1, size + 1)))
    if kind == "nested":
        node = BlockShuffle(Repeat(Shuffle(node, key ^ 1), length=int(rng.integers(1, 2 * size + 1))), key, 7, 3)
    elif kind in ("block", "twice"):
        node = BlockShuffle(node, key, int(rng.integers(1, 300)), int(rng.integers(1, 20)))
    elif kind == "shards":
        node = ShardShuffle(node, key, [size])
    elif kind == "global":
        node = Shuffle(node, key)
    if kind == "twice":
        node = Repeat(node, length=int(rng.integers(1, 3 * size + 1)))
    return Repeat(node)


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True), st.integers(0, 2**32))
@settings(max_examples=examples(20), deadline=None)
def test_many_children_are_followed_as_each_alone(kinds: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(10, 60))
    children = [child(number, kinds[rng.integers(len(kinds))], rng) for number in range(count)]
    node = Blend(children, rng.integers(1, 50, count).tolist(), length=int(rng.integers(1, 10**9)))
    positions = rng.integers(0, node.length, 400) if seed % 2 else np.arange(400) % node.length
    epochs: Any = rng.integers(0, 3, 400) if seed % 3 else seed % 5
    found = node.locate(positions, epochs)
    choice, inner, inner_epochs = node.inward(positions, epochs)
    for number in np.unique(choice).tolist():
        rows = np.flatnonzero(choice == number)
        alone = children[number].locate(inner[rows], base.at(inner_epochs, rows))
        for name in ("source", "index", "epoch"):
            assert np.array_equal(getattr(alone, name), getattr(found, name)[rows])
    again = pickle.loads(pickle.dumps(node)).locate(positions, epochs)
    assert np.array_equal(again.index, found.index) and np.array_equal(again.source, found.source)


def test_the_pass_takes_children_of_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    kinds = ["block"] * 20 + ["shards"] * 20 + ["global"] * 3
    node = Concat([child(number, kind, rng, 10**9).children[0] for number, kind in enumerate(kinds)])
    followed: list[int] = []
    follow = base._Alike.follow
    monkeypatch.setattr(base._Alike, "follow", lambda *given: followed.append(len(given[2])) or follow(*given))
    starts = np.cumsum([0, *(each.length for each in node.children)])[:-1]
    assert node.locate(starts).source.tolist() == list(range(43))
    assert followed == [20]
