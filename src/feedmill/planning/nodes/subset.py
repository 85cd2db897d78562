"""A range of one source's samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import NOWHERE, Epochs, IntArray, Node, Wrapper


class Subset(Wrapper):
    """Positions ``[start, stop)`` of each epoch of its child.

    Raises:
        ConfigError: the range is empty or outside the child, or the child has several sources: the samples in the range
            would then depend on how they are mixed.
    """

    length: int
    tag = "subset"
    args = ("start", "stop")

    def __init__(self, child: Node, start: int, stop: int) -> None:
        super().__init__(child)
        child.ungrouped("a subset")
        size = child.finite("a subset")
        if len(child.leaves) != 1:
            raise ConfigError(
                "a subset needs a single source", kind="bad-recipe", fix="Set a subset on each source separately."
            )
        if not 0 <= start < stop <= size:
            reason = "is empty" if start == stop else f"does not lie in its {size:,} samples"
            raise ConfigError(
                f"the subset [{start:,}, {stop:,}) {reason}",
                kind="bad-recipe",
                fix=f"Give a first number and an end with 0 <= first < end <= {size}.",
            )
        self.start, self.stop, self.length, self._size = start, stop, stop - start, size

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        return positions + self.start, epochs

    @property
    def constants(self) -> tuple[int, ...]:
        return (self.start,)

    @classmethod
    def inward_each(cls, constants: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        return positions + constants[0], epochs

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        own = positions - self.start
        return np.where((own >= 0) & (own < self.length), own, NOWHERE), epochs

    def reach(self, total: int) -> Sequence[int]:
        return (-(-total // self.length) * self._size,)

    def stream_prefix(self, other: Node, total: int) -> Sequence[tuple[Node, Node, int]] | None:
        if isinstance(other, Subset) and self.start == other.start and total <= min(self.length, other.length):
            return [(self.child, other.child, self.start + total)]
        return super().stream_prefix(other, total)

    def describe(self) -> str:
        return f"subset [{self.start:,}, {self.start + self.length:,})"
