"""Some samples of one source, drawn once: what a proxy run reads of a source."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import NOWHERE, Epochs, IntArray, Node, Wrapper
from feedmill.planning.permutation import permute


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
