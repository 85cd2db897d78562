"""Outlines: descriptions of a plan in about thirty bytes per source, with which a state compares it with another plan.

An outline holds the tree of nodes, and for each source its name, number of samples and a digest of its data. Nodes are
pure functions of their arguments and of these numbers, so the tree can be rebuilt from an outline without the data, and
its positions can be located. It can also be rebuilt with other numbers: the same recipe over data that grew.

As text, it has two parts: the tree, the names and the numbers as compressed JSON, and then the incompressible values, 8
bytes for each digest and for the key of each shuffle.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from math import lcm
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from feedmill.errors import ConfigError
from feedmill.planning.mixing.blend import PERIOD_LIMIT
from feedmill.planning.nodes import (
    Blend,
    BlockShuffle,
    Concat,
    EpochizedBlend,
    Leaf,
    Node,
    Repeat,
    Shuffle,
    Skip,
    StagedBlend,
    Subset,
)
from feedmill.planning.orders.modalities import ModalitiesSampler
from feedmill.planning.orders.nanoset import Nanoset
from feedmill.planning.permutation import ORDER_VERSION
from feedmill.planning.resuming.changes import ways

if TYPE_CHECKING:
    from feedmill.planning.packing.packed import PackedPlan
    from feedmill.planning.plan import Plan

_LARGEST = 1 << 26
_LONGEST_NAME, _KEPT_OF_NAME = 32, 14
_LARGEST_COMMON = 10**18


@dataclass(frozen=True)
class Rows:
    """How the documents of a plan are packed into rows.

    Attributes:
        order: what determines which tokens are in which row, from `Packing.order`.
        pad: the padding token.
        documents: documents in the stream; None for an endless stream.
    """

    order: str
    pad: int
    documents: int | None


@dataclass(frozen=True)
class Outline:
    """Everything that determines the order of a plan.

    Attributes:
        version: version of the order's arithmetic.
        seed: seed of the plan.
        names: names of the sources; long ones are shortened by `short_name`.
        counts: samples of each source.
        digests: digests of each source's data, and for rows of its lengths in tokens: 16 hexadecimal digits each.
        node: the root of the tree, without the skip list.
        rows: the packing, for a packed plan.
        build: rebuilds the tree with other counts; None for an outline that was not read from text.
    """

    version: int
    seed: int
    names: tuple[str, ...]
    counts: tuple[int, ...]
    digests: tuple[str, ...]
    node: Node
    rows: Rows | None = None
    build: Callable[[Sequence[int]], Node] | None = None

    @classmethod
    def of(cls, plan: Plan) -> Outline:
        """Return the outline of a plan. Its names are not shortened."""
        packed = cast("PackedPlan", plan) if hasattr(plan, "documents") else None
        parts = plan.fingerprints
        digests = []
        for name in plan.names:
            data = parts[f"data of {name}"].split(" samples ", 1)[1]
            digests.append(data_digest(data, parts.get(f"lengths of {name}", "")))
        rows = None
        if packed is not None:
            rows = Rows(packed.packing.order(), packed.packing.pad, packed.documents.length)
        counts = tuple(len(dataset) for dataset in plan.sources)
        node = plan.node.child if isinstance(plan.node, Skip) and packed is None else plan.node
        return cls(ORDER_VERSION, plan.seed, tuple(plan.names), counts, tuple(digests), node, rows)

    def parts(self) -> dict[str, str]:
        """Return the components of the order, like `Plan.fingerprints`, but with digests of the data."""
        parts = {"order": f"version {self.version}", "seed": str(self.seed)}
        paths = dict(ways(self.node))
        for number, name in enumerate(self.names):
            parts[f"source {name}"] = paths[number]
            parts[f"data of {name}"] = f"{self.counts[number]} samples {self.digests[number]}"
        if self.rows is not None:
            parts |= {"packing": self.rows.order, "padding": str(self.rows.pad)}
            if "best_fit" in self.rows.order or "last drop" not in self.rows.order:
                documents = self.rows.documents
                parts["documents"] = "endless" if documents is None else f"{documents:,}"
        return parts


def data_digest(fingerprint: str, lengths: str = "") -> str:
    """Return a digest of the fingerprint of a source's data, and for rows of its lengths: 16 hexadecimal digits."""
    text = f"{fingerprint}\n{lengths}" if lengths else fingerprint
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def short_name(name: str) -> str:
    """Return a name as stored in outlines: long names are cut and end with a digest.

    >>> short_name("docs"), short_name("a" * 100)
    ('docs', 'aaaaaaaaaaaaaa~f819b6f87666')
    """
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_KEPT_OF_NAME]}~{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"


_texts: WeakKeyDictionary[Plan, str | None] = WeakKeyDictionary()


def outline_text(plan: Plan) -> str | None:
    """Return the outline of a plan as text, cached per plan; None if its tree has unsupported nodes."""
    if plan not in _texts:
        _texts[plan] = _encode(Outline.of(plan))
    return _texts[plan]


def _encode(outline: Outline) -> str | None:
    writer = _Writer()
    try:
        tree = writer.node(outline.node)
    except _UnknownNode:
        return None
    content: dict[str, Any] = {
        "order": outline.version,
        "seed": outline.seed,
        "counts": outline.counts,
        "tree": tree,
        "names": [short_name(name) for name in outline.names],
    }
    if outline.rows is not None:
        content["rows"] = [outline.rows.order, outline.rows.pad, outline.rows.documents]
    text = json.dumps(content, separators=(",", ":"))
    columns = bytes.fromhex("".join([*outline.digests, *writer.keys]))
    return ".".join(base64.b85encode(part).decode() for part in (zlib.compress(text.encode(), 9), columns))


def read_outline(text: str) -> Outline:
    """Return the outline of a text from `outline_text`, with its tree built.

    Raises:
        ConfigError: the text is damaged.
    """
    try:
        packed, _, columns = text.partition(".")
        unpacker = zlib.decompressobj()
        content = json.loads(unpacker.decompress(base64.b85decode(packed), _LARGEST))
        names, counts, tree = content["names"], content["counts"], content["tree"]
        column = base64.b85decode(columns).hex()
        words = [column[at : at + 16] for at in range(0, len(column), 16)]
        digests, keys = words[: len(names)], words[len(names) :]
        if len(names) != len(counts) or len(digests) != len(names) or not all(type(count) is int for count in counts):
            raise ValueError("the columns are not of one length")

        def build(counts: Sequence[int]) -> Node:
            return _Reader(counts, keys).node(tree)

        node = build(counts)
        if sorted(node.leaves) != list(range(len(names))):
            raise ValueError("the tree has other leaves")
        rows = Rows(*content["rows"]) if "rows" in content else None
        version, seed = int(content["order"]), int(content["seed"])
        return Outline(version, seed, tuple(map(str, names)), tuple(counts), tuple(digests), node, rows, build)
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        StopIteration,
        RecursionError,
        OverflowError,
        zlib.error,
    ) as error:
        raise _damaged() from error
    except ConfigError as error:
        raise _damaged() from error


def _damaged() -> ConfigError:
    return ConfigError(
        "the loader's state is corrupt at: tree",
        kind="bad-state",
        fix="Load a state returned by this loader's state_dict(), or start without one.",
    )


class _UnknownNode(Exception):
    """The tree has a node that an outline cannot describe."""


class _Writer:
    """Writer of nodes as JSON. Keys of shuffles are listed separately; a leaf numbered one above the last is null."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._leaf = 0

    def node(self, node: Node) -> Any:
        kind = type(node)
        if isinstance(node, Leaf):
            number, self._leaf = (None if node.number == self._leaf else node.number), node.number + 1
            return number
        if isinstance(node, Shuffle) and kind in (Shuffle, BlockShuffle):
            self.keys.append(f"{node.key:016x}")
        head = self._head(node)
        children = node.children
        if isinstance(node, EpochizedBlend):
            children = tuple(child.children[0] for child in children)  # its constructor adds the repetitions
        return [*head, *map(self.node, children)]

    def _head(self, node: Node) -> list[Any]:
        kind = type(node)
        if isinstance(node, Subset) and kind is Subset:
            return ["subset", node.start, node.start + node.length]
        if isinstance(node, BlockShuffle) and kind is BlockShuffle:
            return ["block", node.block, node.window]
        if kind is Shuffle:
            return ["shuffle"]
        if isinstance(node, Repeat) and kind is Repeat:
            return ["repeat", None if node.times is None else str(node.times), node.length if not node.times else None]
        if kind is Concat:
            return ["concat"]
        if isinstance(node, Blend) and kind is Blend and node.limit == PERIOD_LIMIT:
            return ["blend", _with_runs(node), _weights(node.schedule.asked)]
        if isinstance(node, StagedBlend) and kind is StagedBlend:
            parts = zip(node.stages.samples, node.stages.schedules, strict=True)
            return ["stages", _with_runs(node), [[samples, _weights(part.asked)] for samples, part in parts]]
        if isinstance(node, EpochizedBlend) and kind is EpochizedBlend:
            return ["epochs", node.asked_length, [str(times) for times in node.repetitions]]
        if isinstance(node, Nanoset) and kind is Nanoset:
            return ["nanoset", node.seed, node.weights.tolist()]
        if isinstance(node, ModalitiesSampler) and kind is ModalitiesSampler:
            return ["modalities", sampler_arguments(node)]
        raise _UnknownNode


class _Reader:
    """The inverse of `_Writer`: builds nodes from JSON, over sources with the given counts."""

    def __init__(self, counts: Sequence[int], keys: Sequence[str]) -> None:
        self._counts = counts
        self._keys: Iterator[str] = iter(keys)
        self._leaf = 0

    def node(self, tree: Any) -> Node:
        if not isinstance(tree, list):
            number = self._leaf if tree is None else int(tree)
            self._leaf = number + 1
            return Leaf(number, self._counts[number])
        kind, *given = tree
        key = int(next(self._keys), 16) if kind in ("shuffle", "block") else 0
        arguments, below = given[: _ARGUMENTS[kind]], given[_ARGUMENTS[kind] :]
        children = [self.node(child) for child in below]
        if kind == "concat":
            return Concat(children)
        if kind == "blend":
            (length, run), weights = _without_runs(arguments[0]), arguments[1]
            return Blend(children, _fractions(weights), length=length, run_length=run)
        if kind == "stages":
            (length, run), stages = _without_runs(arguments[0]), arguments[1]
            parts = [(samples, _fractions(each)) for samples, each in stages]
            return StagedBlend(children, parts, length=length, run_length=run)
        if kind == "epochs":
            length, repetitions = arguments
            return EpochizedBlend(children, _fractions(repetitions), length=length)
        if kind == "nanoset":
            seed, weights = arguments
            return Nanoset(children, weights, seed, normalize=False)
        (child,) = children
        if kind == "subset":
            return Subset(child, *arguments)
        if kind == "shuffle":
            return Shuffle(child, key)
        if kind == "block":
            return BlockShuffle(child, key, *arguments)
        if kind == "repeat":
            times, length = arguments
            return Repeat(child, None if times is None else Fraction(times), length=length)
        return ModalitiesSampler(child, **arguments[0])


_ARGUMENTS = {
    "subset": 2,
    "shuffle": 0,
    "block": 2,
    "repeat": 2,
    "concat": 0,
    "blend": 2,
    "stages": 2,
    "epochs": 2,
    "nanoset": 2,
    "modalities": 1,
}


def _with_runs(node: Blend | StagedBlend) -> int | list[int | None] | None:
    """Return the length as given, together with the run length if it is above 1."""
    return node.asked_length if node.run_length == 1 else [node.asked_length, node.run_length]


def _without_runs(given: Any) -> tuple[int | None, int]:
    return (given[0], int(given[1])) if isinstance(given, list) else (given, 1)


def sampler_arguments(node: ModalitiesSampler) -> dict[str, Any]:
    """Return the arguments that determine the order of a sampler, except its child."""
    names = ("ranks", "shuffle", "seed", "epoch", "drop_last", "skip", "batch_size")
    return {name: getattr(node, name) for name in names}


def _weights(shares: Sequence[Fraction]) -> list[int] | list[str]:
    """Return shares as integers if these are short, otherwise as fractions."""
    common = lcm(*(share.denominator for share in shares))
    if common <= _LARGEST_COMMON:
        return [int(share * common) for share in shares]
    return [str(share) for share in shares]


def _fractions(weights: Sequence[int | str]) -> list[Fraction]:
    return [Fraction(weight) for weight in weights]
