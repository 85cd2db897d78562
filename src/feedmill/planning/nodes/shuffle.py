"""Shuffles: a new keyed permutation of the child's positions in every epoch, without storing it.

`Shuffle` permutes all positions. `BlockShuffle` permutes blocks of consecutive samples, and then samples within windows
of several blocks, so that samples that are read at about the same time are stored in a few contiguous ranges.
`ShardShuffle` permutes whole shards, and keeps each shard's samples in stored order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import Epochs, IntArray, Leaf, Node, Wrapper, split, split_each
from feedmill.planning.nodes.blend import Concat
from feedmill.planning.nodes.subset import Subsample, Subset
from feedmill.planning.permutation import Keys, branch, permute, unpermute

if TYPE_CHECKING:
    from feedmill.formats.base import Dataset


DEFAULT_BLOCK = 256
DEFAULT_WINDOW = 16

Permutation = Callable[[IntArray, int, Keys], IntArray]


class Shuffle(Wrapper):
    """A global shuffle.

    Args:
        child: a finite node.
        key: 64 bits from `permutation.derive`; epoch ``e`` uses the key's child key ``e``.
    """

    length: int
    scatters = True
    tag = "shuffle"
    args: ClassVar[tuple[str, ...]] = ("key",)

    def __init__(self, child: Node, key: int) -> None:
        super().__init__(child)
        child.ungrouped("a shuffle of samples")
        self.length = child.finite("a shuffle")
        self.key = key

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        return permute(positions, self.length, branch(self.key, epochs)), epochs

    @property
    def constants(self) -> tuple[int, ...] | None:
        return self.length, self.key

    @classmethod
    def inward_each(cls, constants: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        length, key = constants
        return permute(positions, length, branch(key.view(np.uint64), epochs)), epochs

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        return unpermute(positions, self.length, branch(self.key, _as_number(epochs))), epochs

    def reach(self, total: int) -> Sequence[int]:
        return (-(-total // self.length) * self.length,)

    def describe(self) -> str:
        return "shuffle global"

    def identity(self) -> str:
        return f"{self.describe()} key {self.key:016x}"


class BlockShuffle(Shuffle):
    """A shuffle that preserves locality of reads.

    The child's positions are cut into blocks of `block`; the last block may be shorter. Each epoch permutes the blocks,
    including the short one, and concatenates them. The result is cut into windows of `block` x `window` positions,
    the last of which may be shorter, and each window is permuted. Both steps are bijections of ``[0, length)``.

    Args:
        child: a finite node.
        key: 64 bits from `permutation.derive`.
        block: consecutive positions that stay together.
        window: blocks per window.
    """

    scatters = False
    tag = "block"
    args = ("key", "block", "window")

    def __init__(self, child: Node, key: int, block: int = DEFAULT_BLOCK, window: int = DEFAULT_WINDOW) -> None:
        super().__init__(child, key)
        if block < 1 or window < 1:
            raise ConfigError(
                f"a block shuffle cannot have block {block} and window {window}",
                kind="bad-recipe",
                fix="Both must be at least 1.",
            )
        self.block, self.window = block, window
        # Windows are clipped to the length, which keeps the arithmetic within 64 bits.
        self._span = min(block * window, self.length)
        self._block = min(block, self.length)
        self._blocks = -(-self.length // self._block)
        self._tail = self.length - (self._blocks - 1) * self._block
        self._block_key, self._window_key = branch(key, 0), branch(key, 1)

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        row = self._in_windows(positions, epochs, permute)
        keys = branch(self._block_key, epochs)
        gap = self._block - self._tail
        if gap:
            # Compute as if the short block had full size: later positions move up by the gap.
            behind = row >= self._short_slot(keys) * self._block + self._tail
            row = row + np.where(behind, gap, 0)
        slot, offset = split(row, self._block)
        if isinstance(slot, int):
            slot = np.full(len(row), slot, np.int64)
        return permute(slot, self._blocks, keys) * self._block + offset, epochs

    @property
    def constants(self) -> tuple[int, ...] | None:
        return self.length, self._span, self._block, self._blocks, self._tail, self._block_key, self._window_key

    @classmethod
    def inward_each(cls, constants: IntArray, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        length, span, block, blocks, tail = constants[:5]
        block_keys, window_keys = (branch(key.view(np.uint64), epochs) for key in constants[5:])
        window, offset = split_each(positions, span)
        before = window * span
        row = permute(offset, np.minimum(length - before, span), branch(window_keys, window)) + before
        behind = row >= unpermute(blocks - 1, blocks, block_keys) * block + tail
        slot, offset = split_each(row + np.where(behind, block - tail, 0), block)
        return permute(slot, blocks, block_keys) * block + offset, epochs

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        number = _as_number(epochs)
        keys = branch(self._block_key, number)
        block, offset = np.divmod(positions, self._block)
        if isinstance(keys, int) and self._blocks < len(block):
            slot = unpermute(np.arange(self._blocks), self._blocks, keys)[block]
        else:
            slot = unpermute(block, self._blocks, keys)
        row = slot * self._block + offset
        gap = self._block - self._tail
        if gap:
            row = row - np.where(slot > self._short_slot(keys), gap, 0)
        return self._in_windows(row, number, unpermute), epochs

    def _short_slot(self, keys: Keys) -> IntArray:
        """Return the slot of the last, shorter block in the permutation, int64[1] or one per key."""
        count = 1 if isinstance(keys, int) else len(keys)
        return unpermute(np.full(count, self._blocks - 1, np.int64), self._blocks, keys)

    def _in_windows(self, row: IntArray, epochs: Epochs, apply: Permutation) -> IntArray:
        """Apply a permutation, or its inverse, within each window."""
        window, offset = split(row, self._span)
        full, rest = divmod(self.length, self._span)
        epoch_key = branch(self._window_key, epochs)
        if isinstance(window, int):
            size = self._span if window < full else rest
            return apply(offset, size, branch(epoch_key, window)) + window * self._span
        keys = branch(epoch_key, window)
        last = np.flatnonzero(window == full)
        if not len(last):
            return apply(offset, self._span, keys) + window * self._span
        moved = np.empty_like(offset)
        for rows, size in ((np.flatnonzero(window < full), self._span), (last, rest)):
            moved[rows] = apply(offset[rows], size, keys[rows])
        return moved + window * self._span

    def describe(self) -> str:
        return f"shuffle block {self.block} x {self.window}"


def _as_number(epochs: IntArray) -> Epochs:
    """Return epochs that are all the same as a number: one key is several times as fast as one for each position."""
    return int(epochs[0]) if len(epochs) and (epochs == epochs[0]).all() else epochs


DEFAULT_PARALLEL = 16
_CELLS = 1 << 20  # positions x shards of a window that are compared at once


class _Windows(NamedTuple):
    """The shards of one epoch in windows, a row per window; the shards of a row are in ascending order of their sizes.

    Attributes:
        starts: int64[w], first position of each window.
        shards: int64[w, k], number of each shard; the first ones of the last row may be missing, with size 0.
        ranks: int64[w, k], the order in which the shards of a row take turns, which differs from epoch to epoch.
        sizes: int64[w, k], samples of each shard, after a column of zeros: int64[w, k + 1].
        ends: int64[w, k + 1], positions of the window until each shard is exhausted, after a column of zeros.
        places: int64[shards], place of each shard in the flat table.
    """

    starts: IntArray
    shards: IntArray
    ranks: IntArray
    sizes: IntArray
    ends: IntArray
    places: IntArray


class ShardShuffle(Shuffle):
    """A shuffle that keeps the stored order within each shard.

    Each epoch permutes the shards. Windows of `parallel` consecutive shards are read side by side: a sample of each
    shard that is not yet exhausted, in the order of the permutation. Position and sample follow from each other
    without a stored order: one epoch takes memory for its shards, not for its samples. With `sequence`, the pieces of
    shards take the place of the shards.

    Args:
        child: a finite node.
        key: 64 bits from `permutation.derive`.
        sizes: samples of each shard, in the order of the child's positions; their sum is its length.
        parallel: shards per window.
        sequence: cut shards into pieces of about this many samples; None for whole shards.

    Raises:
        ConfigError: `parallel` or `sequence` is less than 1, or the sizes do not sum to the child's length.
    """

    scatters = False
    tag = "shards"
    args = ("key", "sizes", "parallel", "sequence")

    def __init__(
        self,
        child: Node,
        key: int,
        sizes: Sequence[int],
        parallel: int = DEFAULT_PARALLEL,
        sequence: int | None = None,
    ) -> None:
        super().__init__(child, key)
        for name, number in (("parallel", parallel), ("sequence", sequence)):
            if number is not None and number < 1:
                raise ConfigError(
                    f"a shuffle of shards cannot have {name} {number}", kind="bad-recipe", fix="It must be at least 1."
                )
        counts = np.asarray(sizes, np.int64)
        self.sizes, self.parallel, self.sequence = counts[counts > 0], parallel, sequence
        if int(self.sizes.sum()) != self.length or (counts < 0).any():
            raise ConfigError(
                f"the shards have {int(counts.sum()):,} samples, expected {self.length:,}", kind="bad-recipe"
            )
        self._pieces = self.sizes if sequence is None else _cut(self.sizes, sequence)
        self._ends = np.cumsum(self._pieces)
        self._starts = self._ends - self._pieces
        self._latest: tuple[int, _Windows] | None = None

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "sizes": self.sizes.tolist()}

    @property
    def constants(self) -> None:
        return None

    def over(self, children: Sequence[Node], sources: Sequence[Dataset | None]) -> Node:
        (child,) = children
        sizes = self.sizes.tolist() if child.length == self.length else shard_sizes(child, sources)
        return ShardShuffle(child, self.key, sizes, self.parallel, self.sequence)

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        return self._by_epoch(self._child_positions, positions, epochs), epochs

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        return self._by_epoch(self._own_positions, positions, epochs), epochs

    def _child_positions(self, windows: _Windows, positions: IntArray) -> IntArray:
        row = np.searchsorted(windows.starts, positions, side="right") - 1
        offset = positions - windows.starts[row]
        # Number of shards of the window that are exhausted here; the first column is 0 and always counts.
        gone: IntArray = (windows.ends[row] <= offset[:, None]).sum(axis=1) - 1
        rounds, turn = np.divmod(offset - windows.ends[row, gone], windows.shards.shape[1] - gone)
        width = windows.shards.shape[1]
        pairs, number = np.unique(row * width + gone, return_inverse=True)
        exhausted = np.arange(width) < (pairs % width)[:, None]
        turns = np.argsort(np.where(exhausted, width, windows.ranks[pairs // width]), axis=1)
        first: IntArray = self._starts[windows.shards[row, turns[number, turn]]]
        return first + windows.sizes[row, gone] + rounds

    def _own_positions(self, windows: _Windows, positions: IntArray) -> IntArray:
        shard = np.searchsorted(self._ends, positions, side="right")
        local = positions - self._starts[shard]
        row, place = np.divmod(windows.places[shard], windows.shards.shape[1])
        gone: IntArray = (windows.sizes[row] <= local[:, None]).sum(axis=1) - 1
        begin: IntArray = windows.starts[row] + windows.ends[row, gone]
        rounds: IntArray = (local - windows.sizes[row, gone]) * (windows.shards.shape[1] - gone)
        before = windows.ranks[row] < windows.ranks[row, place][:, None]
        before &= np.arange(windows.shards.shape[1]) >= gone[:, None]
        taken: IntArray = before.sum(axis=1)
        return begin + rounds + taken

    def _by_epoch(
        self, function: Callable[[_Windows, IntArray], IntArray], positions: IntArray, epochs: Epochs
    ) -> IntArray:
        chunk = max(1, _CELLS // self.parallel)
        moved = np.empty_like(positions)
        for epoch in [epochs] if isinstance(epochs, int) else np.unique(epochs).tolist():
            windows = self._windows(epoch)
            chosen = np.arange(len(positions)) if isinstance(epochs, int) else np.flatnonzero(epochs == epoch)
            for first in range(0, len(chosen), chunk):
                rows = chosen[first : first + chunk]
                moved[rows] = function(windows, positions[rows])
        return moved

    def _windows(self, epoch: int) -> _Windows:
        """Return the windows of an epoch. Those of the latest one are kept: threads may compute the same twice."""
        latest = self._latest
        if latest is None or latest[0] != epoch:
            latest = self._latest = epoch, self._made(epoch)
        return latest[1]

    def _made(self, epoch: int) -> _Windows:
        shards = len(self._pieces)
        width = min(self.parallel, shards)
        order = permute(np.arange(shards, dtype=np.int64), shards, branch(self.key, epoch))
        padded = np.full(-(-shards // width) * width, -1, np.int64)
        padded[:shards] = order
        table = padded.reshape(-1, width)
        sizes = np.where(table < 0, 0, self._pieces[table])
        by_size = np.argsort(sizes, axis=1, kind="stable")
        table, sizes = np.take_along_axis(table, by_size, 1), np.take_along_axis(sizes, by_size, 1)
        places = np.empty(shards, np.int64)
        known = np.flatnonzero(table.ravel() >= 0)
        places[table.ravel()[known]] = known
        totals = sizes.sum(axis=1)
        sizes = np.pad(sizes, ((0, 0), (1, 0)))
        ends = np.cumsum(np.diff(sizes, axis=1) * np.arange(width, 0, -1), axis=1)
        return _Windows(np.cumsum(totals) - totals, table, by_size, sizes, np.pad(ends, ((0, 0), (1, 0))), places)

    def describe(self) -> str:
        cut = "" if self.sequence is None else f" in sequences of {self.sequence:,}"
        return f"shuffle shards x {self.parallel}{cut}"

    def identity(self) -> str:
        from hashlib import blake2b

        digest = blake2b(self.sizes.astype("<i8").tobytes(), digest_size=8).hexdigest()
        return f"{super().identity()} sizes {digest}"


def _cut(sizes: IntArray, sequence: int) -> IntArray:
    """Return the sizes of the pieces of shards: Energon's rule, by which pieces have 2/3 to 3/2 of `sequence` samples.

    >>> _cut(np.array([10, 3, 4]), 3).tolist()
    [3, 3, 4, 3, 4]
    """
    counts = np.where(sizes > sequence * 1.5, np.maximum(np.rint(sizes / sequence), 1), 1).astype(np.int64)
    steps = np.repeat(sizes / counts, counts)
    number = np.arange(len(steps)) - np.repeat(np.cumsum(counts) - counts, counts)
    firsts = (number * steps).astype(np.int64) + np.repeat(np.cumsum(sizes) - sizes, counts)
    pieces: IntArray = np.diff(firsts, append=sizes.sum())
    return pieces


def shard_sizes(node: Node, sources: Sequence[Dataset | None]) -> list[int]:
    """Return the number of samples of each shard of one epoch of a node, in the order of its positions.

    A node that is no dataset, subset or concatenation (a blend, a nested recipe with its own order) is one shard.

    Args:
        node: a finite node.
        sources: the datasets of the leaves, by number.

    Raises:
        ConfigError: the dataset of a leaf is unknown.
    """
    if isinstance(node, Leaf):
        dataset = sources[node.number]
        if dataset is None:
            raise ConfigError("the shards of a source that is no longer there are unknown", kind="bad-recipe")
        sizes: list[int] = np.diff(dataset.shard_bounds).tolist()
        return sizes
    if isinstance(node, Subset):
        ends = np.cumsum(shard_sizes(node.child, sources)).clip(node.start, node.start + node.length)
        return [int(size) for size in np.diff(ends, prepend=node.start)]
    if isinstance(node, Subsample):
        before = np.searchsorted(node.numbers, np.cumsum(shard_sizes(node.child, sources)))
        return [int(size) for size in np.diff(before, prepend=0)]
    if isinstance(node, Concat):
        return [size for child in node.children for size in shard_sizes(child, sources)]
    return [node.finite("a shuffle of shards")]


def usual_block(node: Node, sources: Sequence[Dataset]) -> int:
    """Return the samples of a block of a block shuffle of this node: the most that one of its datasets asks for.

    Args:
        sources: as for `shard_sizes`.
    """
    asked = [sources[leaf].shuffle_block for leaf in node.leaves] if sources else []
    return max((block for block in asked if block is not None), default=DEFAULT_BLOCK)


def shuffled(
    child: Node,
    kind: str,
    key: int,
    block: int | None = None,
    window: int = DEFAULT_WINDOW,
    parallel: int = DEFAULT_PARALLEL,
    sources: Sequence[Dataset] = (),
    sequence: int | None = None,
) -> Node:
    """Return the child with a shuffle of the given kind: ``none``, ``global``, ``block`` or ``shards``.

    Args:
        child: a finite node.
        key: 64 bits from `permutation.derive`.
        block, window: see `BlockShuffle`; without `block`, the datasets' largest `Dataset.shuffle_block`.
        parallel, sequence: see `ShardShuffle`.
        sources: the datasets of the leaves by number, for their shards and blocks.

    Raises:
        ConfigError: unknown kind.
    """
    if kind == "none":
        return child
    if kind == "global":
        return Shuffle(child, key)
    if kind == "block":
        return BlockShuffle(child, key, usual_block(child, sources) if block is None else block, window)
    if kind == "shards":
        return ShardShuffle(child, key, shard_sizes(child, sources), parallel, sequence)
    raise ConfigError(f"unknown shuffle {kind!r}", kind="bad-recipe", fix="Use 'none', 'global', 'block' or 'shards'.")
