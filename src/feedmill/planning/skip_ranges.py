"""Ranges of positions that are skipped, and the numbers of those that stay: the arithmetic of skip lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError

IntArray = npt.NDArray[np.int64]

NOWHERE = -1


class Gaps:
    """Whole numbers from 0 without some ranges; those that follow a range move up.

    Everything before the first range keeps its number, and all others keep their order. Ranges, not numbers, are
    stored: both directions are one binary search among them.

    Args:
        ranges: ``(first, stop)``; in any order, they may overlap.
        length: the ranges lie in ``[0, length)``.
        said: what was asked for, in words that do not depend on where the plan ends; for display and fingerprints.

    Attributes:
        firsts, stops: int64[k], the ranges in order, those that touch made one.
        count: numbers left out.

    Raises:
        ConfigError: a range is empty or outside, or nothing would be left.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]], length: int, said: str = "") -> None:
        self.firsts, self.stops = _merged(list(ranges), length)
        self._removed = np.concatenate(([0], np.cumsum(self.stops - self.firsts))).astype(np.int64)
        self._gaps = self.firsts - self._removed[:-1]
        self.count = int(self._removed[-1])
        if self.count == length:
            raise ConfigError(
                "the skip list leaves nothing of the plan", kind="bad-skip", fix="Skip fewer positions or keys."
            )
        word = digest_of(self.firsts, self.stops)
        self.said = said or f"{self.count:,} position{'' if self.count == 1 else 's'} ({word})"

    def inward(self, positions: IntArray) -> IntArray:
        """Return where the numbers that stay stood with nothing left out, int64[n]."""
        found: IntArray = positions + self._removed[np.searchsorted(self._gaps, positions, side="right")]
        return found

    def outward(self, positions: IntArray) -> IntArray:
        """Return the inverse of `inward`; -1 for those left out."""
        behind = np.searchsorted(self.firsts, positions, side="right")
        last_stop = np.concatenate(([0], self.stops))[behind]
        return np.where(positions < last_stop, NOWHERE, positions - self._removed[behind])

    def after(self, total: int) -> int:
        """Return where the number right after the first `total` that stay stood."""
        return total + int(self._removed[np.searchsorted(self._gaps, total - 1, side="right")]) if total else 0

    def skipped(self, before: int) -> int:
        """Return how many of the first `before` numbers are skipped."""
        behind = int(np.searchsorted(self.firsts, before))
        return int(self._removed[behind]) - max(int(self.stops[behind - 1]) - before, 0) if behind else 0

    def digest(self, before: int) -> str:
        """Return 16 hexadecimal digits for what is skipped of the first `before` numbers."""
        inside = self.firsts < before
        return digest_of(self.firsts[inside], np.minimum(self.stops[inside], before))

    def nth(self, ranks: IntArray) -> IntArray:
        """Return the numbers left out, by their own number from 0, int64[n]."""
        which = np.searchsorted(self._removed, ranks, side="right") - 1
        positions: IntArray = self.firsts[which] + ranks - self._removed[which]
        return positions


def digest_of(firsts: IntArray, stops: IntArray) -> str:
    """Return 16 hexadecimal digits for ranges, int64[k] each."""
    return blake2b(np.stack([firsts, stops]).astype("<i8").tobytes(), digest_size=8).hexdigest()


def _merged(ranges: Sequence[tuple[int, int]], length: int) -> tuple[IntArray, IntArray]:
    """Return the ranges in order, those that overlap or touch made one: int64[k] firsts and stops."""
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
