"""Pack items of integer sizes into bins of one capacity by a greedy rule.

Best-fit decreasing: items are packed by descending size, each into the bin that it leaves the least room in, or into a
new bin. The number of bins is at most 11/9 of the optimum plus a small constant; with many small items nearly no room
is left. Items of one size keep their order. Among bins with the same room, the one that reached it last is used. So the
result is deterministic.

Bins are kept in one stack per amount of room, and a segment tree over the amounts finds stacks that are not empty:
O(log capacity) time per item, and O(bins + capacity) memory in addition to the result.

Items may have further demands, such as images, of which a bin takes a limited amount. An item takes the fullest bin
that has room for all of them, of at most `_PROBES` bins that are looked at. A bin that has no room for any further
demand of its group is moved to a shelf of its own, where only items without demands look. Items that take a larger
share of a limit than of the capacity are spread over the order, up to where items of 20 times that share are packed: if
all of them came last, as small as they are, their bins would reach the limit and stay half empty.

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


_PROBES = 64
"""Bins that are tried for an item with demands: bins that lack room for one of them may be many."""


def best_fit_decreasing(
    sizes: Int32s,
    capacity: int,
    groups: Int64s | None = None,
    demands: Int64s | None = None,
    limits: Int64s | None = None,
) -> tuple[Int32s, int]:
    """Return the bin of every item, and the number of bins.

    Args:
        sizes: int32[n], each in ``[1, capacity]``.
        capacity: size of a bin, below 2^31.
        groups: where consecutive groups of items begin, and where the last one ends, int64[groups + 1]. No bin holds
            items of two groups; each group is packed as if it were alone.
        demands: int64[k, n], further demands of each item, 0 or more.
        limits: int64[k], how much of each demand a bin takes.

    Returns:
        int32[n]: bins are numbered in the order in which they were opened, those of earlier groups first.

    Raises:
        ValueError: a size is out of range.
    """
    if len(sizes) and not (int(sizes.min()) > 0 and int(sizes.max()) <= capacity):
        raise ValueError(f"sizes must be in [1, {capacity}]")
    more = np.zeros((0, len(sizes)), np.int64) if demands is None else np.ascontiguousarray(demands, np.int64)
    most = np.zeros(0, np.int64) if limits is None else np.ascontiguousarray(limits, np.int64)
    if more.shape != (len(most), len(sizes)) or (more < 0).any() or (more > most[:, None]).any():
        raise ValueError(f"demands must be in [0, limit], int64[{len(most)}, {len(sizes)}]")
    bounds = np.array([0, len(sizes)], np.int64) if groups is None else groups
    _, falling = group_by(capacity - _ranked(sizes, capacity, bounds, more, most), capacity + 1)
    if len(bounds) > 2:
        group = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
        falling = falling[group_by(group[falling], len(bounds) - 1)[1]]
    bins = np.empty(len(sizes), np.int32)
    shelves = 2 if len(most) else 1
    trees = np.zeros(shelves * (2 << capacity.bit_length()), np.uint8)
    tops = np.full(shelves * (capacity + 1), -1, np.int32)
    below, rooms = np.empty(len(sizes), np.int32), np.empty(len(sizes), np.int32)
    left, least = np.empty(more.size, np.int64), np.empty(len(most), np.int64)
    scratch = (trees, tops, below, rooms, left, least)
    return bins, _best_fit(sizes, falling, bounds, capacity, more.reshape(-1), most, bins, *scratch)


_SPREAD = np.array(
    [4096, 4939, 5956, 7183, 8662, 10446, 12596, 15190, 18318, 22090, 26638, 32123, 38738, 46714, 56333, 67932, 81920]
)
"""Factors, in 4,096ths, by which items that are heavy in a demand are ranked higher: from 1 to 20, evenly in logarithm.
Between two of them they are on a line. They are integers because powers are rounded otherwise on other machines."""


def _ranked(sizes: Int32s, capacity: int, bounds: Int64s, demands: Int64s, limits: Int64s) -> Int32s:
    """Return the sizes by which items are ordered, int32[n]: those of items that are heavy in a demand are raised."""
    if not len(limits):
        return sizes
    share = (-(-capacity * demands // limits[:, None])).max(0)
    heavy = np.flatnonzero(share > sizes)
    begins = bounds[np.searchsorted(bounds, heavy, side="right") - 1]
    place = ((heavy - begins).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)
    level, between = np.divmod(place.astype(np.int64), 4096)
    factor = (_SPREAD[level] * (4096 - between) + _SPREAD[level + 1] * between) // 4096
    out = sizes.copy()
    out[heavy] = np.minimum(share[heavy] * factor // 4096, capacity)
    return out


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


@kernel
def _spent(left, least, chosen, items):  # type: ignore[no-untyped-def]
    """Return whether a bin has no room for any further demand of its kind."""
    for k in range(len(least)):
        if left[k * items + chosen] < least[k]:
            return True
    return False


@kernel
def _fits(more, left, kinds, item, chosen, items):  # type: ignore[no-untyped-def]
    for k in range(kinds):
        if more[k * items + item] > left[k * items + chosen]:
            return False
    return True


@kernel(
    "i32[:], i32[:], i64[:], i64, i64[:], i64[:], out i32[:], out u8[:], out i32[:], out i32[:], out i32[:],"
    " out i64[:], out i64[:] -> i64"
)
def _best_fit(sizes, falling, bounds, capacity, more, most, bins, trees, tops, below, rooms, left, least):  # type: ignore[no-untyped-def]
    """Fill `bins`, and return their number.

    Args:
        more: int64[kinds * items], demands, and `most`, int64[kinds], the limit of each kind.
        trees: uint8[shelves * 2 * leaves], zeros, where `leaves` is a power of two above `capacity`. There is a second
            shelf, of bins that are spent, if there are demands.
        tops: int32[shelves * (capacity + 1)], the top of the stack of each amount of room; -1 if empty.
        below, rooms: int32[items], for each bin, the next one in its stack, and its room.
        left: int64[kinds * items], for each bin, what is left of each limit.
        least: int64[kinds], the smallest demand of the group that is not 0.
    """
    items, kinds = len(sizes), len(most)
    half = len(trees) if kinds == 0 else len(trees) // 2
    leaves, opened = half // 2, 0
    tree, spent_tree = trees[:half], trees[half:]
    top, spent_top = tops[: capacity + 1], tops[capacity + 1 :]
    for group in range(len(bounds) - 1):
        first, spent = opened, 0
        for k in range(kinds):
            least[k] = most[k] + 1
            for at in range(bounds[group], bounds[group + 1]):
                demand = more[k * items + falling[at]]
                if 0 < demand < least[k]:
                    least[k] = demand
        for at in range(bounds[group], bounds[group + 1]):
            item = falling[at]
            size = sizes[item]
            plain = True
            for k in range(kinds):
                if more[k * items + item] > 0:
                    plain = False
            found = _first_from(tree, leaves + size)
            chosen = -1
            room = capacity
            if plain:
                other = _first_from(spent_tree, leaves + size) if spent > 0 else -1
                if other >= 0 and (found < 0 or other <= found):
                    room = other - leaves
                    chosen = spent_top[room]
                    spent_top[room] = below[chosen]
                    spent -= 1
                    if spent_top[room] < 0:
                        _mark(spent_tree, other, 0)
                elif found >= 0:
                    room = found - leaves
                    chosen = top[room]
                    top[room] = below[chosen]
                    if top[room] < 0:
                        _mark(tree, found, 0)
            else:
                tried = 0
                while found >= 0 and chosen < 0 and tried < _PROBES:
                    above, candidate = -1, top[found - leaves]
                    while candidate >= 0 and tried < _PROBES:
                        tried += 1
                        if _fits(more, left, kinds, item, candidate, items):
                            chosen = candidate
                            room = found - leaves
                            if above >= 0:
                                below[above] = below[chosen]
                            else:
                                top[room] = below[chosen]
                                if top[room] < 0:
                                    _mark(tree, found, 0)
                            break
                        above = candidate
                        candidate = below[candidate]
                    if chosen < 0:
                        found = _first_from(tree, found + 1) if found - leaves < capacity else -1
            if chosen < 0:
                chosen = opened
                opened += 1
                for k in range(kinds):
                    left[k * items + chosen] = most[k]
            bins[item] = chosen
            room -= size
            rooms[chosen] = room
            for k in range(kinds):
                left[k * items + chosen] -= more[k * items + item]
            if room > 0:  # a full bin is not pushed again
                if kinds > 0 and _spent(left, least, chosen, items):
                    spent += 1
                    below[chosen] = spent_top[room]
                    if spent_top[room] < 0:
                        _mark(spent_tree, leaves + room, 1)
                    spent_top[room] = chosen
                else:
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
                if kinds > 0 and room > 0 and spent_top[room] >= 0:
                    spent_top[room] = -1
                    _mark(spent_tree, leaves + room, 0)
    return opened
