"""Shuffles: a new keyed permutation of the child's positions in every epoch, without storing it.

`Shuffle` permutes all positions. `BlockShuffle` permutes blocks of consecutive samples, and then samples within windows
of several blocks, so that samples that are read at about the same time are stored in a few contiguous ranges. For a
shuffle of whole shards, see `shards`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from feedmill.errors import ConfigError
from feedmill.planning.nodes.base import Epochs, IntArray, Node, Wrapper, split
from feedmill.planning.permutation import Keys, branch, permute, unpermute

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
        self.length = child.finite("a shuffle")
        self.key = key

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        return permute(positions, self.length, branch(self.key, epochs)), epochs

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
                kind="bad-shuffle",
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
