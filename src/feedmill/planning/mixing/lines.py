"""Exact blends without a table: a schedule for weights whose common denominator is too large to store a period.

For two sources, ``round(m * p / q)`` of the first ``m`` samples belong to the first source: a rounded line. More
sources form a binary tree in which each node divides its samples between its two sides by its own line. Source and
ordinal of a position take one division per level on the way down; the inverse takes one per level on the way up. Counts
are integers up to 2^50, so the mixture does not drift, and every period has its exact counts.

The error of a line is at most 1/2, plus the error of its parent scaled by its share. So a source of weight ``w`` has an
error of at most half the sum of ``w / w_a`` over itself and its ancestors ``a`` below the root. For up to four sources
(two levels), this is below 1. For more sources, a tree with a bound below 1 is searched: among all trees for up to
eight sources, and otherwise among those over the last eight branches of Huffman's tree. If none is found, `deadlines`
has a schedule that stays below 1, except for sources with less than a billionth of the blend. Otherwise Huffman's tree
is used. In it, a node weighs at least as much as the two below it on any path, so the sum is less than that of the
inverse Fibonacci numbers, 3.36: **the error of a source is always below 1.68 samples**, for any number of sources.
`Lines.bound` is the bound of the actual tree: below 1 in most cases, rarely above 1.3.

Sources: Beatty 1926 (rounded lines), Huffman 1952 (the tree).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

LINES_LIMIT = 2**50
"""Longest period for which a quotient estimated in floating point can be corrected in 64 bits."""

_TRY_ALL = 8
"""Maximum number of branches for which all trees are tried: 3,025 divisions of subsets, a few milliseconds."""
_ROUNDING = 1e-9
"""More than rounding changes the sum of a few dozen numbers between 0 and 1."""
_HIGHEST = 2.0**63 - 2.0**10
"""The largest floating-point number below 2^63."""


class Branch(NamedTuple):
    """A source, or two branches that share their samples; `weight` counts its draws per period."""

    weight: int
    source: int
    sides: tuple[Branch, Branch] | None = None


class Lines:
    """A periodic order of sources like `blend.Schedule`, computed instead of looked up.

    Args:
        asked: the requested weights, normalized.
        counts: draws per source and period; together at most 2^50.

    Attributes:
        period: samples after which the schedule repeats.
        bound: maximum distance of a source from its share by `counts` in samples.
    """

    def __init__(self, asked: Sequence[Fraction], counts: Sequence[int]) -> None:
        self.asked = tuple(asked)
        self.counts = np.array(counts, np.int64)
        self.period = sum(counts)
        if not 0 < self.period <= LINES_LIMIT:
            raise ValueError(f"a period of {self.period} samples is not between 1 and 2^50")
        self._root = best_tree({i: int(count) for i, count in enumerate(counts) if count})
        self._paths = dict(_paths(self._root, ()))
        self.bound = worst(self._root)
        self._kind = np.min_scalar_type(len(counts) - 1)

    @property
    def realized(self) -> tuple[Fraction, ...]:
        """Return the weights that the counts realize; equal to `asked` unless their common denominator exceeds 2^50."""
        return tuple(Fraction(int(count), self.period) for count in self.counts)

    def at(self, positions: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
        """Return source and ordinal in the source's stream for positions int64[n]."""
        source = np.empty(len(positions), self._kind)
        ordinal = np.empty(len(positions), np.int64)
        stack: list[tuple[Branch, Any, IntArray]] = [(self._root, slice(None), positions)]
        while stack:
            branch, rows, draws = stack.pop()
            if branch.sides is None:
                source[rows], ordinal[rows] = branch.source, draws
                continue
            left, right = branch.sides
            before, rest = divide(draws, left.weight, branch.weight, branch.weight // 2)
            goes_left = rest >= right.weight  # the line increases by one with the next sample
            for side, chosen in ((left, goes_left), (right, ~goes_left)):
                some = np.flatnonzero(chosen)
                if len(some):
                    inner = before[some] if side is left else draws[some] - before[some]
                    stack.append((side, some if isinstance(rows, slice) else rows[some], inner))
        return source, ordinal

    def positions(self, source: npt.NDArray[Any], ordinal: IntArray) -> IntArray:
        """Return the positions, int64[n], of draws given by source and ordinal; the inverse of `at`."""
        positions = np.empty(len(ordinal), np.int64)
        order = np.argsort(source, kind="stable")
        ends = np.cumsum(np.bincount(source, minlength=len(self.counts)))
        for number in np.unique(source).tolist():
            rows = order[ends[number - 1] if number else 0 : ends[number]]
            draws = ordinal[rows]
            for part, whole, start in self._paths[number]:
                draws, _ = divide(draws, whole, part, start)
            positions[rows] = draws
        return positions

    def position(self, source: int, ordinal: int) -> int:
        """Return the position of one draw, as an integer of any size."""
        for part, whole, start in self._paths[source]:
            ordinal = (ordinal * whole + start) // part
        return ordinal

    def drawn(self, total: int) -> list[int]:
        """Return the number of draws of each source in the first `total` positions."""
        counts = [0] * len(self.counts)
        stack = [(self._root, total)]
        while stack:
            branch, count = stack.pop()
            if branch.sides is None:
                counts[branch.source] = count
                continue
            left, right = branch.sides
            first = (count * left.weight + branch.weight // 2) // branch.weight
            stack += [(left, first), (right, count - first)]
        return counts


def divide(values: IntArray, factor: int, divisor: int, start: int) -> tuple[IntArray, IntArray]:
    """Return quotient and remainder of ``(values * factor + start) / divisor``, with products of up to 113 bits.

    The quotient is estimated in floating point, with an error below 2^13 for values and quotients below 2^63. The
    remainder is then below ``2^13 * divisor``, at most 2^63, so it is correct although its products wrap around.
    """
    if factor == divisor:  # start is below the divisor, so the quotient is 0
        return values.copy(), np.full(len(values), start, np.int64)
    estimate = values.astype(np.float64)
    estimate *= factor / divisor
    np.minimum(estimate, _HIGHEST, out=estimate)
    quotient = estimate.astype(np.int64)
    rest = values * np.int64(factor)
    rest += np.int64(start)
    rest -= quotient * np.int64(divisor)
    correction = rest // np.int64(divisor)
    quotient += correction
    rest -= correction * np.int64(divisor)
    return quotient, rest


def _paths(branch: Branch, above: tuple[tuple[int, int, int], ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Return the path of each source to the root: weights of the side and the whole, and the inverse's rounding term.

    Draw ``j`` of a side is where its line, ``(m * part + h) // whole``, first exceeds ``j``: that is before
    ``m = ceil(((j + 1) * whole - h) / part)``, and ``h`` is ``whole // 2`` on the left, the rest on the right.
    """
    stack = [(branch, above)]
    while stack:
        branch, above = stack.pop()
        if branch.sides is None:
            yield branch.source, above
            continue
        half = branch.weight // 2
        for side, start in zip(branch.sides, (branch.weight - 1 - half, half), strict=True):
            stack.append((side, ((side.weight, branch.weight, start), *above)))


def worst(root: Branch) -> Fraction:
    """Return the tree's bound: the largest sum of half a source's weight divided by each weight on its path."""
    paths = [[part for part, _, _ in path] for _, path in _paths(root, ())]
    about = [sum(path[0] / part for part in path) for path in paths]  # exact sums only where they may be the largest
    near = max(about) - _ROUNDING
    return max(
        sum((Fraction(path[0], part) for part in path), Fraction(0)) / 2
        for path in {tuple(path) for path, each in zip(paths, about, strict=True) if each >= near}
    )


def best_tree(weights: Mapping[int, int]) -> Branch:
    """Return Huffman's tree, which needs the fewest divisions, or a better one if its bound is not below 1."""
    leaves = [Branch(weight, source) for source, weight in weights.items()]
    tree = _huffman(leaves)[0]
    return tree if worst(tree) < 1 else min(tree, _best_of_all(_huffman(leaves, _TRY_ALL)), key=worst)


def _huffman(leaves: Sequence[Branch], enough: int = 1) -> list[Branch]:
    """Join the two lightest branches repeatedly until `enough` are left."""
    heap = [(leaf.weight, number, leaf) for number, leaf in enumerate(leaves)]
    heapify(heap)
    for number in range(len(leaves), 2 * len(leaves) - enough):
        _, _, small = heappop(heap)
        _, _, large = heappop(heap)
        weight = small.weight + large.weight
        heappush(heap, (weight, number, Branch(weight, -1, (large, small))))
    return [branch for _, _, branch in sorted(heap)]


def _slack(branch: Branch) -> float:
    """Return the least ``1 / w - sum(1 / w_a)`` of the sources below; if it is above 0, the bound is below 1."""
    if branch.sides is None:
        return 1 / branch.weight
    return min(map(_slack, branch.sides)) - 1 / branch.weight


def _best_of_all(parts: Sequence[Branch]) -> Branch:
    """Return the tree over these branches with the largest slack.

    A set's slack is that of its worse half minus the inverse of its weight, computed recursively over all subsets.
    """
    best: dict[int, tuple[float, Branch]] = {1 << i: (_slack(part), part) for i, part in enumerate(parts)}
    everything = (1 << len(parts)) - 1
    for whole in range(1, everything + 1):
        if whole in best:
            continue
        lowest = whole & -whole
        found: tuple[float, Branch, Branch] | None = None
        subset = (whole - 1) & whole
        while subset:
            if subset & lowest:
                (slack, left), (other, right) = best[subset], best[whole ^ subset]
                if found is None or min(slack, other) > found[0]:
                    found = min(slack, other), left, right
            subset = (subset - 1) & whole
        assert found is not None  # a set of two or more can be divided
        slack, left, right = found
        weight = left.weight + right.weight
        best[whole] = slack - 1 / weight, Branch(weight, -1, (left, right))
    return best[everything][1]
