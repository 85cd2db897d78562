"""The proof that two plans begin alike, against plans that are evaluated position by position."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from feedmill.errors import ConfigError, FeedmillError
from feedmill.loading.loader import Loader
from feedmill.planning.nodes import (
    Blend,
    BlockShuffle,
    Concat,
    EpochizedBlend,
    Leaf,
    Node,
    Repeat,
    ShardShuffle,
    Shuffle,
    StagedBlend,
    Subset,
)
from feedmill.planning.nodes.shuffle import shard_sizes
from feedmill.planning.orders.modalities import ModalitiesSampler
from feedmill.planning.orders.nanoset import Nanoset
from feedmill.planning.plan import Plan
from feedmill.planning.resuming import resume as proof
from feedmill.planning.resuming.outline import Outline, outline_text, read_outline
from helpers.durations import slow_but
from helpers.number_dataset import Growing, Numbered

Tree = list[Any]
SIZES = [7, 5, 9, 3, 6, 4]


def random_tree(rng: random.Random, leaves: Sequence[int], depth: int = 2) -> Tree:
    """A random tree as lists, over these leaves in this order."""
    if len(leaves) == 1:
        tree: Tree = ["leaf", leaves[0]]
        if rng.random() < 0.3:
            start = rng.randrange(SIZES[leaves[0]] - 1)
            tree = ["subset", start, rng.randint(start + 1, SIZES[leaves[0]]), tree]
        return ["repeat", rng.choice([None, None, 2, "5/2"]), None, shuffled(rng, tree)]
    kind = rng.choice(["blend", "blend", "stages", "epochs", "concat", "nanoset"])
    if depth == 0:
        groups = [[leaf] for leaf in leaves]
    else:
        cuts = sorted(rng.sample(range(1, len(leaves)), rng.randint(1, len(leaves) - 1)))
        groups = [list(leaves[a:b]) for a, b in zip([0, *cuts], [*cuts, len(leaves)], strict=True)]
    below = [random_tree(rng, group, depth - 1) for group in groups]
    if kind in ("epochs", "concat", "nanoset"):  # they need children that end
        below = [["repeat", None, rng.randint(2, 12), child] for child in below]
    weights = [rng.choice([1, 2, 3, 5, 7]) for _ in groups]
    if kind == "blend":
        return ["blend", rng.choice([None, None, 9]), weights, *below]
    if kind == "stages":
        other = [rng.choice([0, 1, 3]) for _ in groups[:-1]] + [2]
        end = rng.choice([None, 20])
        ramp = [rng.choice(["linear", "cosine"])] if end and rng.random() < 0.5 else []
        return ["stages", [[rng.randint(1, 30), weights], [end, other, *ramp]], *below]
    if kind == "epochs":
        return ["repeat", None, None, ["epochs", [rng.choice(["1", "1/2", "2"]) for _ in groups], *below]]
    if kind == "nanoset":
        return ["repeat", None, None, ["nanoset", rng.randrange(3), weights, *below]]
    return ["repeat", None, None, shuffled(rng, ["concat", *below])]


def shuffled(rng: random.Random, tree: Tree) -> Tree:
    kind = rng.choice(["none", "shuffle", "block", "shards", "modalities"])
    if kind in ("shuffle", "shards"):
        return [kind, rng.randrange(3), tree]
    if kind == "block":
        return ["block", rng.randrange(3), rng.choice([2, 3]), 2, tree]
    return ["modalities", rng.choice([1, 2]), rng.randrange(2), tree] if kind == "modalities" else tree


def build(tree: Tree, sizes: Sequence[int] = SIZES) -> Node:
    kind, *given = tree
    children = [build(child, sizes) for child in given if isinstance(child, list) and child and child[0] in KINDS]
    if kind == "leaf":
        return Leaf(given[0], sizes[given[0]])
    if kind == "blend":
        return Blend(children, given[1], length=given[0])
    if kind == "stages":
        return StagedBlend(children, given[0])
    if kind == "epochs":
        return EpochizedBlend(children, given[0])
    if kind == "nanoset":
        return Nanoset(children, given[1], given[0])
    if kind == "concat":
        return Concat(children)
    (child,) = children
    if kind == "subset":
        return Subset(child, given[0], given[1])
    if kind == "repeat":
        return Repeat(child, given[0], length=given[1])
    if kind == "shuffle":
        return Shuffle(child, given[0])
    if kind == "block":
        return BlockShuffle(child, given[0], given[1], given[2])
    if kind == "shards":
        data = [Growing(f"n{i}", size) for i, size in enumerate(sizes)]
        return ShardShuffle(child, given[0], shard_sizes(child, data), 2)
    return ModalitiesSampler(child, given[0], shuffle=True, seed=given[1], drop_last=False)


KINDS = ("leaf", "blend", "stages", "epochs", "nanoset", "concat", "subset", "repeat", "shuffle", "block", "shards")
KINDS = (*KINDS, "modalities")


def nodes_of(tree: Tree) -> list[Tree]:
    below = [nodes_of(child) for child in tree if isinstance(child, list) and child and child[0] in KINDS]
    return [tree, *(node for nodes in below for node in nodes)]


def mutated(rng: random.Random, tree: Tree, spare: int) -> Tree:
    """The tree with a change that users make, or one that breaks the order."""
    tree = json.loads(json.dumps(tree))
    node = rng.choice(nodes_of(tree))
    kind = node[0]
    change = rng.random()
    if kind == "blend" and change < 0.6:
        count = len(node) - 3
        later = [rng.choice([1, 2, 4]) for _ in range(count)]
        stages, children = [[rng.choice([5, 10, 20]), node[2]], [None, later]], node[3:]
        if change < 0.3:  # a source that comes later
            at = rng.randint(0, count)
            for (_, weights), weight in zip(stages, (0, 3), strict=True):
                weights.insert(at, weight)
            children.insert(at, ["repeat", None, None, ["leaf", spare]])
        node[:] = ["stages", stages, *children]
    elif kind == "blend":
        node[1] = rng.choice([None, 9, 12])
    elif kind == "stages" and change < 0.7:
        last = node[1][-1]
        if last[0] is None:
            last[0] = rng.choice([5, 20])
        node[1].append([rng.choice([None, 7]), list(reversed(last[1]))])
    elif kind == "stages" and change < 0.8 and node[1][-1][0]:
        node[1][-1][2:] = rng.choice([[], ["linear"], ["cosine"]])
    elif kind == "stages":
        node[1][rng.randrange(len(node[1]))][0] = rng.choice([1, 5, 30])
    elif kind == "repeat":
        node[1:3] = [None, rng.choice([None, 4, 11, 30])]
    elif kind == "concat" and change < 0.5:
        node.append(["leaf", spare])
    elif kind in ("shuffle", "block", "shards", "nanoset") and change < 0.5:
        node[1] = (node[1] + 1) % 3
    elif kind == "subset":
        node[2] = SIZES[nodes_of(node)[-1][1]]
    elif kind in ("epochs", "nanoset", "concat"):
        node[:] = ["concat", *[child for child in node[1:] if isinstance(child, list) and child[0] in KINDS]]
    return tree


def renumbered(node: Node) -> tuple[Node, dict[int, int]]:
    return node, {leaf: leaf for leaf in node.leaves}


@pytest.mark.parametrize("seed", slow_but(range(8), 0))
def test_a_proof_by_structure_is_never_wrong_and_evaluation_finds_the_first_difference(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs of trees, each at several positions; the expected answer by locating all samples before.

    The default run has 100 of 800 pairs.
    """
    rng = random.Random(seed)
    proven = proven_of_equal = equal = 0
    for _ in range(100):
        used = rng.randint(2, 4)
        leaves = rng.sample(range(5), used)
        tree = random_tree(rng, leaves)
        try:
            old = build(tree)
            other = tree
            for _ in range(rng.choice([1, 1, 2])):
                other = mutated(rng, other, 5)
            new = build(other)
        except FeedmillError:
            continue
        longest = min(120, *(node.length for node in (old, new) if node.length is not None), 120)
        before, now = (node.locate(np.arange(longest)) for node in (old, new))
        differs = np.flatnonzero((before.source != now.source) | (before.index != now.index))
        first = int(differs[0]) if len(differs) else longest
        same_leaves = {leaf: leaf for leaf in old.leaves if leaf in new.leaves}
        for total in {0, 1, first, longest, rng.randint(0, longest), min(longest, 5), min(longest, 10)}:
            monkeypatch.setattr(proof, "MOST", 0)
            found = proof.first_difference(old, new, same_leaves, total)
            shown = total if found is None else found.position
            assert shown <= first, (tree, other, total)
            assert found is None or not found.known
            if 0 < total <= first:
                equal, proven_of_equal = equal + 1, proven_of_equal + (found is None)
            proven += found is None
            monkeypatch.setattr(proof, "MOST", 1000)
            wanted = None if total <= first else proof.Difference(first, True)
            assert proof.first_difference(old, new, same_leaves, total) == wanted
    assert proven > 50 and proven_of_equal > 0.6 * equal


@pytest.mark.parametrize("seed", slow_but(range(4), 0))
def test_an_outline_builds_the_tree_again_also_over_data_that_grew(seed: int) -> None:
    rng = random.Random(seed)
    built = 0
    for _ in range(50):
        leaves = rng.sample(range(4), 4)
        tree = random_tree(rng, leaves)
        grown = [size + rng.randint(0, 3) for size in SIZES[:4]]
        try:
            node, larger = build(tree), build(tree, grown)
            plan = Plan(node, [Numbered(f"n{i}", size) for i, size in enumerate(SIZES[:4])], list("abcd"), seed)
        except FeedmillError:
            continue
        built += 1
        text = outline_text(plan)
        assert text is not None
        outline = read_outline(json.loads(json.dumps(text)))
        assert outline.parts() == Outline.of(plan).parts()
        data = [Growing(f"n{i}", size) for i, size in enumerate(grown)]
        over = outline.over(Plan(larger, data, list("abcd"), seed), set("abcd"))
        assert over.counts == tuple(grown)
        for ours, theirs in ((outline.node, node), (over.node, larger)):
            assert ours.length == theirs.length
            positions = np.arange(min(200, theirs.length or 200))
            a, b = ours.locate(positions), theirs.locate(positions)
            assert all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("source", "index", "epoch"))
    assert built > 25


def test_a_node_without_a_tag_of_its_own_has_no_outline_and_a_resume_with_a_change_says_so() -> None:
    class Reversed(Shuffle):  # the tag is that of its parent, so it would be built again as the parent
        def inward(self, positions: Any, epochs: Any) -> Any:
            return self.length - 1 - positions, epochs

    plan = Plan(Repeat(Reversed(Leaf(0, 7), 1)), [Numbered("a", 7)], ["a"])
    assert outline_text(plan) is None
    state = json.loads(json.dumps(Loader(plan, 2, start=4).state_dict()))
    Loader(plan, 2).load_state_dict(state)
    other = Plan(Repeat(Reversed(Leaf(0, 7), 2)), [Numbered("a", 7)], ["a"])
    for flags in ({}, {"allow_change": True}):
        with pytest.raises(ConfigError, match=r"what changed is not known, because a class of nodes .* no 'tag'"):
            Loader(other, 2).load_state_dict(state, **flags)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-10],
        lambda text: text.split(".")[0],
        lambda text: "nothing." + text.split(".")[1],
        lambda text: text.replace(".", ""),
        lambda text: text[: len(text) // 3],
    ],
)
def test_a_damaged_outline_is_an_error(damage: Any) -> None:
    text = outline_text(Plan.over([Numbered("a", 7), Numbered("b", 9)], [1, 2]))
    assert text is not None
    with pytest.raises(ConfigError, match="corrupt at: tree"):
        read_outline(damage(text))


def test_the_structure_decides_for_any_number_of_positions() -> None:
    def blend(stages: list[tuple[int | None, list[int]]], count: int = 2) -> Node:
        sources = [Repeat(BlockShuffle(Leaf(i, 10**9 + i), 7 + i)) for i in range(count)]
        return StagedBlend(sources, stages) if len(stages) > 1 else Blend(sources, stages[0][1])

    far, leaves = 10**15, {0: 0, 1: 1}
    old = blend([(None, [7, 3])])
    later = blend([(far, [7, 3, 0]), (None, [5, 3, 2])], 3)
    assert proof.first_difference(old, later, leaves, far) is None
    found = proof.first_difference(old, later, leaves, far + 10**6)  # the first position behind is found at once
    assert found is not None and found.known and far <= found.position < far + 10
    assert proof.first_difference(later, blend([(far, [7, 3]), (None, [1, 1])]), leaves, far) is None


def test_what_is_too_many_to_compare_is_not_taken_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "MOST", 1000)
    old = Concat([Leaf(0, 10**6), Leaf(1, 10)])
    new = Concat([Subset(Leaf(0, 10**6), 0, 10**6), Leaf(1, 10)])
    assert proof.first_difference(old, new, {0: 0, 1: 1}, 10**6) == proof.Difference(1000, False)
    assert proof.first_difference(old, new, {0: 0, 1: 1}, 900) is None
