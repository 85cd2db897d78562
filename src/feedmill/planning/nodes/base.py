"""What every node of a plan is: a pure map from (position, epoch) to (source, index, epoch), and back.

A node with a length has that many positions in each epoch, and epoch after epoch its positions are a *stream* without
end: position ``t`` of the stream is position ``t % length`` of epoch ``t // length``. A node without a length is
endless and has epoch 0 only. The epoch of a leaf says how often the sample was given before; it flows down from
repetitions to shuffles, so that each epoch has its own order, and it makes the map invertible: (source, index, epoch)
names one position.

Two shapes cover all nodes: a `Wrapper` maps positions of one child; a `Junction` chooses among several. A new node
says how its own positions relate to its children's, in both directions; walking the tree is done here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError

IntArray = npt.NDArray[np.int64]

Epochs = int | IntArray
"""One epoch for all positions, or int64[n]. A single number is kept as such down the tree, where it saves work."""

LONGEST = 2**63 - 1
"""Most positions that a node can have."""

NOWHERE = -1
"""In place of a position: this sample does not occur."""

_FEW = 16


@dataclass(frozen=True, slots=True)
class Located:
    """Where positions lead.

    Attributes:
        source: which source, int32[n].
        index: which of its samples, int64[n].
        epoch: how often that sample came before, int64[n].
    """

    source: npt.NDArray[np.int32]
    index: IntArray
    epoch: IntArray

    def __getitem__(self, rows: slice | IntArray) -> Located:
        """Return some of them."""
        return Located(self.source[rows], self.index[rows], self.epoch[rows])


class Node(ABC):
    """A pure index map; immutable, so threads share it freely.

    Attributes:
        length: positions per epoch, or None if the node is endless.
        children: the nodes below.
        leaves: numbers of the leaves below, each once.
        in_slices: whether rank *r* is meant to get the *r*-th slice of a global batch, as in the tool whose order this
            is.
    """

    length: int | None
    children: tuple[Node, ...] = ()
    leaves: tuple[int, ...] = ()
    in_slices: ClassVar[bool] = False

    def locate(self, positions: IntArray, epoch: Epochs = 0) -> Located:
        """Source, index and epoch of positions int64[n], each in ``[0, length)``."""
        source, index, epochs = self.follow(positions, epoch)
        shape = positions.shape
        return Located(
            np.full(shape, source, np.int32) if isinstance(source, int) else source,
            index,
            np.full(shape, epochs, np.int64) if isinstance(epochs, int) else epochs,
        )

    @abstractmethod
    def follow(self, positions: IntArray, epochs: Epochs) -> tuple[int | npt.NDArray[np.int32], IntArray, Epochs]:
        """`locate` with what is the same for all positions left as one number."""

    @abstractmethod
    def positions(self, located: Located) -> tuple[IntArray, IntArray]:
        """Return the inverse of `locate`: positions and epochs, int64[n] each, of samples of leaves below this node.

        The position is -1 where the sample does not occur in any epoch of this node.
        """

    @abstractmethod
    def draws(self, total: int) -> Sequence[int]:
        """Return how many positions of each child's stream the first `total` positions of this node's stream use."""

    def reach(self, total: int) -> Sequence[int]:
        """Return how far into each child's stream the first `total` positions reach: no later position is used."""
        return self.draws(total)

    @abstractmethod
    def describe(self) -> str:
        """Return the node in a few words, for display."""

    def identity(self) -> str:
        """Return all of the node that decides its order, for fingerprints; what only bounds it is skipped."""
        return self.describe()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.describe()}>"

    def finite(self, parent: str) -> int:
        """Return the length, for parents that need one."""
        if self.length is None:
            raise ConfigError(
                f"{parent} needs a source that ends, and this one is endless ({self.describe()})",
                kind="endless",
                fix="Bound it with 'samples' or 'epochs'.",
            )
        return self.length


class Leaf(Node):
    """The samples of one source in stored order.

    Args:
        number: the source's number in the plan.
        length: its samples, at least one: an empty source would stop whatever it is mixed into.
    """

    length: int

    def __init__(self, number: int, length: int) -> None:
        if length < 1:
            raise ConfigError("the source has no samples", kind="empty-source", fix="Leave it out, or fill it.")
        self.number = number
        self.length = length
        self.leaves = (number,)

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

    @abstractmethod
    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        """Positions and epochs of the child, from those of this node."""

    @abstractmethod
    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        """Positions and epochs of this node, from those of the child; -1 where the child's position is not used."""

    def follow(self, positions: IntArray, epochs: Epochs) -> tuple[int | npt.NDArray[np.int32], IntArray, Epochs]:
        return self.child.follow(*self.inward(positions, epochs))

    def positions(self, located: Located) -> tuple[IntArray, IntArray]:
        inner, epochs = self.child.positions(located)
        lost = inner < 0
        outer, epochs = self.outward(np.where(lost, 0, inner), epochs)
        return np.where(lost, NOWHERE, outer), epochs

    def draws(self, total: int) -> Sequence[int]:
        return (total,)


class Junction(Node):
    """A node that chooses among several children.

    Raises:
        ConfigError: the same leaf is below two children; the way back would not be unique.
    """

    def __init__(self, children: Sequence[Node]) -> None:
        self.children = tuple(children)
        self.leaves = tuple(leaf for child in children for leaf in child.leaves)
        if len(set(self.leaves)) != len(self.leaves):
            raise ConfigError("the same leaf stands twice in the plan", kind="leaf-twice", fix="Number each leaf once.")
        home = np.zeros(max(self.leaves, default=-1) + 1, np.int64)
        for number, child in enumerate(self.children):
            home[list(child.leaves)] = number
        self._home = home

    @abstractmethod
    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[npt.NDArray[Any], IntArray, Epochs]:
        """Number of the child, and position and epoch in it, of each position."""

    @abstractmethod
    def outward(self, child: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        """Positions and epochs of this node from those of its children; -1 where a child's position is not used."""

    def follow(self, positions: IntArray, epochs: Epochs) -> tuple[int | npt.NDArray[np.int32], IntArray, Epochs]:
        choice, inner, inner_epochs = self.inward(positions, epochs)
        source = np.empty(len(positions), np.int32)
        index = np.empty(len(positions), np.int64)
        epoch = np.empty(len(positions), np.int64)
        for number, rows in _groups(choice, len(self.children)):
            source[rows], index[rows], epoch[rows] = self.children[number].follow(inner[rows], at(inner_epochs, rows))
        return source, index, epoch

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


def at(epochs: Epochs, rows: npt.NDArray[np.intp]) -> Epochs:
    """Return the epochs of some positions."""
    return epochs if isinstance(epochs, int) else epochs[rows]


def split(values: IntArray, size: int) -> tuple[Epochs, IntArray]:
    """Quotient and remainder by `size`; the quotient as one number where it is the same for all.

    Values are taken as unsigned, which is faster and lets sums reach beyond 2^63.
    """
    if not len(values):
        return 0, values
    unsigned = values.view(np.uint64)
    first, last = int(unsigned.min()) // size, int(unsigned.max()) // size
    if first == last:
        return first, values if first == 0 else (unsigned - np.uint64(first * size)).view(np.int64)
    quotient = unsigned // np.uint64(size)
    return quotient.view(np.int64), (unsigned - quotient * np.uint64(size)).view(np.int64)


def _groups(choice: npt.NDArray[Any], children: int) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield the positions that each child has, children without any left out."""
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
