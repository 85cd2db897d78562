"""Groups of samples that come one after another: answers to one prompt, pairs of a preference, frames of a document.

A group is a run of its child's positions: `size` of them, or those with one value of a column. Each epoch has an order
of the groups as units; the samples of a group are in stored order, or permuted, differently in each epoch.

Groups of one size need no memory. For groups of different sizes, an epoch is a table of where each group begins in it,
8 bytes a group, of which the last few are kept.

An outline has a digest of the groups of a column instead of their bounds: `over` finds them in the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import Epochs, IntArray, Leaf, Node, Wrapper
from feedmill.planning.nodes.curriculum import Curriculum, Permutation, apply_in_runs, by_epoch
from feedmill.planning.nodes.ranking import Ranking, ranked, values_of
from feedmill.planning.nodes.shuffle import BlockShuffle, Shuffle
from feedmill.planning.permutation import branch, permute, unpermute

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset

WITHIN = ("stored", "shuffled")
_KEPT = 4
_ORDER, _WITHIN = range(2)
"""Child keys of the key."""


class Groups(Wrapper):
    """A node whose epochs have its child's groups in an order of their own, each of them whole; see the module.

    Args:
        child: a finite node, in stored order.
        key: 64 bits from `permutation.derive`.
        order: the order of groups: ``["none"]``, ``["global"]``, ``["block", samples, blocks]`` with the samples of a
            block, or ``["curriculum", column, begin, window]`` by the mean of each group.
        size: samples of each group; None for groups by a column.
        by: the column.
        within: ``stored`` or ``shuffled``, the order of a group's samples.
        group, count: of groups by a column, if their bounds are not known, see the attributes.
        digest: hash of the groups and of the means that order them, if these are not known.
        bounds: int64[groups + 1], first sample of each group, and their total; not for groups of one size.
        means: the ranking of the groups' means, for a curriculum.

    Attributes:
        group: samples of each group; None if they differ.
        count: number of groups.

    Raises:
        ConfigError: the samples are not whole groups, or an argument is unknown. Also when a position is located
            without `bounds` or `means` that are needed.
    """

    length: int
    scatters = False
    tag = "groups"
    args: ClassVar[tuple[str, ...]] = ("key", "order", "size", "by", "within", "group", "count", "digest")

    def __init__(
        self,
        child: Node,
        key: int,
        order: Sequence[Any],
        size: int | None = None,
        by: str | None = None,
        within: str = "stored",
        group: int | None = None,
        count: int = 0,
        digest: str = "",
        bounds: IntArray | None = None,
        means: Ranking | None = None,
    ) -> None:
        super().__init__(child)
        self.length = child.finite("groups")
        if (size is None) == (by is None) or (size or 1) < 1 or within not in WITHIN:
            raise ConfigError(
                f"groups cannot have size {size}, column {by!r} and the order {within!r}",
                kind="bad-recipe",
                fix="Give a size of at least 1 or a column, and the order 'stored' or 'shuffled'.",
            )
        if size is not None and self.length % size:
            raise ConfigError(
                f"{self.length:,} samples are not whole groups of {size:,}: the last one would have"
                f" {self.length % size:,}",
                kind="bad-recipe",
                fix=f"Use a 'subset' of {self.length // size * size:,} samples, another size, or a column ('by').",
            )
        self.key, self.order, self.size, self.by, self.within = key, list(order), size, by, within
        self._bounds, self._means = bounds, means
        self.group, self.count = group, count
        if size is not None:
            self.group, self.count = size, self.length // size
        elif bounds is not None:
            sizes = np.unique(np.diff(bounds))
            self.count, self.group = len(bounds) - 1, int(sizes[0]) if len(sizes) == 1 else None
        self.digest = digest
        if self.bound:
            self.digest = xxhash.xxh3_64_hexdigest(b"" if bounds is None else np.ascontiguousarray(bounds).data)
            self.digest += "" if means is None else means.digest
            self._sequence = self._ordered()
            self.scatters = self._sequence is not None and not isinstance(self._sequence, BlockShuffle)
        self._tables: dict[int, IntArray] = {}

    def _ordered(self) -> Shuffle | Curriculum | None:
        """Return the order of the groups as a node over their numbers; None for the stored order."""
        kind, *options = self.order
        numbers, key = Leaf(0, self.count), branch(self.key, _ORDER)
        if kind == "none":
            return None
        if kind == "global":
            return Shuffle(numbers, key)
        if kind == "block":
            block, window = options
            return BlockShuffle(numbers, key, max(1, block * self.count // self.length), window)
        if kind == "curriculum":
            by, begin, window = options
            around = max(1, window * self.count // self.length)
            return Curriculum(numbers, key, by, begin, around, ranking=self._means)
        raise ConfigError(
            f"groups cannot be shuffled by {kind!r}", kind="bad-recipe", fix="Use 'block', 'global' or 'none'."
        )

    @property
    def bound(self) -> bool:
        grouped = self.size is not None or self._bounds is not None
        return grouped and (self.order[0] != "curriculum" or self._means is not None)

    @classmethod
    def made(
        cls,
        child: Node,
        key: int,
        order: Sequence[Any],
        size: int | None,
        by: str | None,
        within: str,
        sources: Sequence[Dataset | None],
    ) -> Groups:
        """Return the node over data.

        Raises:
            ConfigError: as the class, `bounds_of_groups` and `values_of` do.
        """
        bounds = means = None
        if by is not None:
            bounds = bounds_of_groups(values_of(child, by, sources, texts=True), by)
        made = cls(child, key, ["none"], size, by, within, bounds=bounds)  # checks the sizes first
        if order[0] == "curriculum":
            values = values_of(child, order[1], sources)
            firsts = np.arange(made.count) * (size or 1) if bounds is None else bounds[:-1]
            sizes = np.full(made.count, size) if bounds is None else np.diff(bounds)
            means = ranked(np.add.reduceat(values.astype(np.float64), firsts) / sizes)
        return cls(child, key, order, size, by, within, bounds=bounds, means=means)

    def over(self, children: Sequence[Node], sources: Sequence[Dataset | None]) -> Node:
        (child,) = children
        if not self._needs_data:
            return Groups(child, self.key, self.order, self.size, self.by, self.within)
        if all(sources[leaf] is not None for leaf in child.leaves):
            made = Groups.made(child, self.key, self.order, self.size, self.by, self.within, sources)
            if child.length != self.length or made.digest == self.digest:
                return made
        kept = (self.size, self.by, self.within, self.group, self.count, self.digest)
        return Groups(child, self.key, self.order, *kept)  # of other data

    @property
    def _needs_data(self) -> bool:
        return self.size is None or self.order[0] == "curriculum"

    def _check_bound(self) -> None:
        if not self.bound:
            raise ConfigError(
                "the groups of the state's plan are unknown: their data is no longer there, or has changed",
                kind="plan-changed",
                fix="Resume with the data of the saved run, or start without a state.",
            )

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        return by_epoch(self._child_positions, positions, epochs), epochs

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        return by_epoch(self._own_positions, positions, epochs), epochs

    def places(self, positions: IntArray, epochs: Epochs = 0) -> tuple[IntArray, IntArray]:
        place = by_epoch(lambda some, epoch: self._found(some, epoch)[2], positions, epochs)
        if self.within == "stored":
            return place, place
        return place, by_epoch(self._stored_places, positions, epochs)

    @property
    def bounds(self) -> IntArray:
        """The first sample of each group in the child's order, and their total, int64[count + 1]."""
        self._check_bound()
        return np.arange(self.count + 1) * (self.size or 1) if self._bounds is None else self._bounds

    def _found(self, positions: IntArray, epoch: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return the first sample and the size of the group at each position, the place in it, and its number."""
        self._check_bound()
        if self.group is not None:
            place, offset = np.divmod(positions, self.group)
        else:
            table = self._table(epoch)
            place = np.searchsorted(table, positions, side="right") - 1
            offset = positions - table[place]
        number = place if self._sequence is None else self._sequence.inward(place, epoch)[0]
        return (*self._runs(number), offset, number)

    def _stored_places(self, positions: IntArray, epoch: int) -> IntArray:
        _, sizes, offset, number = self._found(positions, epoch)
        return self._inside(offset, sizes, number, epoch, permute)

    def _child_positions(self, positions: IntArray, epoch: int) -> IntArray:
        begins, sizes, offset, number = self._found(positions, epoch)
        return begins + self._inside(offset, sizes, number, epoch, permute)

    def _own_positions(self, positions: IntArray, epoch: int) -> IntArray:
        self._check_bound()
        if self.group is not None:
            number = positions // self.group
        else:
            assert self._bounds is not None  # groups of different sizes are of a column
            number = np.searchsorted(self._bounds, positions, side="right") - 1
        begins, sizes = self._runs(number)
        offset = self._inside(positions - begins, sizes, number, epoch, unpermute)
        place = number
        if self._sequence is not None:
            place = self._sequence.outward(number, np.full(len(number), epoch, np.int64))[0]
        return offset + (place * self.group if self.group is not None else self._table(epoch)[place])

    def _runs(self, number: IntArray) -> tuple[IntArray, IntArray]:
        """Return the first sample and the size of groups, int64[n] each."""
        if self.group is not None:
            return number * self.group, np.full(len(number), self.group)
        assert self._bounds is not None
        begins = self._bounds[number]
        return begins, self._bounds[number + 1] - begins

    def _inside(self, offset: IntArray, sizes: IntArray, number: IntArray, epoch: int, apply: Permutation) -> IntArray:
        if self.within == "stored":
            return offset
        return apply_in_runs(apply, offset, sizes, number, branch(branch(self.key, _WITHIN), epoch))

    def _table(self, epoch: int) -> IntArray:
        """Return where the groups of an epoch begin, and its end, int64[groups + 1]. Threads may compute it twice."""
        table = self._tables.get(epoch)
        if table is None:
            assert self._bounds is not None
            if self._sequence is None:
                table = self._bounds
            else:
                sizes = np.diff(self._bounds)[self._sequence.inward(np.arange(self.count), epoch)[0]]
                table = np.concatenate([[0], np.cumsum(sizes)])
            kept = dict(list(self._tables.items())[1 - _KEPT :])
            self._tables = {**kept, epoch: table}
        return table

    def whole(self, total: int) -> int:
        if self.group is not None:
            return total // self.group * self.group
        self._check_bound()
        epoch, rest = divmod(total, self.length)
        table = self._table(epoch)
        return epoch * self.length + int(table[np.searchsorted(table, rest, side="right") - 1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}}

    def reach(self, total: int) -> Sequence[int]:
        return (-(-total // self.length) * self.length,)

    def describe(self) -> str:
        kind, *options = self.order
        order = {"block": "block {} x {}", "curriculum": "by {} from {}, window {:,}"}.get(kind, kind).format(*options)
        size = f"{self.count:,} groups by {self.by}" if self.by else f"groups of {self.size:,}"
        words = {"none": "", "curriculum": f", curriculum {order}"}.get(kind, f", shuffle {order}")
        return f"{size}{words}{', shuffled within' if self.within == 'shuffled' else ''}"

    def identity(self) -> str:
        return f"{self.describe()} digest {self.digest} key {self.key:016x}"


def bounds_of_groups(values: npt.NDArray[Any], by: str) -> IntArray:
    """Return the first sample of each run of equal values, and the number of values, int64[groups + 1].

    Raises:
        ConfigError: two runs have the same value, or one has more than half of the samples.
    """
    begins = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    ends = np.append(begins, len(values))
    largest = int(np.diff(ends).argmax())
    size = int(ends[largest + 1] - ends[largest])
    if size > 1 and 2 * size > len(values):
        raise ConfigError(
            f"a group by {by!r} has {size:,} of {len(values):,} samples, those from sample {ends[largest]:,} on: more"
            " than half of them, which no shuffle could separate",
            kind="bad-recipe",
            fix="Use a column whose values have few samples each.",
        )
    found, firsts = np.unique(values[begins], return_index=True)
    if len(found) < len(begins):
        again = np.setdiff1d(np.arange(len(begins)), firsts)[0]
        first = firsts[np.searchsorted(found, values[begins[again]])]
        raise ConfigError(
            f"the samples of a group by {by!r} are not next to each other: sample {begins[again]:,} has the value of"
            f" sample {begins[first]:,}, with others between them",
            kind="bad-recipe",
            fix=f"Sort the data by {by!r}.",
        )
    return ends


def groups_in(node: Node) -> list[Groups]:
    """Return the groups of a tree."""
    return [node] if isinstance(node, Groups) else [found for child in node.children for found in groups_in(child)]
