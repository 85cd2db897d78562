"""Base classes of nodes: pure, invertible maps from (position, epoch) to (source, index, epoch).

A node with a length has that many positions per epoch. Its epochs in sequence form an endless *stream*: position ``t``
of the stream is position ``t % length`` of epoch ``t // length``. A node without a length is endless and has epoch 0
only. The epoch of a leaf is the number of earlier occurrences of the sample. It is passed down from repetitions to
shuffles, so that each epoch has its own order, and it makes the map invertible: (source, index, epoch) identifies one
position.

There are two kinds of inner nodes: a `Wrapper` maps the positions of one child, and a `Junction` chooses among several
children. A new node only defines how its positions relate to its children's, in both directions; the tree is walked
here.

A node also declares the plain data that, with its children, determines its order: `Node.tag` and `Node.args`. States
store a tree as these (`feedmill.planning.resuming.outline`), and `Node.stream_prefix` compares them.

Trees of plans and recipes: as text, their leaves, and unique names for their sources.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset


IntArray = npt.NDArray[np.int64]

Epochs = int | IntArray
"""One epoch for all positions, or int64[n]. A single number is passed down the tree unchanged, which saves work."""

LONGEST = 2**63 - 1
"""Maximum length of a node."""

NOWHERE = -1
"""Position of a sample that does not occur."""

_FEW = 16


@dataclass(frozen=True, slots=True)
class Located:
    """The samples at positions.

    Attributes:
        source: number of the source, int32[n].
        index: number of the sample in the source, int64[n].
        epoch: number of earlier occurrences of the sample, int64[n].
    """

    source: npt.NDArray[np.int32]
    index: IntArray
    epoch: IntArray

    def __getitem__(self, rows: slice | IntArray) -> Located:
        """Return the selected rows."""
        return Located(self.source[rows], self.index[rows], self.epoch[rows])


class Node(ABC):
    """A pure index map. Immutable, and therefore thread-safe.

    Attributes:
        length: positions per epoch, or None if the node is endless.
        children: the child nodes.
        leaves: numbers of all leaves below, without duplicates.
        in_slices: whether rank *r* gets the *r*-th slice of a global batch, as in the tool whose order this is.
        scatters: whether consecutive positions are samples from anywhere in the children.
        group: samples that stay together (`nodes.groups`): every run of this many positions of the node's stream is one
            or several whole groups. 1 for single samples, None for groups that are not aligned in this way.
        tag: name of the class in the outlines of states, unique among all classes; None for abstract classes.
        args: names of the constructor's arguments that determine the order, as outlines list them. Each is an attribute
            with plain data, unless `arguments` returns something else. An argument ``key`` is a key of 64 bits.
        options: further arguments, and the values that outlines omit.
    """

    length: int | None
    children: tuple[Node, ...] = ()
    leaves: tuple[int, ...] = ()
    in_slices: ClassVar[bool] = False
    scatters: bool = False
    group: int | None = 1
    tag: ClassVar[str | None] = None
    args: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        own = cls.__dict__.get("tag")
        if own is not None and _CLASSES.setdefault(own, cls).__qualname__ != cls.__qualname__:
            raise TypeError(f"the nodes {_CLASSES[own].__name__} and {cls.__name__} have the same tag {own!r}")

    @classmethod
    def of(cls, children: Sequence[Node], arguments: Mapping[str, Any]) -> Node:
        """Return the node over `children` with `arguments` as returned by `arguments`, also after a trip through JSON.

        Raises:
            ConfigError: the arguments are impossible over these children.
        """
        make: Any = cls
        return make(children, **arguments)  # type: ignore[no-any-return]

    def arguments(self) -> dict[str, Any]:
        """Return what determines the order besides the children, as JSON data: the names of `args` and `options`."""
        return {name: getattr(self, name) for name in (*self.args, *self.options)}

    @property
    def bound(self) -> bool:
        """Whether positions can be located: not if the order follows from data that an outline has only a digest of.

        `over` returns such a node bound to its data.
        """
        return True

    @property
    def below(self) -> Sequence[Node]:
        """The children as the constructor takes them."""
        return self.children

    def over(self, children: Sequence[Node], sources: Sequence[Dataset | None]) -> Node:  # noqa: ARG002 - see ShardShuffle
        """Return this node over children whose data has grown.

        Args:
            children: in place of `below`.
            sources: the grown datasets by the numbers of the leaves; None where unknown.

        Raises:
            ConfigError: the node cannot be built over them.
        """
        return type(self).of(children, self.arguments())

    @property
    def stream(self) -> Node:
        """The node whose stream this node's stream is; another one than this only for repetitions."""
        return self

    def stream_prefix(self, other: Node, total: int) -> Sequence[tuple[Node, Node, int]] | None:
        """Return what must hold for the first `total` positions of this node's stream and another's to be the same.

        Returns:
            Tuples of a child of this node, a child of the other one, and how many positions of their streams must be
            the same; None if the arguments do not show it, which does not prove that the streams differ.
        """
        if type(self) is not type(other) or self.length != other.length or self.arguments() != other.arguments():
            return None
        if [child.length for child in self.children] != [child.length for child in other.children]:
            return None
        return list(zip(self.children, other.children, self.reach(total), strict=True))

    def paths(self, *, root: bool, repeated: bool) -> Sequence[Sequence[str]]:  # noqa: ARG002 - see the subclasses
        """Return for each child everything that determines at which positions it comes, as phrases for fingerprints.

        Args:
            root: whether nothing is above this node. The length of the whole plan does not change its order.
            repeated: whether the parent repeats this node.
        """
        return [[self.identity()]] * len(self.children)

    def locate(self, positions: IntArray, epoch: Epochs = 0) -> Located:
        """Return source, index and epoch of positions int64[n], each in ``[0, length)``."""
        source, index, epochs = self.follow(positions, epoch)
        shape = positions.shape
        return Located(
            np.full(shape, source, np.int32) if isinstance(source, int) else source,
            index,
            np.full(shape, epochs, np.int64) if isinstance(epochs, int) else epochs,
        )

    @abstractmethod
    def follow(self, positions: IntArray, epochs: Epochs) -> tuple[int | npt.NDArray[np.int32], IntArray, Epochs]:
        """Return what `locate` returns, with a single number for values that are the same for all positions."""

    @abstractmethod
    def positions(self, located: Located) -> tuple[IntArray, IntArray]:
        """Return the inverse of `locate`: positions and epochs, int64[n] each, of samples of leaves below this node.

        The position is -1 where the sample does not occur in any epoch of this node.
        """

    @abstractmethod
    def draws(self, total: int) -> Sequence[int]:
        """Return how many positions of each child's stream the first `total` positions of this stream use."""

    def reach(self, total: int) -> Sequence[int]:
        """Return for each child the length of the prefix of its stream that the first `total` positions stay within."""
        return self.draws(total)

    @property
    def first_group(self) -> int | None:
        """`group` of the first epoch alone, whose length need not be whole runs."""
        return self.group

    def whole(self, total: int) -> int:
        """Return the largest number of positions up to `total` after which this stream can be cut between groups."""
        return total

    def places(self, positions: IntArray, epochs: Epochs = 0) -> tuple[IntArray, IntArray]:  # noqa: ARG002
        """Return the place of the samples at positions, each in ``[0, length)``, in their groups: int64[n] both.

        The first is that in the stream, the second that in stored order. Both are 0 for single samples.
        """
        alone = np.zeros(len(positions), np.int64)
        return alone, alone

    def seams(self, start: int, stop: int) -> IntArray:
        """Return where passes and stages end inside ``(start, stop)`` of this node's stream, int64[n, 2], in any order.

        Each row is the range of positions at which the stream can be cut there: every sample of the old pass is before
        the cut, and none of the new one. The next pass of a source begins some positions later if it is drawn rarely.
        By default, the node's own epochs are the passes.
        """
        return borders([] if self.length is None else [self.length], self.length, start, stop)

    @abstractmethod
    def describe(self) -> str:
        """Return a short description for display."""

    def identity(self) -> str:
        """Return everything that determines the node's order, for fingerprints; limits are omitted."""
        return self.describe()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.describe()}>"

    def ungrouped(self, parent: str) -> None:
        """Raise `ConfigError` if this node has groups, for parents that would tear them apart."""
        if self.group != 1:
            raise ConfigError(
                f"{parent} would tear the groups of a source apart ({self.describe()})",
                kind="bad-recipe",
                fix="Remove it, or set 'groups' on the source that it is for.",
            )

    def described_groups(self) -> str:
        """Return the description of the first groups at or below this node, for messages."""
        below = [self]
        while below:
            part = below.pop(0)
            if part.tag == "groups":
                return part.describe()
            below += part.children
        return self.describe()

    def finite(self, parent: str) -> int:
        """Return the length, for parents that need a finite node.

        Raises:
            ConfigError: the node is endless.
        """
        if self.length is None:
            raise ConfigError(
                f"{parent} needs a finite source, this one is endless ({self.describe()})",
                kind="endless",
                fix="Bound it with 'samples' or 'epochs'.",
            )
        return self.length


_CLASSES: dict[str, type[Node]] = {}


def node_class(tag: str) -> type[Node]:
    """Return the class of nodes with a tag. Raises KeyError."""
    return _CLASSES[tag]


class Leaf(Node):
    """The samples of one source in stored order.

    Args:
        number: the source's number in the plan.
        length: its number of samples, at least one: an empty source would end any mixture that contains it.
    """

    length: int
    tag = "leaf"
    args = ("number", "length")

    def __init__(self, number: int, length: int) -> None:
        if length < 1:
            raise ConfigError("the source has no samples", kind="empty-source", fix="Remove it, or add samples.")
        self.number = number
        self.length = length
        self.leaves = (number,)

    @classmethod
    def of(cls, children: Sequence[Node], arguments: Mapping[str, Any]) -> Node:  # noqa: ARG003 - it has no children
        return cls(**arguments)

    def over(self, children: Sequence[Node], sources: Sequence[Dataset | None]) -> Node:  # noqa: ARG002
        dataset = sources[self.number]
        return self if dataset is None or len(dataset) == self.length else Leaf(self.number, len(dataset))

    def follow(self, positions: IntArray, epochs: Epochs) -> tuple[int, IntArray, Epochs]:
        return self.number, positions, epochs

    def positions(self, located: Located) -> tuple[IntArray, IntArray]:
        inside = (located.index >= 0) & (located.index < self.length)
        return np.where(inside, located.index, NOWHERE), located.epoch

    def draws(self, total: int) -> Sequence[int]:  # noqa: ARG002 - it has no children
        return ()

    def describe(self) -> str:
        return f"{self.length:,} samples"


class Wrapper(Node):
    """A node that rearranges, cuts or repeats one child."""

    def __init__(self, child: Node) -> None:
        self.child = child
        self.children = (child,)
        self.leaves = child.leaves

    @classmethod
    def of(cls, children: Sequence[Node], arguments: Mapping[str, Any]) -> Node:
        (child,) = children
        make: Any = cls
        return make(child, **arguments)  # type: ignore[no-any-return]

    @abstractmethod
    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        """Return positions and epochs of the child for those of this node."""

    @abstractmethod
    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        """Return positions and epochs of this node for those of the child; -1 if the child's position is not used."""

    @property
    def constants(self) -> tuple[int, ...] | None:
        """The integers that determine `inward`, for `inward_each`; None if it is not defined."""
        return None

    @classmethod
    def inward_each(cls, constants: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        """Return `inward` of positions int64[n] of several nodes of this class.

        Args:
            constants: int64[k, n], `constants` of the node of each position; 64 bits of a key as a signed number.
            positions, epochs: int64[n] each.
        """
        raise NotImplementedError

    def follow(self, positions: IntArray, epochs: Epochs) -> tuple[int | npt.NDArray[np.int32], IntArray, Epochs]:
        return self.child.follow(*self.inward(positions, epochs))

    def places(self, positions: IntArray, epochs: Epochs = 0) -> tuple[IntArray, IntArray]:
        if self.child.first_group == 1:
            return super().places(positions, epochs)
        return self.child.places(*self.inward(positions, epochs))

    def positions(self, located: Located) -> tuple[IntArray, IntArray]:
        inner, epochs = self.child.positions(located)
        lost = inner < 0
        outer, epochs = self.outward(np.where(lost, 0, inner), epochs)
        return np.where(lost, NOWHERE, outer), epochs

    def draws(self, total: int) -> Sequence[int]:
        return (total,)


class _Alike:
    """Children of a junction that differ in constants only: one pass follows the positions of all of them.

    Args:
        layers: the wrappers of each child from the outermost on, of the same classes for all children.
        leaves: the leaf of each child.
    """

    def __init__(self, layers: Sequence[Sequence[Wrapper]], leaves: Sequence[Leaf]) -> None:
        self._sources = np.array([leaf.number for leaf in leaves], np.int32)
        self._layers = [
            (type(layer[0]), np.array([_signed(node.constants or ()) for node in layer], np.int64).T.copy())
            for layer in zip(*layers, strict=True)
        ]

    def follow(
        self, which: npt.NDArray[Any], positions: IntArray, epochs: IntArray
    ) -> tuple[npt.NDArray[np.int32], IntArray, IntArray]:
        """Return `Node.follow` for positions of children given by their number here."""
        for kind, constants in self._layers:
            positions, epochs = kind.inward_each(constants[:, which], positions, epochs)
        return self._sources[which], positions, epochs


def _signed(constants: Sequence[int]) -> list[int]:
    return [number - (1 << 64) if number > LONGEST else number for number in constants]


def _layers(node: Node) -> tuple[list[Wrapper], Node]:
    """Return the wrappers around a node that can be followed together with others, and the first node without."""
    found = []
    while isinstance(node, Wrapper) and node.constants is not None:
        found.append(node)
        node = node.child
    return found, node


class Junction(Node):
    """A node that chooses among several children.

    Raises:
        ConfigError: the same leaf is below two children, so the inverse would not be unique.
    """

    def __init__(self, children: Sequence[Node]) -> None:
        self.children = tuple(children)
        self.leaves = tuple(leaf for child in children for leaf in child.leaves)
        if len(set(self.leaves)) != len(self.leaves):
            raise ConfigError("the same leaf occurs twice in the plan", kind="bad-plan", fix="Number each leaf once.")
        home = np.zeros(max(self.leaves, default=-1) + 1, np.int64)
        for number, child in enumerate(self.children):
            home[list(child.leaves)] = number
        self._home = home
        self._together: tuple[list[_Alike], IntArray, IntArray] | None = None

    def paths(self, *, root: bool, repeated: bool) -> Sequence[Sequence[str]]:  # noqa: ARG002
        whole = self.identity()
        return [[f"number {number} of {whole}"] for number in range(len(self.children))]

    @abstractmethod
    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[npt.NDArray[Any], IntArray, Epochs]:
        """Return the number of the child, and the position and epoch in it, for each position."""

    @abstractmethod
    def outward(self, child: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        """Return positions and epochs of this node for those of its children; -1 if a child's position is not used."""

    def child_seams(self, start: int, stop: int) -> IntArray:
        """Return `seams` of the children whose streams this node continues, as positions of this node."""
        found = [np.empty((0, 2), np.int64)]
        for number, (low, high) in enumerate(zip(self.draws(start), self.draws(stop), strict=True)):
            inner = self.children[number].seams(int(low), int(high)) if high - low > 1 else found[0]
            if len(inner):
                found.append(
                    np.stack([self._stream(number, inner[:, 0] - 1) + 1, self._stream(number, inner[:, 1])], 1)
                )
        return np.concatenate(found)

    def _stream(self, number: int, inner: IntArray) -> IntArray:
        """Return the positions in this node's stream for those in a child's stream, all of which occur."""
        size = self.children[number].length
        epochs, rest = (np.zeros_like(inner), inner) if size is None else np.divmod(inner, size)
        own, own_epochs = self.outward(np.full(len(inner), number, np.int64), rest, epochs)
        return own if self.length is None else own_epochs * self.length + own

    def follow(self, positions: IntArray, epochs: Epochs) -> tuple[int | npt.NDArray[np.int32], IntArray, Epochs]:
        choice, inner, inner_epochs = self.inward(positions, epochs)
        source = np.empty(len(positions), np.int32)
        index = np.empty(len(positions), np.int64)
        epoch = np.empty(len(positions), np.int64)
        alone: Any = slice(None)
        if len(positions) > _FEW < len(self.children):
            kinds, kind, place = self._alike()
            kind_of = kind[choice]
            for number, alike in enumerate(kinds):
                rows = np.flatnonzero(kind_of == number)
                if len(rows):
                    found = alike.follow(place[choice[rows]], inner[rows], _each(inner_epochs, rows))
                    source[rows], index[rows], epoch[rows] = found
            alone = np.flatnonzero(kind_of < 0) if kinds else alone
        for number, rows in _groups(choice[alone], len(self.children)):
            rows = rows if isinstance(alone, slice) else alone[rows]
            source[rows], index[rows], epoch[rows] = self.children[number].follow(inner[rows], at(inner_epochs, rows))
        return source, index, epoch

    def _alike(self) -> tuple[list[_Alike], IntArray, IntArray]:
        """Return kinds of many similar children, the kind of each child or -1, and its place in the kind."""
        if self._together is None:
            shapes: dict[tuple[type, ...], list[int]] = {}
            for number, child in enumerate(self.children):
                layers, last = _layers(child)
                if type(last) is Leaf:
                    shapes.setdefault(tuple(map(type, layers)), []).append(number)
            many = [numbers for numbers in shapes.values() if len(numbers) > _FEW]
            kind, place = np.full((2, len(self.children)), -1, np.int64)
            kinds: list[_Alike] = []
            for numbers in many:
                kind[numbers], place[numbers] = len(kinds), np.arange(len(numbers))
                below = [_layers(self.children[number]) for number in numbers]
                kinds.append(_Alike([layers for layers, _ in below], [leaf for _, leaf in below]))  # type: ignore[misc]
            self._together = kinds, kind, place
        return self._together

    def places(self, positions: IntArray, epochs: Epochs = 0) -> tuple[IntArray, IntArray]:
        found = np.zeros((2, len(positions)), np.int64)
        if any(child.first_group != 1 for child in self.children):
            choice, inner, inner_epochs = self.inward(positions, epochs)
            for number, rows in _groups(choice, len(self.children)):
                if self.children[number].first_group != 1:
                    found[:, rows] = self.children[number].places(inner[rows], at(inner_epochs, rows))
        return found[0], found[1]

    def positions(self, located: Located) -> tuple[IntArray, IntArray]:
        choice = self._home[located.source]
        inner = np.empty(len(choice), np.int64)
        epochs = np.empty(len(choice), np.int64)
        for number, rows in _groups(choice, len(self.children)):
            part = Located(located.source[rows], located.index[rows], located.epoch[rows])
            inner[rows], epochs[rows] = self.children[number].positions(part)
        lost = inner < 0
        outer, epochs = self.outward(choice, np.where(lost, 0, inner), epochs)
        return np.where(lost, NOWHERE, outer), epochs


def borders(marks: Sequence[int], length: int | None, start: int, stop: int) -> IntArray:
    """Return `Node.seams` at fixed positions of an epoch, each above 0, which recur in every epoch of this length."""
    places = np.array(marks, np.int64)
    if length is not None:
        rounds = np.arange(start // length, stop // length + 1, dtype=np.int64)
        places = (rounds[:, None] * length + places).ravel()
    inside = places[(places > start) & (places < stop)]
    return np.stack([inside, inside], axis=1)


def at(epochs: Epochs, rows: npt.NDArray[np.intp]) -> Epochs:
    """Return the epochs of the selected positions."""
    return epochs if isinstance(epochs, int) else epochs[rows]


def _each(epochs: Epochs, rows: npt.NDArray[np.intp]) -> IntArray:
    """Return the epoch of each selected position."""
    return np.full(len(rows), epochs, np.int64) if isinstance(epochs, int) else epochs[rows]


def split(values: IntArray, size: int) -> tuple[Epochs, IntArray]:
    """Return quotient and remainder by `size`; the quotient is one number if it is the same for all values.

    Values are interpreted as unsigned, which is faster and allows sums beyond 2^63.
    """
    if not len(values):
        return 0, values
    unsigned = values.view(np.uint64)
    first, last = int(unsigned.min()) // size, int(unsigned.max()) // size
    if first == last:
        return first, values if first == 0 else (unsigned - np.uint64(first * size)).view(np.int64)
    quotient = unsigned // np.uint64(size)
    return quotient.view(np.int64), (unsigned - quotient * np.uint64(size)).view(np.int64)


def split_each(values: IntArray, sizes: IntArray) -> tuple[IntArray, IntArray]:
    """Return quotients and remainders as `split` does, with a size for each value, as arrays int64[n]."""
    unsigned, divisors = values.view(np.uint64), sizes.view(np.uint64)
    quotient = unsigned // divisors
    return quotient.view(np.int64), (unsigned - quotient * divisors).view(np.int64)


def _groups(choice: npt.NDArray[Any], children: int) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield each chosen child with the rows that belong to it."""
    if children <= _FEW:
        for number in range(children):
            rows = np.flatnonzero(choice == number)
            if len(rows):
                yield number, rows
        return
    order = np.argsort(choice, kind="stable")
    ends = np.cumsum(np.bincount(choice, minlength=children))
    for number in np.unique(choice).tolist():
        yield number, order[ends[number - 1] if number else 0 : ends[number]]


_MOST, _SHOWN = 12, 3
Tree = tuple[str, Sequence["Tree"]]
"""A label and its subtrees."""


def render(tree: Tree) -> str:
    """Return the tree with one line per label.

    >>> print(render(("blend", [("docs", []), ("code", [("shuffle", [])])])))
    blend
    ├─ docs
    └─ code
       └─ shuffle
    """
    return "\n".join(_lines(tree))


def _lines(tree: Tree) -> Iterator[str]:
    label, branches = tree
    yield label
    for number, branch in enumerate(branches):
        last = number == len(branches) - 1
        first, *rest = _lines(branch)
        yield ("└─ " if last else "├─ ") + first
        yield from (("   " if last else "│  ") + line for line in rest)


def leaves_of(node: Node) -> Iterator[Leaf]:
    """Yield the leaves below a node, from the first to the last."""
    if isinstance(node, Leaf):
        yield node
    for child in node.children:
        yield from leaves_of(child)


def tree_of(node: Node, names: Sequence[str]) -> Tree:
    """Return one line per source or junction, which includes the nodes that rearrange it."""
    words = []
    while not isinstance(node, Leaf | Junction):
        words.append(node.describe())
        node = node.children[0]
    if isinstance(node, Leaf):
        return ", ".join([f"{names[node.number]}: {node.describe()}", *reversed(words)]), []
    branches = [tree_of(child, names) for child in node.children]
    if len(branches) > _MOST and len({label.partition("[")[0] for label, _ in branches}) == 1:  # cells of one dataset
        branches = [*branches[:_SHOWN], (f"{len(branches) - _SHOWN:,} more cells", [])]
        return ", ".join([node.describe().partition(" ")[0], *reversed(words)]), branches
    return ", ".join([node.describe(), *reversed(words)]), branches


def unique_names(wanted: Sequence[str]) -> list[str]:
    """Return the names, with ``-2``, ``-3``, ... appended to duplicates.

    >>> unique_names(["docs", "code", "docs"])
    ['docs', 'code', 'docs-2']
    """
    taken: dict[str, int] = {}  # name -> the last suffix that was tried
    names = []
    for name in wanted:
        name = free = name or "source"
        while free in taken:
            taken[name] += 1
            free = f"{name}-{taken[name]}"
        taken[free] = 1
        names.append(free)
    return names
