"""A skip list: some positions are left out, and those that follow move up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import LONGEST, NOWHERE, Epochs, IntArray, Node, Wrapper


class Skip(Wrapper):
    """Its child without some positions, the same ones in each epoch.

    Everything before the first of them stays where it was, and the order of all others is kept. Ranges, not
    positions, are stored: both directions are one binary search among them.

    Args:
        child: where to leave positions out.
        ranges: ``(first, stop)`` of the child's positions; in any order, they may overlap.
        said: what was asked for, in words that do not depend on where the plan ends; for people and fingerprints.

    Attributes:
        firsts, stops: int64[k], the ranges in order, those that touch made one.
        count: positions left out, of each epoch.

    Raises:
        ConfigError: a range is empty or outside the child, or nothing would be left.
    """

    def __init__(self, child: Node, ranges: Iterable[tuple[int, int]], said: str = "") -> None:
        super().__init__(child)
        self.firsts, self.stops = _merged(list(ranges), LONGEST if child.length is None else child.length)
        self._removed = np.concatenate(([0], np.cumsum(self.stops - self.firsts))).astype(np.int64)
        self._gaps = self.firsts - self._removed[:-1]
        self.count = int(self._removed[-1])
        self.length = None if child.length is None else child.length - self.count
        if self.length == 0:
            raise ConfigError(
                "the skip list leaves nothing of the plan", kind="bad-skip", fix="Skip fewer positions or keys."
            )
        self.said = said or f"{self.count:,} position{'' if self.count == 1 else 's'}"

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        return positions + self._removed[np.searchsorted(self._gaps, positions, side="right")], epochs

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        behind = np.searchsorted(self.firsts, positions, side="right")
        last_stop = np.concatenate(([0], self.stops))[behind]
        return np.where(positions < last_stop, NOWHERE, positions - self._removed[behind]), epochs

    def reach(self, total: int) -> Sequence[int]:
        if self.length is None or self.child.length is None:
            return (self.after(total),)
        epochs, rest = divmod(total, self.length)
        return (epochs * self.child.length + self.after(rest),)

    def skipped(self, before: int) -> int:
        """How many of the child's first `before` positions are left out."""
        behind = int(np.searchsorted(self.firsts, before))
        return int(self._removed[behind]) - max(int(self.stops[behind - 1]) - before, 0) if behind else 0

    def nth_skipped(self, ranks: IntArray) -> IntArray:
        """The child's positions that are left out, by their number from 0, int64[n]."""
        which = np.searchsorted(self._removed, ranks, side="right") - 1
        positions: IntArray = self.firsts[which] + ranks - self._removed[which]
        return positions

    def after(self, total: int) -> int:
        """The child's position right after the last of the first `total` positions."""
        return total + int(self._removed[np.searchsorted(self._gaps, total - 1, side="right")]) if total else 0

    def describe(self) -> str:
        return f"skip {self.said}"


def _merged(ranges: Sequence[tuple[int, int]], length: int) -> tuple[IntArray, IntArray]:
    """The ranges in order, those that overlap or touch made one: int64[k] firsts and stops."""
    for first, stop in ranges:
        if not 0 <= first < stop <= length:
            reason = "is empty" if first == stop else f"does not lie in its {length:,} positions"
            raise ConfigError(
                f"the range [{first:,}, {stop:,}) to skip {reason}",
                kind="bad-skip",
                fix=f"Give a first position and an end with 0 <= first < end <= {length}.",
            )
    pairs = np.array(sorted(ranges), np.int64).reshape(-1, 2)
    reached = np.maximum.accumulate(pairs[:, 1])
    begins = np.flatnonzero(np.concatenate(([True], pairs[1:, 0] > reached[:-1]))[: len(pairs)])
    ends = np.append(begins[1:], len(pairs))[: len(begins)] - 1
    return pairs[begins, 0], reached[ends]
