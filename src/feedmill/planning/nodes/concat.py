"""Concatenation of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.kernels.bounds import bounds_of
from feedmill.planning.nodes.base import LONGEST, Epochs, IntArray, Junction, Node, borders
from feedmill.planning.nodes.repeat import too_long


def common_group(children: Sequence[Node], sizes: Sequence[int] = ()) -> int | None:
    """Return the samples of a run that is whole groups of each of several nodes; None if there is no such number.

    Args:
        sizes: multiples of which the run must divide.
    """
    groups = [child.group for child in children]
    known = [group for group in groups if group is not None]
    together = lcm(*known)
    return None if len(known) < len(groups) or any(size % together for size in sizes) else together


class Concat(Junction):
    """Node that has all positions of the first child, then all of the second, and so on, in each epoch."""

    length: int
    tag = "concat"

    def __init__(self, children: Sequence[Node]) -> None:
        super().__init__(children)
        if not children:
            raise ConfigError("there is nothing to concatenate", kind="empty-source")
        self._sizes = [child.finite("a concatenation") for child in children]
        self.length = sum(self._sizes)
        if self.length > LONGEST:
            raise too_long(self.length)
        self._starts = bounds_of(self._sizes[:-1])
        self.group = common_group(self.children, self._sizes)
        self._ends = self._starts + np.array(self._sizes, np.int64)

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[npt.NDArray[np.int64], IntArray, Epochs]:
        child = np.searchsorted(self._ends, positions, side="right")
        return child, positions - self._starts[child], epochs

    def outward(self, child: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        return positions + self._starts[child], epochs

    def whole(self, total: int) -> int:
        epochs, rest = divmod(total, self.length)
        if not rest:
            return total
        number = int(np.searchsorted(self._ends, rest))  # the child in which the cut is, or after which
        before = epochs * self._sizes[number]
        inside = self.children[number].whole(before + rest - int(self._starts[number])) - before
        return epochs * self.length + int(self._starts[number]) + inside

    def draws(self, total: int) -> Sequence[int]:
        epochs, rest = divmod(total, self.length)
        return [
            epochs * size + min(max(rest - int(start), 0), size)
            for size, start in zip(self._sizes, self._starts, strict=True)
        ]

    def stream_prefix(self, other: Node, total: int) -> Sequence[tuple[Node, Node, int]] | None:
        """Compare the children as far as they are reached; after the first epoch, all of them."""
        if not isinstance(other, Concat) or total > min(self.length, other.length):
            return super().stream_prefix(other, total)
        pairs = []
        for child, child_of_other, size, size_of_other in zip(
            self.children, other.children, self._sizes, other._sizes, strict=False
        ):
            used = min(total, size)
            if used > size_of_other or (total > size and size != size_of_other):
                return None
            pairs.append((child, child_of_other, used))
            total -= used
            if not total:
                break
        return pairs

    def paths(self, *, root: bool, repeated: bool) -> Sequence[Sequence[str]]:  # noqa: ARG002
        return [[f"number {number} of a row"] for number in range(len(self.children))]

    def seams(self, start: int, stop: int) -> IntArray:
        ends = self._ends.tolist()
        return np.concatenate([self.child_seams(start, stop), borders(ends, self.length, start, stop)])

    def describe(self) -> str:
        return "concat"
