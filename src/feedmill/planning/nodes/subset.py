"""Some of one source's samples: a range of them (`Subset`), or a random choice (`Subsample`), as for a proxy run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import NOWHERE, Epochs, IntArray, Node, Wrapper
from feedmill.planning.permutation import permute


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


class Subsample(Wrapper):
    """The same `size` positions of every epoch of its child, in ascending order.

    They are the first `size` images of one permutation of the child's positions, which only the key and the child's
    length determine. So a larger subsample with the same key contains a smaller one. Their numbers are computed when
    the first position is located, and take 8 bytes each.

    Args:
        child: a finite node with one source.
        key: 64 bits from `permutation.derive`.
        size: number of positions.

    Raises:
        ConfigError: the size is less than 1 or more than the child has, or the child has several sources.
    """

    length: int
    tag = "subsample"
    args = ("key", "size")

    def __init__(self, child: Node, key: int, size: int) -> None:
        super().__init__(child)
        self.available = child.finite("a subsample")
        if len(child.leaves) != 1:
            raise ConfigError(
                "a subsample needs a single source", kind="bad-recipe", fix="Draw one from each source separately."
            )
        if not 1 <= size <= self.available:
            raise ConfigError(
                f"a subsample of {size:,} from {self.available:,} samples is impossible",
                kind="bad-recipe",
                fix=f"Draw at least 1 and at most {self.available}.",
            )
        self.key, self.size, self.length = key, size, size

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "numbers"}

    @cached_property
    def numbers(self) -> IntArray:
        """The positions of the child, int64[size], ascending."""
        chosen = permute(np.arange(self.size, dtype=np.int64), self.available, self.key)
        chosen.sort()
        return chosen

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        return self.numbers[positions], epochs

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        place = np.minimum(np.searchsorted(self.numbers, positions), self.size - 1)
        return np.where(self.numbers[place] == positions, place, NOWHERE), epochs

    def reach(self, total: int) -> Sequence[int]:
        return (-(-total // self.length) * self.available,)

    def describe(self) -> str:
        return f"{self.size:,} drawn for the proxy"

    def identity(self) -> str:
        return f"subsample of {self.size:,} key {self.key:016x}"
