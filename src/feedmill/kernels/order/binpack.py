"""Pack items of integer sizes into bins of one capacity by a greedy rule.

Best-fit decreasing: items are packed by descending size, each into the bin that it leaves the least room in, or into a
new bin. The number of bins is at most 11/9 of the optimum plus a small constant; with many small items nearly no room
is left. Items of one size keep their order. Among bins with the same room, the one that reached it last is used. So the
result is deterministic.

Bins are kept in one stack per amount of room, and a segment tree over the amounts finds stacks that are not empty:
O(log capacity) time per item, and O(bins + capacity) memory in addition to the result.

Sources: Johnson, Demers, Ullman, Garey and Graham 1974, "Worst-case performance bounds for simple one-dimensional
packing algorithms"; Ding et al. 2024, "Fewer Truncations Improve Language Modeling" (whole documents into rows, and
the segment tree over rooms).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import kernel

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


def best_fit_decreasing(sizes: Int32s, capacity: int, groups: Int64s | None = None) -> tuple[Int32s, int]:
    """Return the bin of every item, and the number of bins.

    Args:
        sizes: int32[n], each in ``[1, capacity]``.
        capacity: size of a bin, below 2^31.
        groups: where consecutive groups of items begin, and where the last one ends, int64[groups + 1]. No bin holds
            items of two groups; each group is packed as if it were alone.

    Returns:
        int32[n]: bins are numbered in the order in which they were opened, those of earlier groups first.

    Raises:
        ValueError: a size is out of range.
    """
    if len(sizes) and not (int(sizes.min()) > 0 and int(sizes.max()) <= capacity):
        raise ValueError(f"sizes must be in [1, {capacity}]")
    _, falling = group_by(capacity - sizes, capacity + 1)
    bounds = np.array([0, len(sizes)], np.int64) if groups is None else groups
    if len(bounds) > 2:
        group = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
        falling = falling[group_by(group[falling], len(bounds) - 1)[1]]
    bins = np.empty(len(sizes), np.int32)
    tree = np.zeros(2 << capacity.bit_length(), np.uint8)
    top = np.full(capacity + 1, -1, np.int32)
    below, rooms = np.empty(len(sizes), np.int32), np.empty(len(sizes), np.int32)
    return bins, _best_fit(sizes, falling, bounds, capacity, bins, tree, top, below, rooms)


def group_by(groups: Int32s, count: int) -> tuple[Int64s, Int32s]:
    """Sort items by group, stably, with a counting sort.

    Args:
        groups: int32[n], each in ``[0, count)``.

    Returns:
        The start of each group, int64[count + 1], and the sorted items, int32[n].
    """
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(groups, minlength=count), out=starts[1:])
    items = np.empty(len(groups), np.int32)
    _distribute(groups, starts[:-1].copy(), items)
    return starts, items


@kernel("i32[:], out i64[:], out i32[:]")
def _distribute(groups, at, items):  # type: ignore[no-untyped-def]
    for i in range(len(groups)):
        group = groups[i]
        items[at[group]] = i
        at[group] += 1


@kernel
def _mark(tree, leaf, filled):  # type: ignore[no-untyped-def]
    """Set at a leaf, and at all nodes above it, whether there is a bin. Stop at the first unchanged node."""
    tree[leaf] = filled
    leaf >>= 1
    while leaf > 0:
        either = tree[2 * leaf] | tree[2 * leaf + 1]
        if tree[leaf] == either:
            return
        tree[leaf] = either
        leaf >>= 1


@kernel
def _first_from(tree, leaf):  # type: ignore[no-untyped-def]
    """Return the first leaf from `leaf` on with a bin, or -1."""
    if tree[leaf]:
        return leaf
    while leaf & (leaf + 1):  # only ones: the last node of its level
        if leaf & 1 == 0 and tree[leaf + 1]:
            leaf += 1
            while 2 * leaf < len(tree):
                leaf = 2 * leaf if tree[2 * leaf] else 2 * leaf + 1
            return leaf
        leaf >>= 1
    return -1


@kernel("i32[:], i32[:], i64[:], i64, out i32[:], out u8[:], out i32[:], out i32[:], out i32[:] -> i64")
def _best_fit(sizes, falling, bounds, capacity, bins, tree, top, below, rooms):  # type: ignore[no-untyped-def]
    """Fill `bins`, and return their number.

    Args:
        tree: uint8[2 * leaves], zeros, where `leaves` is a power of two above `capacity`.
        top: int32[capacity + 1], the top of the stack of each amount of room; -1 if empty.
        below, rooms: int32[items], for each bin, the next one in its stack, and its room.
    """
    leaves, opened = len(tree) // 2, 0
    for group in range(len(bounds) - 1):
        first = opened
        for at in range(bounds[group], bounds[group + 1]):
            item = falling[at]
            size = sizes[item]
            found = _first_from(tree, leaves + size)
            if found < 0:
                chosen = opened
                room = capacity
                opened += 1
            else:
                room = found - leaves
                chosen = top[room]
                top[room] = below[chosen]
                if top[room] < 0:
                    _mark(tree, found, 0)
            bins[item] = chosen
            room -= size
            rooms[chosen] = room
            if room > 0:  # a full bin is not pushed again
                below[chosen] = top[room]
                if top[room] < 0:
                    _mark(tree, leaves + room, 1)
                top[room] = chosen
        if group < len(bounds) - 2:  # clear what this group left: a new tree for each would cost its capacity
            for chosen in range(first, opened):
                room = rooms[chosen]
                if room > 0 and top[room] >= 0:
                    top[room] = -1
                    _mark(tree, leaves + room, 0)
    return opened
