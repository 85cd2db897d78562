"""Candidate pairs of near-duplicates, those that are similar enough, and what is connected or covered by them.

A bucket is a run of documents with one band key, in the order of the input. Of documents with equal sets (by their
digest), only the first takes part. The others are paired with it, in the first band only; equal sets share that key
too. All remaining documents are paired with each other, except in a bucket of thousands: there, each is paired only
with some of the first documents and some of the last before it. Pairs found by an earlier band are skipped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import Array, kernel

MOST, LEAST = 128, 4
PAIRS = 1 << 21
_0, _1 = np.uint64(0), np.uint64(1)


@kernel("i64 -> i64")
def reach(size):  # type: ignore[no-untyped-def]
    """Return how many of the first documents, and of the last before it, a document is paired with in a bucket.

    This limits a bucket to a few million pairs, but to no fewer than `LEAST` on each side of every document.
    """
    return max(LEAST, min(MOST, PAIRS // max(1, size)))


@kernel
def _found_before(columns, i, j):  # type: ignore[no-untyped-def]
    for band in range(len(columns)):
        if columns[band, i] == columns[band, j]:
            return True
    return False


@kernel
def _first(places, digests, low, j):  # type: ignore[no-untyped-def]
    """Return the first document of the bucket with this digest; `places` has documents minus `low`, or -1."""
    mask = np.uint64(len(places) - 1)
    at = digests[j] & mask
    while places[at] >= 0:
        if digests[low + places[at]] == digests[j]:
            return low + places[at]
        at = (at + _1) & mask
    places[at] = j - low
    return j


@kernel
def _pair(low, high, new, digests, columns, pairs, places, distinct, count, left_out):  # type: ignore[no-untyped-def]
    """Write the pairs of the bucket from `low` to `high` to `pairs`, from index `count` on."""
    most, known = reach(high - low), 0
    size = 2
    while size < 2 * (high - low):
        size *= 2
    places = places[:size]
    places[:] = -1
    for j in range(low, high):
        i = _first(places, digests, low, j)
        if i != j:
            if new[j] and len(columns) == 0:
                pairs[count, 0], pairs[count, 1] = i, j
                count += 1
            continue
        if new[j]:
            left_out[0] += max(0, known - 2 * most)
            for d in range(min(known, 2 * most)):
                i = distinct[d if d < most or known <= 2 * most else d + known - 2 * most]
                if not _found_before(columns, i, j):
                    pairs[count, 0], pairs[count, 1] = i, j
                    count += 1
        distinct[known] = j
        known += 1
    return count


def candidates(keys: Array, new: Array, digests: Array, columns: Array) -> tuple[Array, int]:
    """Return the pairs (earlier, later) of document numbers, int64[m, 2], and the number of pairs skipped by `reach`.

    Args:
        keys: uint64[n], the band key of each document, sorted; equal keys are in the order of the input.
        new: bool[n], whether each document is new. A pair whose later document is not is skipped: an earlier run
            handled it.
        digests: uint64[n], the digest of each document's set.
        columns: uint64[earlier bands, n], the keys of the earlier bands.
    """
    largest, left_out = np.zeros(1, np.int64), np.zeros(1, np.int64)
    pairs = np.empty((_measure(keys, largest), 2), np.int64)
    places, distinct = np.empty(4 * int(largest[0]), np.int64), np.empty(int(largest[0]), np.int64)
    count = _candidates(keys, new, digests, columns, pairs, places, distinct, left_out)
    return pairs[:count].copy(), int(left_out[0])


@kernel("u64[:], out i64[:] -> i64")
def _measure(keys, largest):  # type: ignore[no-untyped-def]
    """Return how many pairs there may be, and write the size of the largest bucket."""
    room, low = 0, 0
    for at in range(1, len(keys) + 1):
        if at == len(keys) or keys[at] != keys[low]:
            size = at - low
            room += size * min(size, 2 * reach(size) + 1)
            largest[0] = max(largest[0], size)
            low = at
    return room


@kernel("u64[:], b[:], u64[:], u64[:,:], out i64[:,:], out i64[:], out i64[:], out i64[:] -> i64")
def _candidates(keys, new, digests, columns, pairs, places, distinct, left_out):  # type: ignore[no-untyped-def]
    count, low = 0, 0
    for at in range(1, len(keys) + 1):
        if at == len(keys) or keys[at] != keys[low]:
            if at - low > 1:
                count = _pair(low, at, new, digests, columns, pairs, places, distinct, count, left_out)
            low = at
    return count


@kernel
def _root(parents, i):  # type: ignore[no-untyped-def]
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i


@kernel
def _fill(table, places, sets, low, high):  # type: ignore[no-untyped-def]
    mask = np.uint64(places - 1)
    table[:places] = _0
    for s in range(low, high):
        at = sets[s] & mask
        while table[at] != _0:
            at = (at + _1) & mask
        table[at] = sets[s]


@kernel
def _filled(table, sets, start, size):  # type: ignore[no-untyped-def]
    """Write a set to the table. Return the places of it that are used."""
    places = 2
    while places < 2 * size:
        places *= 2
    _fill(table, places, sets, start, start + size)
    return places


@kernel
def _shared(table, places, sets, low, high):  # type: ignore[no-untyped-def]
    mask = np.uint64(places - 1)
    count = 0
    for s in range(low, high):
        at = sets[s] & mask
        while table[at] != _0 and table[at] != sets[s]:
            at = (at + _1) & mask
        count += table[at] == sets[s]
    return count


def similar(
    sets: Array, starts: Array, sizes: Array, which: Array, pairs: Array, threshold: float, parents: Array
) -> Array:
    """Return the pairs with a Jaccard similarity of at least `threshold`, except those that earlier pairs connect.

    Args:
        sets: uint64, concatenated sets of elements other than 0.
        starts, sizes: int64, start and size of each set.
        which: int64[m, 2], the sets of each pair.
        pairs: int64[m, 2], the document numbers of each pair.
        parents: int64, the connections so far, by document number; changed in place.

    Returns:
        int64[k, 2], the document numbers of the kept pairs.
    """
    kept = np.empty_like(pairs)
    table = np.empty(4 * int(sizes[which[:, 1]].max(initial=1)), np.uint64)
    return kept[: _similar(sets, starts, sizes, which, pairs, threshold, parents, table, kept)].copy()


@kernel("u64[:], i64[:], i64[:], i64[:,:], i64[:,:], f64, out i64[:], out u64[:], out i64[:,:] -> i64")
def _similar(sets, starts, sizes, which, pairs, threshold, parents, table, kept):  # type: ignore[no-untyped-def]
    count, held, places = 0, -1, 2
    for k in range(len(pairs)):
        a, b = _root(parents, pairs[k, 0]), _root(parents, pairs[k, 1])
        if a == b:
            continue
        i, j = which[k, 0], which[k, 1]
        if min(sizes[i], sizes[j]) < threshold * max(sizes[i], sizes[j]) - 1:
            continue
        if held != j:
            places, held = _filled(table, sets, starts[j], sizes[j]), j
        shared = _shared(table, places, sets, starts[i], starts[i] + sizes[i])
        if shared / (sizes[i] + sizes[j] - shared) >= threshold:
            parents[b] = a
            kept[count, 0], kept[count, 1] = pairs[k, 0], pairs[k, 1]
            count += 1
    return count


@kernel("u64[:], i64[:], i64[:], i64[:,:], i64[:,:], f64, out u8[:], out u64[:], out i64[:] -> i64")
def covering(sets, starts, sizes, which, pairs, threshold, covered, table, kept):  # type: ignore[no-untyped-def]
    """Compare the pairs whose documents are both not covered yet, and let the later one of a similar pair be covered.

    Args:
        sets, starts, sizes, which: See `similar`.
        pairs: int64[m, 2], the indices of each pair in `covered`; those of one later document follow one another.
        threshold: Minimum Jaccard similarity.
        covered: uint8, whether each document is covered; changed in place.
        table: uint64, room for twice the elements of the largest set, rounded up to a power of two.
        kept: int64[m], receives the indices of the similar pairs.

    Returns:
        The number of similar pairs.
    """
    count, held, places = 0, -1, 2
    for k in range(len(pairs)):
        if covered[pairs[k, 0]] != 0 or covered[pairs[k, 1]] != 0:
            continue
        i, j = which[k, 0], which[k, 1]
        if min(sizes[i], sizes[j]) < threshold * max(sizes[i], sizes[j]) - 1:
            continue
        if held != j:
            places, held = _filled(table, sets, starts[j], sizes[j]), j
        shared = _shared(table, places, sets, starts[i], starts[i] + sizes[i])
        if shared / (sizes[i] + sizes[j] - shared) >= threshold:
            covered[pairs[k, 1]] = 1
            kept[count] = k
            count += 1
    return count


def room(sizes: npt.NDArray[np.int64]) -> int:
    """Return the room of a table for sets of these sizes: a power of two of at least twice the largest."""
    return 2 << (int(sizes.max(initial=1)) - 1).bit_length()


@kernel("u64[:], i64[:], i64[:], i64[:,:], out u64[:], out i64[:]")
def overlaps(sets, starts, sizes, which, table, shared):  # type: ignore[no-untyped-def]
    """Write the number of elements that the two sets of each pair share to `shared`, int64[m]; see `covering`."""
    for k in range(len(which)):
        i, j = which[k, 0], which[k, 1]
        places = _filled(table, sets, starts[j], sizes[j])
        shared[k] = _shared(table, places, sets, starts[i], starts[i] + sizes[i])


@kernel("i64[:,:], i64, i64, out u8[:], out i64[:]")
def settle(pairs, first, low, kept, covers):  # type: ignore[no-untyped-def]
    """Let each document of a range be kept unless a kept one before it is similar: the greedy independent set.

    Args:
        pairs: int64[m, 2], (later, earlier) documents, sorted. ``~earlier`` is one with an equal set.
        first: Documents before this one are kept.
        low: First document of the range, which all later ones are in.
        kept: uint8, whether each document from `first` on is kept; changed in place.
        covers: int64, receives for each document of the range the first kept one that covers it: itself if it is kept.
            Of a document whose equal is before the range and not kept, ``~equal``.
    """
    for at in range(len(covers)):
        covers[at] = low + at
    for k in range(len(pairs)):
        later, earlier = pairs[k, 0], pairs[k, 1]
        if covers[later - low] != later:
            continue
        equal = earlier < 0
        if equal:
            earlier = ~earlier
        if earlier < first or kept[earlier - first] != 0:
            covers[later - low] = earlier
        elif equal and earlier >= low:
            covers[later - low] = covers[earlier - low]
        elif equal:
            covers[later - low] = ~earlier
        else:
            continue
        kept[later - first] = 0


def components(count: int, pairs: Array) -> Array:
    """Return the first member of the component of each node, int64[count], for pairs int64[m, 2]."""
    parents = np.arange(count)
    _connect(pairs, parents)
    return parents


@kernel("i64[:,:], out i64[:]")
def _connect(pairs, parents):  # type: ignore[no-untyped-def]
    for k in range(len(pairs)):
        a, b = _root(parents, pairs[k, 0]), _root(parents, pairs[k, 1])
        parents[max(a, b)] = min(a, b)
    for i in range(len(parents)):
        parents[i] = _root(parents, i)
