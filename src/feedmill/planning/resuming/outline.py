"""Outlines: descriptions of a plan in about thirty bytes per source, with which a state compares it with another plan.

An outline holds the tree of nodes, and for each source its name, number of samples and a digest of its data. Nodes are
pure functions of their arguments (`Node.args`) and of these numbers, so the tree can be rebuilt from an outline without
the data, and its positions can be located. It can also be rebuilt over data that grew (`Outline.over`).

As text, it has two parts: the tree, the names and the numbers as compressed JSON, and then the incompressible values, 8
bytes for each digest and for the key of each shuffle.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import WeakKeyDictionary

from feedmill.errors import ConfigError
from feedmill.planning.nodes import Leaf, Node, Skip
from feedmill.planning.nodes.base import node_class
from feedmill.planning.nodes.skip import Gaps
from feedmill.planning.orders import ORDERS_WITH_NODES
from feedmill.planning.packing.options import with_later
from feedmill.planning.permutation import ORDER_VERSION
from feedmill.planning.resuming.changes import ways

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset

_LARGEST = 1 << 26
_LONGEST_NAME, _KEPT_OF_NAME = 32, 14
_KEY = "key"


class Ordered(Protocol):
    """Attributes of a `Plan` that resuming uses; the plan is above this module."""

    @property
    def node(self) -> Node:
        """The root of the tree."""

    @property
    def sources(self) -> Sequence[Dataset]:
        """The datasets."""

    @property
    def names(self) -> Sequence[str]:
        """Their names."""

    @property
    def seed(self) -> int:
        """The seed of the order."""

    @property
    def length(self) -> int | None:
        """The number of positions; None if it never ends."""

    @property
    def skip(self) -> Gaps | None:
        """Positions that the skip list removes."""

    @property
    def fingerprint(self) -> str:
        """Hash of the whole plan."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """The components of the fingerprint."""

    def source(self, source: int | str, /) -> Dataset:
        """Return a source's dataset by number or name."""


class OrderedRows(Ordered, Protocol):
    """Attributes of a `PackedPlan` that resuming uses besides."""

    documents: Any
    stream: Any
    packing: Any
    map: Any

    def widths(self, rows: Any, /) -> Any:
        """Return the tokens in each row, if it is full."""


def packed(plan: Ordered) -> OrderedRows | None:
    """Return the plan if its positions are rows of packed documents, otherwise None."""
    return cast("OrderedRows", plan) if hasattr(plan, "documents") else None


@dataclass(frozen=True)
class Rows:
    """Packing of the documents of a plan into rows.

    Attributes:
        order: what determines which tokens are in which row, from `Packing.first_order`.
        pad: the padding token.
        documents: documents in the stream; None for an endless stream.
        later: other widths of rows, and after how many documents they begin; see `Packing.later`.
    """

    order: str
    pad: int
    documents: int | None
    later: tuple[tuple[int, int], ...] = ()


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
    """

    version: int
    seed: int
    names: tuple[str, ...]
    counts: tuple[int, ...]
    digests: tuple[str, ...]
    node: Node
    rows: Rows | None = None

    @classmethod
    def of(cls, plan: Ordered) -> Outline:
        """Return the outline of a plan. Its names are not shortened."""
        own = packed(plan)
        parts = plan.fingerprints
        digests = []
        for name in plan.names:
            data = parts[f"data of {name}"].split(" samples ", 1)[1]
            digests.append(data_digest(data, parts.get(f"lengths of {name}", "")))
        rows = None
        if own is not None:
            rows = Rows(own.packing.first_order(), own.packing.pad, own.documents.length, own.packing.later)
        counts = tuple(len(dataset) for dataset in plan.sources)
        node = plan.node.child if isinstance(plan.node, Skip) and own is None else plan.node
        return cls(ORDER_VERSION, plan.seed, tuple(plan.names), counts, tuple(digests), node, rows)

    def over(self, plan: Ordered, grown: Collection[str]) -> Outline:
        """Return this outline with its tree over the data of a plan, in which the sources `grown` have more samples.

        Raises:
            ConfigError: the tree cannot be built over the grown data.
        """
        now = dict(zip(plan.names, Outline.of(plan).digests, strict=True))
        same = [name in grown or now.get(name) == digest for name, digest in zip(self.names, self.digests, strict=True)]
        sources = [plan.source(name) if known else None for name, known in zip(self.names, same, strict=True)]
        counts = [
            count if dataset is None else len(dataset) for count, dataset in zip(self.counts, sources, strict=True)
        ]
        return replace(self, node=_grown(self.node, sources), counts=tuple(counts))

    def parts(self) -> dict[str, str]:
        """Return the components of the order, like `Plan.fingerprints`, but with digests of the data."""
        parts = {"order": f"version {self.version}", "seed": str(self.seed)}
        paths = dict(ways(self.node))
        for number, name in enumerate(self.names):
            parts[f"source {name}"] = paths[number]
            parts[f"data of {name}"] = f"{self.counts[number]} samples {self.digests[number]}"
        if self.rows is not None:
            parts |= {"packing": with_later(self.rows.order, self.rows.later), "padding": str(self.rows.pad)}
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


_texts: WeakKeyDictionary[Ordered, str | None] = WeakKeyDictionary()


def outline_text(plan: Ordered) -> str | None:
    """Return the outline of a plan as text, cached per plan; None if a node's class declares no `tag`."""
    if plan not in _texts:
        _texts[plan] = _encode(Outline.of(plan))
    return _texts[plan]


def _encode(outline: Outline) -> str | None:
    writer = _Writer()
    try:
        tree = writer.node(outline.node)
    except _UntaggedNode:
        return None
    content: dict[str, Any] = {
        "order": outline.version,
        "seed": outline.seed,
        "counts": outline.counts,
        "tree": tree,
        "names": [short_name(name) for name in outline.names],
    }
    if outline.rows is not None:
        later = [outline.rows.later] if outline.rows.later else []
        content["rows"] = [outline.rows.order, outline.rows.pad, outline.rows.documents, *later]
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
        node = _Reader(counts, keys).node(tree)
        if sorted(node.leaves) != list(range(len(names))):
            raise ValueError("the tree has other leaves")
        rows = _rows_of(*content["rows"]) if "rows" in content else None
        version, seed = int(content["order"]), int(content["seed"])
        return Outline(version, seed, tuple(map(str, names)), tuple(counts), tuple(digests), node, rows)
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        StopIteration,
        RecursionError,
        ArithmeticError,
        AttributeError,
        zlib.error,
    ) as error:
        raise _damaged() from error
    except ConfigError as error:
        raise _damaged() from error


def _rows_of(order: str, pad: int, documents: int | None, later: Sequence[Sequence[int]] = ()) -> Rows:
    return Rows(order, pad, documents, tuple((int(start), int(width)) for start, width in later))


def _damaged() -> ConfigError:
    return ConfigError(
        "the loader's state is corrupt at: tree",
        kind="bad-state",
        fix="Load a state returned by this loader's state_dict(), or start without one.",
    )


class _UntaggedNode(Exception):
    """The tree has a node whose class has no `tag` of its own."""


class _Writer:
    """Writer of nodes as JSON: ``[tag, argument, ..., {option: value}, child, ...]``.

    Keys of shuffles are listed separately; a leaf is its number, and null if that is one above the last leaf's.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._leaf = 0

    def node(self, node: Node) -> Any:
        if isinstance(node, Leaf):
            number, self._leaf = (None if node.number == self._leaf else node.number), node.number + 1
            return number
        kind = type(node)
        tag, arguments = kind.__dict__.get("tag"), node.arguments()
        if tag is None:
            raise _UntaggedNode
        if _KEY in arguments:
            self.keys.append(f"{arguments[_KEY]:016x}")
        options = {name: arguments[name] for name, default in kind.options.items() if arguments[name] != default}
        listed = [arguments[name] for name in kind.args if name != _KEY]
        return [tag, *listed, *([options] if options else []), *map(self.node, node.below)]


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
        tag, *rest = tree
        kind = _class_of(tag)
        arguments: dict[str, Any] = dict(kind.options)
        for name in kind.args:
            arguments[name] = int(next(self._keys), 16) if name == _KEY else rest.pop(0)
        if rest and isinstance(rest[0], dict):
            arguments |= {name: value for name, value in rest.pop(0).items() if name in kind.options}
        return kind.of([self.node(child) for child in rest], arguments)


def _class_of(tag: str) -> type[Node]:
    """Return the class of nodes with a tag. Raises KeyError."""
    try:
        return node_class(tag)
    except KeyError:
        for module in ORDERS_WITH_NODES:  # few plans need them
            import_module(module)
        return node_class(tag)


def _grown(node: Node, sources: Sequence[Dataset | None]) -> Node:
    """Return a tree over data that grew; parts whose data did not grow stay the same objects, unless they need it.

    Args:
        node: the tree.
        sources: the datasets by the numbers of the leaves; None for those that are no longer the same.

    Raises:
        ConfigError: the tree cannot be built over them.
    """
    children = [_grown(child, sources) for child in node.below]
    same = all(a is b for a, b in zip(children, node.below, strict=True))
    if not isinstance(node, Leaf) and same and node.bound:
        return node
    return node.over(children, sources)
