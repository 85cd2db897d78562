"""What every node of a plan promises, for each node by itself and for random trees of them.

Each position gives one (source, index, epoch) and each of these comes once; the way back leads to the position asked;
counts are exact; and the answer depends on nothing but the position. A state keeps every node, so that a run resumes
with a changed mixture and with data that grew.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import count
from pkgutil import walk_packages
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill.planning
from feedmill.errors import ConfigError
from feedmill.loading.loader import Loader
from feedmill.planning.bounds import reach
from feedmill.planning.nodes import (
    Blend,
    BlockShuffle,
    Concat,
    Curriculum,
    EpochizedBlend,
    Groups,
    Leaf,
    Located,
    Node,
    Repeat,
    ShardShuffle,
    Shuffle,
    Skip,
    StagedBlend,
    Subsample,
    Subset,
)
from feedmill.planning.nodes.base import leaves_of
from feedmill.planning.nodes.ranking import ranking_of
from feedmill.planning.nodes.shuffle import shard_sizes
from feedmill.planning.orders import (
    BlendableDataset,
    BlendedDataset,
    GptOrder,
    GptShuffle,
    ModalitiesSampler,
    Nanoset,
)
from feedmill.planning.permutation import derive
from feedmill.planning.plan import Plan
from feedmill.planning.resuming import resume as proof
from feedmill.planning.resuming.outline import Outline, outline_text, read_outline
from helpers.durations import examples
from helpers.number_dataset import Growing

ENOUGH = 1500


def leaves(*sizes: int) -> list[Leaf]:
    return [Leaf(number, size) for number, size in enumerate(sizes)]


def gpt(samples: int) -> Node:
    order = GptOrder(np.full(10, 37), 0, 10, samples, seq_len=8, seed=3)
    return GptShuffle(Leaf(0, order.windows), order)


def shuffled(leaf: Leaf) -> Node:
    return BlockShuffle(leaf, derive(5, str(leaf.number)), 4, 3)


def curriculum(child: Node, key: int = 3, by: str = "score", **options: Any) -> Node:
    """A curriculum over numbered data."""
    data = {leaf.number: Growing(f"n{leaf.number}", leaf.length) for leaf in leaves_of(child)}
    ranking = ranking_of(child, by, [data.get(number) for number in range(max(data) + 1)])
    return Curriculum(child, key, by, ranking=ranking, **options)


def grouped(child: Node, order: Sequence[Any] = ("global",), size: int | None = None, **options: Any) -> Groups:
    """Groups of numbered data, by its column without a size."""
    data = {leaf.number: Growing(f"n{leaf.number}", leaf.length) for leaf in leaves_of(child)}
    sources = [data.get(number) for number in range(max(data) + 1)]
    by = options.get("by", None if size else "group")
    return Groups.made(child, 3, order, size, by, options.get("within", "stored"), sources)


CASES: dict[str, Callable[[], Node]] = {
    "leaf": lambda: Leaf(0, 37),
    "subset": lambda: Subset(Leaf(0, 100), 20, 71),
    "subset of subset": lambda: Subset(Subset(Leaf(0, 100), 20, 71), 0, 50),
    "subsample": lambda: Subsample(Leaf(0, 100), 3, 17),
    "subsample of one": lambda: Subsample(Subset(Leaf(0, 100), 20, 71), 3, 1),
    "subsample of all": lambda: Subsample(Leaf(0, 13), 3, 13),
    "shuffled subsample, repeated": lambda: Repeat(BlockShuffle(Subsample(Leaf(0, 100), 3, 17), 5, 4, 2), 2.5),
    "shards of a subsample": lambda: Repeat(ShardShuffle(Subsample(Leaf(0, 100), 3, 17), 5, [7, 10], 2), 3),
    "shuffle": lambda: Shuffle(Leaf(0, 101), 3),
    "shuffle of one": lambda: Shuffle(Leaf(0, 1), 3),
    "block shuffle, whole blocks": lambda: BlockShuffle(Leaf(0, 96), 3, 8, 3),
    "block shuffle, short block": lambda: BlockShuffle(Leaf(0, 101), 3, 8, 3),
    "block shuffle, one block": lambda: BlockShuffle(Leaf(0, 7), 3, 8, 3),
    "block shuffle, one sample": lambda: BlockShuffle(Leaf(0, 1), 3, 8, 3),
    "block shuffle, blocks of one": lambda: BlockShuffle(Leaf(0, 50), 3, 1, 7),
    "block shuffle, windows of one": lambda: BlockShuffle(Leaf(0, 50), 3, 7, 1),
    "block shuffle, defaults": lambda: BlockShuffle(Leaf(0, 9001), 3),
    "shuffle of shards": lambda: ShardShuffle(Leaf(0, 34), 3, [10, 0, 7, 7, 1, 9], 3),
    "shuffle of shards, one shard": lambda: Repeat(ShardShuffle(Leaf(0, 7), 3, [7])),
    "shuffle of shards in sequences": lambda: Repeat(ShardShuffle(Leaf(0, 34), 3, [10, 0, 7, 7, 1, 9], 2, 3), 2.5),
    "shuffle of shards, one at a time": lambda: Repeat(ShardShuffle(Leaf(0, 30), 3, [10, 5, 15], 1), 2.5),
    "curriculum": lambda: curriculum(Leaf(0, 103), window=10),
    "curriculum from hard": lambda: Repeat(curriculum(Leaf(0, 50), begin="hard", window=7), 2.5),
    "curriculum, windows of one": lambda: curriculum(Leaf(0, 50), window=1),
    "curriculum, one window": lambda: curriculum(Leaf(0, 50), window=50),
    "curriculum of different values": lambda: curriculum(Subset(Leaf(0, 50), 3, 16), window=4),
    "curriculum of a concatenation": lambda: curriculum(Concat([Subset(Leaf(0, 30), 5, 21), Leaf(1, 20)]), window=5),
    "groups": lambda: grouped(Leaf(0, 103)),
    "groups in stored order": lambda: Repeat(grouped(Leaf(0, 53), ["none"]), 2.5),
    "groups, shuffled within": lambda: Repeat(grouped(Subset(Leaf(0, 53), 10, 50), within="shuffled")),
    "groups in blocks": lambda: Repeat(grouped(Leaf(0, 103), ["block", 12, 3], within="shuffled"), 3),
    "groups of a size": lambda: grouped(Leaf(0, 104), size=4),
    "groups of a size in blocks": lambda: Repeat(grouped(Leaf(0, 104), ["block", 12, 3], 8, within="shuffled"), 3),
    "groups of one": lambda: grouped(Leaf(0, 13), size=1),
    "one group": lambda: Repeat(grouped(Leaf(0, 13), size=13, within="shuffled")),
    "groups in a curriculum": lambda: Repeat(grouped(Leaf(0, 103), ["curriculum", "score", "hard", 9])),
    "groups of a size in a curriculum": lambda: grouped(Leaf(0, 104), ["curriculum", "score", "easy", 16], 4),
    "blend of groups": lambda: Repeat(
        Blend(
            [Repeat(grouped(Leaf(0, 24), size=4)), Repeat(shuffled(Leaf(1, 10))), Repeat(grouped(Leaf(2, 30), size=6))],
            [2, 1, 1],
            run_length=12,
            length=120,
        ),
        3,
    ),
    "skip of groups": lambda: Skip(grouped(Leaf(0, 40), size=4), [(4, 12), (32, 36)]),
    "concat of groups": lambda: Repeat(Concat([grouped(Leaf(0, 24), size=4), grouped(Leaf(1, 30)), Leaf(2, 9)]), 2),
    "repeat twice": lambda: Repeat(Shuffle(Leaf(0, 30), 3), 2),
    "repeat for ever": lambda: Repeat(Shuffle(Leaf(0, 30), 3)),
    "repeat to a length": lambda: Repeat(Shuffle(Leaf(0, 30), 3), length=77),
    "repeat of repeat": lambda: Repeat(Shuffle(Repeat(Shuffle(Leaf(0, 30), 3), 2), 4), 3),
    "skip": lambda: Skip(Leaf(0, 40), [(5, 6), (0, 2), (30, 40), (6, 9), (8, 11)]),
    "skip of an endless stream": lambda: Skip(Repeat(Shuffle(Leaf(0, 30), 3)), [(7, 8), (100, 131)]),
    "skip, repeated": lambda: Repeat(Skip(Repeat(Shuffle(Leaf(0, 30), 3), 2), [(1, 3), (44, 45)]), 3),
    "skip of a blend": lambda: Skip(Blend([Repeat(shuffled(leaf)) for leaf in leaves(10, 25)], [1, 2]), [(3, 9)]),
    "concat": lambda: Concat([shuffled(leaf) for leaf in leaves(10, 25, 1)]),
    "concat of many": lambda: Concat(leaves(*range(1, 40))),
    "shuffle of concat": lambda: Repeat(Shuffle(Concat(leaves(10, 25)), 3), 2),
    "blend": lambda: Blend([Repeat(shuffled(leaf)) for leaf in leaves(10, 25, 3)], [0.5, 0.3, 0.2]),
    "blend of many": lambda: Blend([Repeat(leaf) for leaf in leaves(*range(1, 40))], range(1, 40)),
    "blend with zero weight": lambda: Blend([Repeat(leaf) for leaf in leaves(10, 25, 3)], [1, 0, 2]),
    "blend that ends": lambda: Blend([Repeat(Leaf(0, 10)), Shuffle(Leaf(1, 50), 3), Leaf(2, 70)], [0.5, 0.3, 0.2]),
    "repeated blend that ends": lambda: Repeat(Shuffle(Blend(leaves(50, 70), [0.6, 0.4]), 8), 4),
    "blend without a table": lambda: Blend(
        [Repeat(shuffled(leaf)) for leaf in leaves(10, 25, 7)], [12, 246, 73], limit=4
    ),
    "blend of many without a table": lambda: Blend([Repeat(x) for x in leaves(*range(1, 40))], range(1, 40), limit=4),
    "blend dealt in blocks": lambda: Blend(
        [Repeat(shuffled(x)) for x in leaves(*range(1, 10))], [3, 8, 2, 1, 13, 2, 3, 13, 13], limit=4
    ),
    "blend dealt in blocks to two groups": lambda: Blend(
        [Repeat(x) for x in leaves(*range(1, 15))],
        [20, 20, 50, 10, 50, 50, 20, 30, 10, 51, 22, 80, "1/90", "1/999"],
        limit=4,
    ),
    "blend with its own length": lambda: Repeat(
        Blend([Repeat(shuffled(x)) for x in leaves(10, 25)], [1, 2], length=50), 3
    ),
    "repeat of a fraction": lambda: Repeat(Shuffle(Leaf(0, 31), 3), 2.5),
    "repeated repeat of a fraction": lambda: Repeat(Shuffle(Repeat(Shuffle(Leaf(0, 30), 3), "1/3"), 4), 5),
    "staged blend": lambda: StagedBlend(
        [Repeat(shuffled(x)) for x in leaves(10, 25, 3)], [(50, [5, 3, 2]), (33, [0, 1, 2]), (None, [2, 1, 0])]
    ),
    "staged blend that ends": lambda: StagedBlend(
        [Repeat(shuffled(x)) for x in leaves(10, 25, 3)], [(1, [5, 3, 2]), (133, [0, 1, 2]), (40, [0, 0, 1])]
    ),
    "staged blend of a source that ends": lambda: StagedBlend(
        [Repeat(Leaf(0, 9)), Leaf(1, 40)], [(50, [1, 1]), (None, [2, 1])]
    ),
    "staged blend that leaves a source": lambda: StagedBlend(
        [Repeat(Leaf(0, 9)), Leaf(1, 40)], [(50, [1, 1]), (None, [1, 0])]
    ),
    "staged blend with ramps": lambda: StagedBlend(
        [Repeat(shuffled(x)) for x in leaves(10, 25, 3)],
        [(50, [5, 3, 2]), (33, [0, 1, 2], "linear"), (70, [1, 0, 2], "cosine"), (None, [2, 1, 0])],
    ),
    "repeated staged blend with a ramp in runs": lambda: Repeat(
        StagedBlend(
            [Repeat(shuffled(x)) for x in leaves(10, 25)], [(50, [1, 0]), (30, [1, 3], "linear")], run_length=5
        ),
        3,
    ),
    "repeated staged blend": lambda: Repeat(
        Shuffle(StagedBlend([Repeat(shuffled(x)) for x in leaves(10, 25)], [(50, [0.5, 0.3]), (33, [0, 1])]), 3), 3
    ),
    "epochized blend": lambda: EpochizedBlend([shuffled(leaf) for leaf in leaves(10, 25, 7)], [2, 0.5, "1/3"]),
    "repeated epochized blend": lambda: Repeat(EpochizedBlend([shuffled(x) for x in leaves(10, 25)], [2, 0.5]), 2.5),
    "blend to a length": lambda: Repeat(Blend([Repeat(shuffled(leaf)) for leaf in leaves(10, 25)], [1, 2]), length=91),
}

# Orders of other tools.
CASES |= {
    "nanoset": lambda: Nanoset(leaves(8, 2, 5, 5)),
    "nanoset with weights": lambda: Nanoset(leaves(8, 2, 5, 5), [0.1, 0.5, 0.3, 0.1], 7),
    "nanoset with zero weight": lambda: Nanoset(leaves(9, 5, 3), [1, 2, 0]),
    "nanoset of one": lambda: Nanoset(leaves(1)),
    "nanoset of nodes": lambda: Nanoset([Repeat(shuffled(leaf), 2) for leaf in leaves(9, 5)], [1, 3]),
    "repeated nanoset": lambda: Repeat(Nanoset(leaves(8, 2, 5, 5), [1, 5, 3, 1]), length=70),
    "gpt shuffle": lambda: gpt(40),
    "gpt shuffle, last epoch apart": lambda: gpt(100),
    "repeated gpt shuffle": lambda: Repeat(gpt(100), 2),
    "megatron blend": lambda: BlendedDataset(leaves(90, 40, 60), [3, 1, 2], 120),
    "megatron blend by size": lambda: BlendedDataset(leaves(30, 40, 60), None, 100),
    "exhaustive megatron blend": lambda: BlendedDataset(leaves(30, 41, 6)),
    "cut megatron blend": lambda: Repeat(BlendedDataset(leaves(30, 41, 6)), length=70),
    "blendable dataset": lambda: BlendableDataset(leaves(90, 40, 60), [3, 1, 2], 120),
    "modalities": lambda: ModalitiesSampler(Leaf(0, 23), 4),
    "modalities, shuffled": lambda: ModalitiesSampler(Leaf(0, 23), 4, shuffle=True, seed=3, batch_size=2),
    "modalities, skipping": lambda: ModalitiesSampler(Leaf(0, 23), 4, shuffle=True, skip=6, drop_last=False),
    "modalities, mostly filled up": lambda: ModalitiesSampler(Leaf(0, 3), 8, shuffle=True, drop_last=False),
    "modalities of a shuffle": lambda: ModalitiesSampler(Shuffle(Leaf(0, 3), 8), 8, drop_last=False, batch_size=3),
}


Make = Callable[[list[Leaf], Sequence[Growing]], Node]

OVER: dict[type[Node], Make] = {
    Leaf: lambda given, _: given[0],
    Subset: lambda given, _: Subset(given[0], 3, 9),
    Subsample: lambda given, _: Subsample(given[0], 3, 9),
    Shuffle: lambda given, _: Shuffle(given[0], 3),
    BlockShuffle: lambda given, _: BlockShuffle(given[0], 3, 4, 2),
    ShardShuffle: lambda given, data: ShardShuffle(joined := Concat(given), 3, shard_sizes(joined, data), 2),
    Curriculum: lambda given, data: curriculum(Leaf(0, 1), window=4).over([given[0]], data),
    Groups: lambda given, data: Groups.made(given[0], 3, ["block", 4, 2], None, "group", "shuffled", data),
    Repeat: lambda given, _: Repeat(Shuffle(given[0], 3), "5/2"),
    Skip: lambda given, _: Skip(Shuffle(given[0], 3), [(2, 4), (7, 8)]),
    Concat: lambda given, _: Concat([shuffled(leaf) for leaf in given]),
    Blend: lambda given, _: Blend([Repeat(shuffled(leaf)) for leaf in given], [3, 1, 2], run_length=2, limit=4),
    StagedBlend: lambda given, _: StagedBlend(
        [Repeat(shuffled(leaf)) for leaf in given],
        [(6, [1, 1, 0]), (9, [1, 0, 1], "linear"), (None, [1, 2, "1/3"])],
        length=50,
        run_length=3,
    ),
    EpochizedBlend: lambda given, _: EpochizedBlend([shuffled(leaf) for leaf in given], [1, 0.5, 2], length=20),
    Nanoset: lambda given, _: Nanoset(given, [0.1, 0.6, 0.3], 7),
    BlendableDataset: lambda given, _: BlendableDataset(given, [0.1, 0.6, 0.3], 20),
    BlendedDataset: lambda given, _: BlendedDataset(given, [0.1, 0.6, 0.3], 20),
    ModalitiesSampler: lambda given, _: ModalitiesSampler(
        given[0], 2, shuffle=True, seed=3, skip=3, drop_last=False, batch_size=2
    ),
    GptShuffle: lambda given, _: gpt_over(given[0]),
}
"""Each class of nodes, over leaves of the datasets. A class that is missing here fails a test below."""

BY_LENGTH: dict[type[Node], Make] = {
    Groups: lambda given, data: Groups.made(
        given[0], 3, ["curriculum", "score", "hard", 6], None, "group", "stored", data
    ),
    Nanoset: lambda given, _: Nanoset(given),
    BlendedDataset: lambda given, _: BlendedDataset(given),
}
"""Nodes with weights that follow the data."""

FIXED = {GptShuffle: r"the old recipe has no order over the grown data \(the order has \d+ samples, the dataset \d+"}
"""Nodes that are made for one number of samples, and what a resume with more of them says."""

SAMPLES, MORE = (17, 20, 15), (25, 20, 18)


def gpt_over(leaf: Leaf) -> Node:
    order = GptOrder(np.array([leaf.length * 8 + 1]), 0, 1, None, seq_len=8, seed=3)
    return GptShuffle(leaf, order)


def classes(root: type[Node] = Node) -> Iterator[type[Node]]:
    """Every class of nodes in the package that can be made."""
    for module in walk_packages(feedmill.planning.__path__, "feedmill.planning."):
        import_module(module.name)
    below = [root]
    while below:
        node = below.pop()
        below += node.__subclasses__()
        if (
            not inspect.isabstract(node)
            and node.__module__.startswith("feedmill.")
            and "_title" not in vars(node).get("__annotations__", {})
        ):
            yield node


def test_every_class_of_nodes_is_tested_and_has_a_tag_of_its_own() -> None:
    made = set(classes())
    assert made == set(OVER)
    tags = [vars(node).get("tag") for node in made]
    assert all(tags) and len(set(tags)) == len(tags)


KINDS = [*OVER.items(), *BY_LENGTH.items()]
IDS = [node.__name__ for node in OVER] + [f"{node.__name__} by length" for node in BY_LENGTH]

MIXED = [(kind, make) for kind, make in KINDS if kind is not Groups]
"""Nodes that a blend can draw samples from one at a time; a blend of groups is tested by `recipes.test_groups`."""
MIXED_IDS = [name for name in IDS if not name.startswith("Groups")]


def made(make: Make, sizes: Sequence[int]) -> tuple[Node, list[Growing]]:
    """A node over leaves of new data, and the data that it uses."""
    data = [Growing(f"n{number}", size) for number, size in enumerate(sizes)]
    node = make(leaves(*sizes), data)
    return node, data[: len(node.leaves)]


def mixed(make: Make, sizes: Sequence[int], stages: Sequence[tuple[int | None, Sequence[int]]]) -> Plan:
    """A plan that blends a node with one other source, in stages."""
    node, data = made(make, sizes)
    other = Growing("other", 30)
    streams = [Repeat(node) if node.length is not None else node, Repeat(Shuffle(Leaf(len(data), 30), 5))]
    root = Blend(streams, stages[0][1]) if len(stages) == 1 else StagedBlend(streams, stages)
    return Plan(root, [*data, other], [each.url for each in (*data, other)], 3)


def state_at(plan: Plan, position: int) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(Loader(plan, 1, start=position).state_dict()))
    return state


def resumed(plan: Plan, state: Mapping[str, Any], **flags: bool) -> int:
    loader = Loader(plan, 1, output="samples")
    loader.load_state_dict(state, **flags)
    return loader.position


def same_places(a: Node, b: Node) -> bool:
    """Whether two nodes are the same in both directions."""
    positions = np.arange(min(200, a.length or 200))
    one, other = a.locate(positions), b.locate(positions)
    forwards = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("source", "index", "epoch"))
    return a.length == b.length and forwards and np.array_equal(b.positions(one)[0], positions)


def check_outline(node: Node, data: Sequence[Growing]) -> None:
    plan = Plan(node, data, [each.url for each in data], 3)
    text = outline_text(plan)
    assert text is not None
    outline = read_outline(json.loads(json.dumps(text)))
    root = node.child if isinstance(node, Skip) else node
    assert outline.parts() == Outline.of(plan).parts()
    assert same_places(outline.over(plan, ()).node, root)
    copy = type(node).of(node.below, json.loads(json.dumps(node.arguments())))
    assert copy.arguments() == node.arguments()
    assert copy.stream_prefix(node, 5) is not None
    assert same_places(copy if copy.bound else copy.over(copy.below, data), node)
    assert outline_text(Plan(outline.node, data, plan.names, 3)) == outline_text(Plan(root, data, plan.names, 3))


@pytest.mark.parametrize(("kind", "make"), KINDS, ids=IDS)
def test_an_outline_keeps_each_node(kind: type[Node], make: Make) -> None:
    node, data = made(make, SAMPLES)
    assert type(node) is kind
    check_outline(node, data)


@pytest.mark.parametrize("name", CASES)
def test_an_outline_keeps_each_case(name: str) -> None:
    node = CASES[name]()
    sizes = {leaf.number: leaf.length for leaf in leaves_of(node)}
    check_outline(node, [Growing(f"n{number}", sizes[number]) for number in range(len(sizes))])


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_an_outline_keeps_random_trees(data: st.DataObject) -> None:
    node = data.draw(trees())
    sizes = {leaf.number: leaf.length for leaf in leaves_of(node)}
    check_outline(node, [Growing(f"n{number}", sizes[number]) for number in range(len(sizes))])


@pytest.mark.parametrize(("kind", "make"), MIXED, ids=MIXED_IDS)
def test_a_run_with_each_node_resumes_with_a_changed_mixture(
    kind: type[Node], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By structure alone, so at any number of positions; not if the change comes before."""
    monkeypatch.setattr(proof, "MOST", 0)
    old, stages = mixed(make, SAMPLES, [(None, [2, 1])]), [(90, [2, 1]), (None, [1, 5])]
    new = mixed(make, SAMPLES, stages)
    state = state_at(old, 90)
    with pytest.raises(ConfigError, match=r"source n0 was .*allow_change=True"):
        resumed(new, state)
    assert resumed(new, state, allow_change=True) == 90
    monkeypatch.setattr(proof, "MOST", 1000)
    with pytest.raises(ConfigError, match=r"position [0-9]+ was sample"):
        resumed(mixed(make, SAMPLES, [(50, [2, 1]), (None, [1, 5])]), state, allow_change=True)


@pytest.mark.parametrize(("kind", "make"), MIXED, ids=MIXED_IDS)
def test_a_run_with_each_node_resumes_with_data_that_grew(kind: type[Node], make: Make) -> None:
    stages = [(None, [2, 1])]
    old = mixed(make, SAMPLES, stages)
    state = state_at(old, 61)
    if kind in FIXED:
        with pytest.raises(ConfigError, match=FIXED[kind]):
            resumed(mixed(make, MORE, stages), state, allow_append=True)
        return
    new = mixed(make, MORE, stages)
    with pytest.raises(ConfigError, match=r"n0 grew from 17 to 25.*allow_append=True"):
        resumed(new, state)
    assert resumed(new, state, allow_append=True) == 61
    changed = mixed(make, MORE, [(61, [2, 1]), (None, [1, 5])])
    assert resumed(changed, state, allow_append=True, allow_change=True) == 61
    for flags in ({"allow_append": True}, {"allow_change": True}):
        with pytest.raises(ConfigError):
            resumed(changed, state, **flags)


@st.composite
def trees(draw: st.DrawFn, numbers: count | None = None, depth: int = 3, finite: bool = False) -> Node:
    """A random tree; `finite` asks for one that ends."""
    numbers = count() if numbers is None else numbers
    kinds = ["leaf"]
    if depth:
        kinds = ["subset", "shuffle", "block", "repeat", "length", "skip", "concat", "blend", "staged", "epochized"]
        kinds += ["curriculum", "subsample"]
    if depth and not finite:
        kinds += ["endless", "blend", "blend", "staged"]
    kind = draw(st.sampled_from(kinds))
    key = draw(st.integers(0, 2**64 - 1))

    def child(must_end: bool = True) -> Node:
        return draw(trees(numbers, depth - 1, must_end))

    if kind == "leaf":
        return Leaf(next(numbers), draw(st.integers(1, 60)))
    if kind == "subset":
        leaf = Leaf(next(numbers), draw(st.integers(1, 60)))
        start = draw(st.integers(0, leaf.length - 1))
        return Subset(leaf, start, draw(st.integers(start + 1, leaf.length)))
    if kind == "subsample":
        leaf = Leaf(next(numbers), draw(st.integers(1, 60)))
        return Subsample(leaf, key, draw(st.integers(1, leaf.length)))
    if kind == "shuffle":
        return Shuffle(child(), key)
    if kind == "curriculum":
        leaf = Leaf(next(numbers), draw(st.integers(1, 60)))
        begin, window = draw(st.sampled_from(["easy", "hard"])), draw(st.integers(1, 70))
        return curriculum(leaf, key, draw(st.sampled_from(["score", "group"])), begin=begin, window=window)
    if kind == "block":
        return BlockShuffle(child(), key, draw(st.integers(1, 12)), draw(st.integers(1, 5)))
    if kind == "repeat":
        return Repeat(child(), draw(st.sampled_from([1, 2, 3, 1.5, "7/3"])))
    if kind == "length":
        return Repeat(child(False), length=draw(st.integers(1, 200)))
    if kind == "skip":
        inner = child(finite)
        last = (inner.length or 500) - 1
        first = st.integers(0, last - 1) if last else st.nothing()
        bounds = st.lists(first.flatmap(lambda a: st.tuples(st.just(a), st.integers(a + 1, last))), max_size=5)
        return Skip(inner, draw(bounds) if last else [])
    if kind == "endless":
        return Repeat(child())
    children = [child(finite or kind in ("concat", "epochized")) for _ in range(draw(st.integers(1, 4)))]
    if kind == "concat":
        return Concat(children)
    if kind == "epochized":
        return EpochizedBlend(children, [draw(st.sampled_from([1, 2, 1.5])) for _ in children])
    rows = st.lists(st.integers(0, 9), min_size=len(children), max_size=len(children)).filter(any)
    if kind == "staged":
        sizes = [*draw(st.lists(st.integers(1, 50), max_size=3)), draw(st.none() | st.integers(1, 50))]
        ramp = st.sampled_from([(), ("linear",), ("cosine",)])
        ramps = [draw(ramp) if number and size else () for number, size in enumerate(sizes)]
        node: Node = StagedBlend(children, [(size, draw(rows), *kind) for size, kind in zip(sizes, ramps, strict=True)])
    else:
        node = Blend(children, draw(rows), limit=draw(st.sampled_from([2**20, 5])))
    return node if node.length is not None or not finite else Repeat(node, length=draw(st.integers(1, 200)))


def check(node: Node) -> None:
    """The whole contract on one tree."""
    size = ENOUGH if node.length is None else node.length
    passes = 1 if node.length is None else 1 + min(2, ENOUGH // size)
    stream = np.arange(size * passes)
    epochs, positions = stream // size, stream % size
    located = node.locate(positions, epochs)

    assert located.source.dtype == np.int32 and located.index.dtype == located.epoch.dtype == np.int64
    assert len(located.source) == len(located.index) == len(located.epoch) == len(stream)
    triples = np.stack([located.source, located.index, located.epoch])
    assert np.unique(triples, axis=1).shape[1] == len(stream), "a sample came twice in one epoch"

    back, back_epochs = node.positions(located)
    assert np.array_equal(back, positions) and np.array_equal(back_epochs, epochs)

    for epoch in range(passes):  # one epoch for all positions is the same as one per position
        alone = node.locate(np.arange(size), epoch)
        part = slice(epoch * size, (epoch + 1) * size)
        assert np.array_equal(np.stack([alone.source, alone.index, alone.epoch]), triples[:, part])

    check_purity(node, positions, epochs, triples)
    check_leaves(node, len(stream), triples)


def check_purity(node: Node, positions: np.ndarray, epochs: np.ndarray, triples: np.ndarray) -> None:
    """The same answers in any order and any chunks."""
    order = np.random.default_rng(len(positions)).permutation(len(positions))
    for chunk in (1, 7, 500):
        for start in range(0, min(len(order), 3 * chunk), chunk):
            rows = order[start : start + chunk]
            some = node.locate(positions[rows], epochs[rows])
            assert np.array_equal(np.stack([some.source, some.index, some.epoch]), triples[:, rows])


def check_leaves(node: Node, total: int, triples: np.ndarray) -> None:
    """Indices lie in their leaf, and no leaf goes further than `reach` says."""
    stack = [node]
    while stack:
        part = stack.pop()
        stack.extend(part.children)
        if isinstance(part, Leaf):
            mine = triples[:, triples[0] == part.number]
            assert ((mine[1] >= 0) & (mine[1] < part.length)).all()
            assert mine[2].max(initial=-1) < reach(node, part.number, total)


@pytest.mark.parametrize("name", CASES)
def test_each_node_keeps_the_contract(name: str) -> None:
    check(CASES[name]())


@given(trees())
@settings(max_examples=examples(120), deadline=None)
def test_random_trees_keep_the_contract(node: Node) -> None:
    check(node)


@pytest.mark.parametrize(
    "name",
    [
        "concat",
        "blend",
        "blend that ends",
        "blend of many",
        "blend without a table",
        "blend with its own length",
        "staged blend",
        "staged blend that ends",
        "epochized blend",
    ],
)
def test_draws_are_exact(name: str) -> None:
    node = CASES[name]()
    if isinstance(node, Repeat):
        node = node.child
    size = node.length or 400
    stream = np.arange(2 * size)
    located = node.locate(stream % size, stream // size) if node.length else node.locate(stream)
    for total in (0, 1, 5, size - 1, size, size + 1, 2 * size):
        counts = [int(np.isin(located.source[:total], child.leaves).sum()) for child in node.children]
        assert list(node.draws(total)) == counts


@pytest.mark.parametrize("name", CASES)
def test_samples_that_do_not_occur_are_nowhere(name: str) -> None:
    node = CASES[name]()
    outside = Located(np.full(2, node.leaves[0], np.int32), np.array([-1, 10**6]), np.zeros(2, np.int64))
    assert node.positions(outside)[0].tolist() == [-1, -1]


def test_a_sample_left_out_by_a_subset_is_nowhere() -> None:
    node = Repeat(Shuffle(Subset(Leaf(0, 10), 2, 5), 9))
    asked = Located(np.zeros(10, np.int32), np.arange(10), np.full(10, 4))
    positions, _ = node.positions(asked)
    assert (positions >= 0).tolist() == [False, False, True, True, True, False, False, False, False, False]
    assert set(positions[2:5].tolist()) == {12, 13, 14}


def test_no_positions_give_no_samples() -> None:
    for name, make in CASES.items():
        node = make()
        located = node.locate(np.zeros(0, np.int64))
        assert len(located.source) == len(located.index) == len(located.epoch) == 0, name
        assert len(node.positions(located)[0]) == 0


HUGE = {
    "shuffle": lambda: Shuffle(Leaf(0, 2**63 - 1), 3),
    "block shuffle": lambda: BlockShuffle(Leaf(0, 2**63 - 1), 3),
    "block shuffle of long blocks": lambda: BlockShuffle(Leaf(0, 2**63 - 1), 3, 2**62 - 5, 3),
    "subset": lambda: Subset(Leaf(0, 2**63 - 1), 2**62, 2**63 - 1),
    "skip": lambda: Skip(Shuffle(Leaf(0, 2**63 - 1), 3), [(5, 2**62), (2**62 + 7, 2**62 + 8)]),
    "concat": lambda: Concat([Shuffle(Leaf(i, 2**61 - 1), i) for i in range(4)]),
    "repeat": lambda: Repeat(BlockShuffle(Leaf(0, 10**9 + 7), 3)),
    "blend": lambda: Blend([Repeat(BlockShuffle(Leaf(i, 10**9 + i), i)) for i in range(5)], [0.5, 0.2, 0.1, 0.1, 0.1]),
    "blend that ends": lambda: Blend([Leaf(0, 2**62), Shuffle(Leaf(1, 2**62), 5)], [0.5, 0.5]),
    "blend without a table": lambda: Blend(
        [Repeat(BlockShuffle(Leaf(i, 10**9 + i), i)) for i in range(5)], ["1e-9", "0.4", "0.299999999", "0.2", "0.1"]
    ),
    "staged blend": lambda: StagedBlend(
        [Repeat(BlockShuffle(Leaf(i, 10**9 + i), i)) for i in range(2)],
        [(2**61, [1, 2]), (2**61, [1, 0]), (None, [3, 1])],
    ),
    "epochized blend": lambda: EpochizedBlend([Shuffle(Leaf(i, 10**13 + i), i) for i in range(3)], [0.5, 2, "1/3"]),
}


@pytest.mark.parametrize("name", HUGE)
def test_huge_plans_stay_within_64_bits(name: str) -> None:
    node = HUGE[name]()
    end = 2**63 - 1 if node.length is None else node.length
    rng = np.random.default_rng(1)
    positions = np.unique(np.concatenate([[0, 1, end - 2, end - 1], rng.integers(0, end, 500)]))
    located = node.locate(positions)
    assert (located.index >= 0).all() and (located.epoch >= 0).all()
    back, epochs = node.positions(located)
    assert np.array_equal(back, positions) and not epochs.any()


def test_each_epoch_has_its_own_order() -> None:
    for node in (Shuffle(Leaf(0, 500), 3), BlockShuffle(Leaf(0, 500), 3, 16, 4)):
        orders = [node.locate(np.arange(500), epoch).index for epoch in range(5)]
        assert all((a == b).mean() < 0.1 for i, a in enumerate(orders) for b in orders[:i])


def test_a_block_shuffle_reads_a_few_blocks_at_a_time() -> None:
    node = BlockShuffle(Leaf(0, 100_000), 3, 100, 8)
    index = node.locate(np.arange(100_000)).index
    for window in index.reshape(-1, 800):
        assert len(np.unique(window // 100)) == 8
    assert len(np.unique(index[:800])) == 800
    assert (np.diff(index) == 1).mean() < 0.01


def test_what_cannot_be_built_is_refused() -> None:
    endless = Repeat(Leaf(0, 5))
    for build in (
        lambda: Shuffle(endless, 1),
        lambda: Concat([endless]),
        lambda: Subset(endless, 0, 1),
        lambda: Repeat(endless, 2),
        lambda: Leaf(0, 0),
        lambda: Repeat(Leaf(0, 5), 0),
        lambda: Repeat(Leaf(0, 5), length=-1),
        lambda: Subset(Leaf(0, 5), 3, 3),
        lambda: Subset(Leaf(0, 5), 0, 6),
        lambda: Subset(Concat(leaves(3, 3)), 0, 2),
        lambda: BlockShuffle(Leaf(0, 5), 1, 0, 1),
        lambda: Skip(Leaf(0, 5), [(0, 3), (2, 5)]),
        lambda: Skip(Leaf(0, 5), [(2, 2)]),
        lambda: Skip(Leaf(0, 5), [(4, 6)]),
        lambda: Concat([]),
        lambda: Concat([Leaf(0, 5), Leaf(0, 5)]),
        lambda: Concat(leaves(2**62, 2**62)),
        lambda: Repeat(Leaf(0, 2**40), 2**30),
        lambda: Blend(leaves(3, 3), [1]),
        lambda: Repeat(Leaf(0, 5), 0.1),
        lambda: Repeat(Leaf(0, 5), "half"),
        lambda: Repeat(endless, 0.5),
        lambda: StagedBlend(leaves(3, 3), []),
        lambda: StagedBlend(leaves(3, 3), [(3, [1])]),
        lambda: StagedBlend(leaves(3, 3), [(3, [0, 0])]),
        lambda: StagedBlend(leaves(3, 3), [(0, [1, 1])]),
        lambda: StagedBlend(leaves(3, 3), [(None, [1, 1]), (3, [1, 1])]),
        lambda: StagedBlend(leaves(3, 3), [(2**62, [1, 1]), (2**62, [1, 1])]),
        lambda: StagedBlend(leaves(3, 3), [(3, [1, 1])], length=4),
        lambda: StagedBlend(leaves(3, 3), [(3, [1, 1], "linear")]),
        lambda: EpochizedBlend([endless], [1]),
        lambda: EpochizedBlend(leaves(3, 3), [1]),
        lambda: EpochizedBlend(leaves(3, 3), [1, 0.1]),
        lambda: EpochizedBlend(leaves(2**50, 3), [1, 1]),
    ):
        with pytest.raises(ConfigError):
            build()


def test_few_shards_of_different_sizes_have_another_order_in_each_epoch() -> None:
    """All of them are read side by side, so that only their turns can differ; the stored order of each shard stays."""
    sizes = [1, 5, 17, 2]
    node = ShardShuffle(Leaf(0, sum(sizes)), derive(7, "shards"), sizes)
    epochs = [node.inward(np.arange(node.length), epoch)[0] for epoch in range(8)]
    assert all(sorted(order.tolist()) == list(range(node.length)) for order in epochs)
    assert len({tuple(order.tolist()) for order in epochs}) >= 6
    for order in epochs:
        place = np.argsort(order)
        for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True):
            assert (np.diff(place[end - size : end]) > 0).all()
        assert (np.sort(place[np.cumsum(sizes) - sizes]) == np.arange(4)).all(), "first samples come first"
