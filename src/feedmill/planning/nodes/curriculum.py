"""Order by a column: from the samples with its lowest values to the highest, or the other way, shuffled in windows.

Position ``p`` of an epoch is sent through three bijections of ``[0, n)``:

1. Windows of `window` places, each permuted. They begin at another place in each epoch, so that samples of two
   neighboring windows meet in the next one: the first window of an epoch is shorter.
2. Samples with equal values are permuted among themselves.
3. The sorted order (`feedmill.planning.nodes.ranking`), from the front (``easy``) or from the back (``hard``).

Each epoch has its own permutations. A sample is therefore always fewer than `window` places from its place in the
sorted order of that epoch, in which samples with equal values are in random order.

An outline has a digest of the values instead of the sorted order: `over` computes the order from the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import Epochs, IntArray, Node, Wrapper
from feedmill.planning.nodes.ranking import Ranking, ranking_of
from feedmill.planning.permutation import Keys, branch, permute, unpermute

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset

BEGINNINGS = ("easy", "hard")
DEFAULT_WINDOW = 10_000

_BORDERS, _WINDOWS, _TIES = range(3)
"""Child keys of an epoch's key."""


class Curriculum(Wrapper):
    """A node whose epochs have its child's samples in the order of a column, shuffled in windows; see the module.

    Args:
        child: a finite node, in stored order.
        key: 64 bits from `permutation.derive`.
        by: the column, see `Dataset.values`.
        begin: ``easy`` begins with the lowest values, ``hard`` with the highest.
        window: a sample is always fewer places than this from its place in the sorted order; 1 keeps that order.
        digest: hash of the values, if the ranking is not known.
        ranking: the sorted order.

    Raises:
        ConfigError: the window is less than 1, or `begin` is unknown. Also when a position is located without ranking.
    """

    length: int
    scatters = True
    tag = "curriculum"
    args: ClassVar[tuple[str, ...]] = ("key", "by", "begin", "window", "digest")

    def __init__(
        self,
        child: Node,
        key: int,
        by: str,
        begin: str = "easy",
        window: int = DEFAULT_WINDOW,
        digest: str = "",
        ranking: Ranking | None = None,
    ) -> None:
        super().__init__(child)
        child.ungrouped("a curriculum of samples")
        self.length = child.finite("a curriculum")
        if begin not in BEGINNINGS or window < 1:
            raise ConfigError(
                f"a curriculum cannot begin with {begin!r} and have a window of {window:,}",
                kind="bad-recipe",
                fix="Begin with 'easy' or 'hard', and give a window of at least 1.",
            )
        self.key, self.by, self.begin, self.window = key, by, begin, window
        self.digest = digest if ranking is None else ranking.digest
        self._known = ranking
        self._span = min(window, self.length)
        if ranking is not None and len(ranking.order) != self.length:
            raise ConfigError(
                f"the order by {by!r} has {len(ranking.order):,} samples, expected {self.length:,}", kind="bad-plan"
            )

    @property
    def bound(self) -> bool:
        return self._known is not None

    def over(self, children: Sequence[Node], sources: Sequence[Dataset | None]) -> Node:
        (child,) = children
        ranking = None
        if all(sources[leaf] is not None for leaf in child.leaves):
            ranking = ranking_of(child, self.by, sources)
        if ranking is None or (child.length == self.length and ranking.digest != self.digest):
            return Curriculum(child, self.key, self.by, self.begin, self.window, self.digest)  # of other data
        return Curriculum(child, self.key, self.by, self.begin, self.window, ranking=ranking)

    @property
    def _ranking(self) -> Ranking:
        if self._known is None:
            raise ConfigError(
                f"the order by {self.by!r} of the state's plan is unknown: its data is no longer there, or has changed",
                kind="plan-changed",
                fix="Resume with the data of the saved run, or start without a state.",
            )
        return self._known

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        return by_epoch(self._child_positions, positions, epochs), epochs

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        return by_epoch(self._own_positions, positions, epochs), epochs

    def _child_positions(self, positions: IntArray, epoch: int) -> IntArray:
        key = branch(self.key, epoch)
        place = self._in_windows(positions, key, permute)
        rank = place if self.begin == "easy" else self.length - 1 - place
        return self._ranking.order[self._among_equals(rank, key, permute)].astype(np.int64)

    def _own_positions(self, positions: IntArray, epoch: int) -> IntArray:
        key = branch(self.key, epoch)
        rank = self._among_equals(self._ranking.ranks[positions].astype(np.int64), key, unpermute)
        place = rank if self.begin == "easy" else self.length - 1 - rank
        return self._in_windows(place, key, unpermute)

    def _in_windows(self, places: IntArray, key: int, apply: Permutation) -> IntArray:
        """Apply a permutation, or its inverse, within each window of an epoch."""
        if self._span == 1:
            return places
        first = 0  # places of the window that is shorter; none if a window has the whole epoch
        if self._span < self.length:
            first = (branch(key, _BORDERS) >> 32) * self._span >> 32
        number = (places + (self._span - first)) // self._span
        begins = np.maximum((number - 1) * self._span + first, 0)
        sizes = np.minimum(number * self._span + first, self.length) - begins
        return begins + apply_in_runs(apply, places - begins, sizes, number, branch(key, _WINDOWS))

    def _among_equals(self, ranks: IntArray, key: int, apply: Permutation) -> IntArray:
        """Apply a permutation, or its inverse, to the ranks of each value."""
        starts = self._ranking.starts
        if len(starts) == self.length:
            return ranks
        # Of one type, or numpy would convert all of `starts` in each call.
        number = np.searchsorted(starts, ranks.astype(starts.dtype), side="right") - 1
        begins = starts[number].astype(np.int64)
        after = starts[np.minimum(number + 1, len(starts) - 1)].astype(np.int64)
        sizes = np.where(number + 1 < len(starts), after, self.length) - begins
        return begins + apply_in_runs(apply, ranks - begins, sizes, number, branch(key, _TIES))

    def reach(self, total: int) -> Sequence[int]:
        return (-(-total // self.length) * self.length,)

    def describe(self) -> str:
        return f"curriculum by {self.by} from {self.begin}, window {self.window:,}"

    def identity(self) -> str:
        return f"{self.describe()} values {self.digest} key {self.key:016x}"


Permutation = Callable[[IntArray, int, Keys], IntArray]


def by_epoch(function: Callable[[IntArray, int], IntArray], positions: IntArray, epochs: Epochs) -> IntArray:
    """Return ``function(positions, epoch)`` of the positions of each epoch, int64[n]."""
    if isinstance(epochs, int):
        return function(positions, epochs)
    moved = np.empty_like(positions)
    for epoch in np.unique(epochs).tolist():
        rows = np.flatnonzero(epochs == epoch)
        moved[rows] = function(positions[rows], epoch)
    return moved


def apply_in_runs(apply: Permutation, offsets: IntArray, sizes: IntArray, numbers: IntArray, key: int) -> IntArray:
    """Return offsets in runs of different sizes after a permutation of each run, int64[n].

    Args:
        apply: `permute` or `unpermute`.
        offsets: int64[n], in the run.
        sizes: int64[n], of the run.
        numbers: int64[n], of the run; each has its own child key.
        key: the key of which these are children.
    """
    moved = offsets.copy()
    for size in np.unique(sizes).tolist():
        if size == 1:
            continue
        rows = np.flatnonzero(sizes == size)
        own = numbers[rows]
        keys = branch(key, int(own[0]) if (own == own[0]).all() else own)  # one key is several times as fast
        moved[rows] = apply(offsets[rows], size, keys)
    return moved
