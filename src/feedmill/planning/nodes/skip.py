"""Skip lists: a node without some positions of its child."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from feedmill.planning.nodes.base import LONGEST, Epochs, IntArray, Node, Wrapper
from feedmill.planning.skip_ranges import Gaps


class Skip(Wrapper):
    """Node that skips some positions of its child, the same ones in each epoch; later positions move up. See `Gaps`.

    Args:
        child: the node whose positions are skipped.
        ranges: ``(first, stop)`` of the child's positions, in any order; they may overlap.
        text: text of the skip list, independent of the plan's length.

    Attributes:
        gaps: the ranges and their arithmetic.

    Raises:
        ConfigError: a range is empty or outside the child, or no position would remain.
    """

    tag = "skip"
    args = ("ranges", "text")

    def __init__(self, child: Node, ranges: Iterable[tuple[int, int]], text: str = "") -> None:
        super().__init__(child)
        self.gaps = Gaps(ranges, LONGEST if child.length is None else child.length, text)
        self.length = None if child.length is None else child.length - self.gaps.count

    def arguments(self) -> dict[str, Any]:
        ranges = zip(self.gaps.firsts.tolist(), self.gaps.stops.tolist(), strict=True)
        return {"ranges": [list(each) for each in ranges], "text": self.gaps.text}

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        return self.gaps.inward(positions), epochs

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        return self.gaps.outward(positions), epochs

    def reach(self, total: int) -> Sequence[int]:
        if self.length is None or self.child.length is None:
            return (self.gaps.after(total),)
        epochs, rest = divmod(total, self.length)
        return (epochs * self.child.length + self.gaps.after(rest),)

    def seams(self, start: int, stop: int) -> IntArray:
        inner = self.child.seams(self.gaps.after(start), self.gaps.after(stop))
        less = [self.gaps.skipped(place) for place in inner.ravel().tolist()]
        own = inner - np.array(less, np.int64).reshape(-1, 2)
        return own[(own[:, 0] > start) & (own[:, 1] < stop)]

    def describe(self) -> str:
        return f"skip {self.gaps.text}"
