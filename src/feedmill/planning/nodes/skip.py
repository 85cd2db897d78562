"""Skip lists: skipped ranges of positions with the renumbering of the others, and a node without these positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.kernels.bounds import bounds_of
from feedmill.planning.nodes.base import LONGEST, Epochs, IntArray, Node, Wrapper

NOWHERE = -1


class Gaps:
    """The numbers from 0 without some ranges; numbers after a range move up.

    Numbers before the first range do not change, and the others keep their order. Only ranges are stored, so each
    direction is one binary search.

    Args:
        ranges: ``(first, stop)``, in any order; they may overlap.
        length: the ranges must lie in ``[0, length)``.
        text: text of the skip list, independent of the plan's length; for display and fingerprints.

    Attributes:
        firsts, stops: int64[k], the sorted ranges, with adjacent and overlapping ones merged.
        count: how many numbers are skipped.

    Raises:
        ConfigError: a range is empty or outside, or no number would remain.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]], length: int, text: str = "") -> None:
        self.firsts, self.stops = _merged(list(ranges), length)
        self._removed = bounds_of(self.stops - self.firsts)
        self._gaps = self.firsts - self._removed[:-1]
        self.count = int(self._removed[-1])
        if self.count == length:
            raise ConfigError(
                "the skip list removes the whole plan", kind="bad-skip", fix="Skip fewer positions or keys."
            )
        digest = digest_of(self.firsts, self.stops)
        self.text = text or f"{self.count:,} position{'' if self.count == 1 else 's'} ({digest})"

    def inward(self, positions: IntArray) -> IntArray:
        """Return the original numbers of renumbered ones, int64[n]."""
        found: IntArray = positions + self._removed[np.searchsorted(self._gaps, positions, side="right")]
        return found

    def outward(self, positions: IntArray) -> IntArray:
        """Return the inverse of `inward`; -1 for skipped numbers."""
        behind = np.searchsorted(self.firsts, positions, side="right")
        last_stop = np.concatenate(([0], self.stops))[behind]
        return np.where(positions < last_stop, NOWHERE, positions - self._removed[behind])

    def after(self, total: int) -> int:
        """Return the original number that follows the first `total` remaining ones."""
        return total + int(self._removed[np.searchsorted(self._gaps, total - 1, side="right")]) if total else 0

    def skipped(self, before: int) -> int:
        """Return how many of the first `before` numbers are skipped."""
        behind = int(np.searchsorted(self.firsts, before))
        return int(self._removed[behind]) - max(int(self.stops[behind - 1]) - before, 0) if behind else 0

    def digest(self, before: int) -> str:
        """Return a hash of the ranges skipped among the first `before` numbers: 16 hexadecimal digits."""
        inside = self.firsts < before
        return digest_of(self.firsts[inside], np.minimum(self.stops[inside], before))

    def nth(self, ranks: IntArray) -> IntArray:
        """Return the skipped numbers with these ranks, counted from 0 among the skipped ones: int64[n]."""
        which = np.searchsorted(self._removed, ranks, side="right") - 1
        positions: IntArray = self.firsts[which] + ranks - self._removed[which]
        return positions


def digest_of(firsts: IntArray, stops: IntArray) -> str:
    """Return a hash of ranges, int64[k] each: 16 hexadecimal digits."""
    from hashlib import blake2b

    return blake2b(np.stack([firsts, stops]).astype("<i8").tobytes(), digest_size=8).hexdigest()


def _merged(ranges: Sequence[tuple[int, int]], length: int) -> tuple[IntArray, IntArray]:
    """Return the ranges sorted, with adjacent and overlapping ones merged: int64[k] firsts and stops."""
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
        self.group = child.group
        if child.first_group != 1:
            self._check_groups(child)
            group, bounds = child.first_group, np.concatenate([self.gaps.firsts, self.gaps.stops])
            self.group = None if group is None or (bounds % group).any() else group

    def _check_groups(self, child: Node) -> None:
        """Raise `ConfigError` if a skipped range is not whole groups."""
        for first, stop in zip(self.gaps.firsts.tolist(), self.gaps.stops.tolist(), strict=True):
            begin, end = child.whole(first), stop
            while child.whole(end) < stop and end != child.length:
                end += 1
            if (begin, end) != (first, stop):
                raise ConfigError(
                    f"the skip list removes the positions [{first:,}, {stop:,}) from groups of samples that stay"
                    " together",
                    kind="bad-skip",
                    fix=f"Skip whole groups, here [{begin}, {end}), or substitute bad samples (on_error='substitute').",
                )

    def whole(self, total: int) -> int:
        inner = self.child.whole(self.gaps.after(total))
        return min(total, inner - self.gaps.skipped(inner))

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


def dropped(skip: Skip, before: int, sources: int, chunk: int = 65_536) -> list[int] | None:
    """Return how many samples of each source are skipped among the child's first `before` positions.

    Return None if there are too many to locate one by one.
    """
    if skip.gaps.skipped(before) > 1 << 24:
        return None
    counts = np.zeros(sources, np.int64)
    for start in range(0, skip.gaps.skipped(before), chunk):
        ranks = np.arange(start, min(start + chunk, skip.gaps.skipped(before)))
        counts += np.bincount(skip.child.locate(skip.gaps.nth(ranks)).source, minlength=sources)
    return [int(count) for count in counts]
