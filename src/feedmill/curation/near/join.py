"""Find similar pairs in one band: index the documents by key, collect pairs with equal keys, and compare them.

A task covers one range of a band's keys and sorts only these, so memory holds up to a million keys for any size of
data, or those of the largest bucket. Keys of earlier dumps are looked up in their sorted indexes, which are
memory-mapped. Pairs that an earlier band has found are skipped. The others are compared by their whole sets of
shingles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from feedmill.curation.near.keys import read_ordered
from feedmill.curation.near.parallel import go_on
from feedmill.curation.near.view import Bytes, Flags, Ints, Order, View, Words, open_view, order_of
from feedmill.curation.options import CONNECTED, COVERED, Keep, Removal
from feedmill.formats.arrays import write_arrays
from feedmill.formats.signatures import read_arrays
from feedmill.jobs.memory import sized
from feedmill.kernels.hashing import near_pairs
from feedmill.kernels.hashing.near_pairs import LEAST, MOST, PAIRS

RANGE = 1 << 20
"""Approximate number of documents in a range of keys, in a task with full room. Each takes 100 bytes."""
ROOM = 2 << 20
"""Number of pairs in memory, in a task with full room. A pair takes 32 bytes, and a document the keys of all bands."""
HELD = 4 << 20
"""Number of shingles in memory while comparing, in a task with full room; more if a single pair has more."""
BATCH = 1 << 16
"""Number of pairs compared at once."""


@dataclass(frozen=True, slots=True)
class JoinTask:
    """Range of the keys of a band, including `high`. `last` is the folder of the dump that is being added.

    `files` is the number of files with ordered keys (see `curation.near.keys`); 0 if there is one range. `removal` and
    `keep` are those of the options.
    """

    folder: str
    dumps: int
    last: str
    threshold: float
    band: int
    part: int
    low: int
    high: int
    files: int
    removal: Removal
    keep: Keep
    room: int

    def __str__(self) -> str:
        return f"band {self.band}, range {self.part} of its keys"

    @property
    def view(self) -> View:
        """All documents."""
        return open_view(self.folder, self.dumps, self.last, self.room)

    @property
    def path(self) -> str:
        """Path of the result."""
        return index_name(self.last, self.band, self.part)


class Joined(NamedTuple):
    """Number of pairs that shared a key and were compared, of pairs that were skipped in very large buckets, and of
    similar pairs in the result.
    """

    candidates: int
    left_out: int
    edges: int


def index_name(folder: str, band: int, part: int) -> str:
    """Return the path of the index of a range of a band."""
    return f"{folder}/index-{band:02d}-{part:04d}"


def ranges(count: int) -> list[tuple[int, int]]:
    """Return the bounds of this number of ranges of keys, upper bounds included."""
    bounds = [(number << 64) // count for number in range(count + 1)]
    return [(low, high - 1) for low, high in pairwise(bounds)]


def join(task: JoinTask) -> Joined:
    """Write the index and the similar pairs of a range, unless an earlier run did."""
    view = task.view
    if view.store.exists(task.path):
        done = read_arrays(view.store, task.path)
        candidates, left_out = done["counts"].tolist()
        return Joined(candidates, left_out, len(done["edges"]))
    first = view.plan["first"]
    keys, numbers, digests = _column(view, task, first)
    old_keys, old_numbers, left_out = _matches(view, task, keys)
    alike = _shared((old_keys, old_numbers, view.digests(old_numbers)), (keys, numbers, digests))
    del digests
    none, candidates = np.empty((0, 2), np.int64), 0
    edges, copies = [none], [none]
    order = order_of(view, task.keep) if task.removal == COVERED else Order(first)
    for members, pairs, equal, more in _candidates(view, task, *alike, order):
        if task.removal == CONNECTED:
            edges.append(members[_connected(view, members, pairs, task.threshold)])
        else:
            covered = removed_before(view, members).astype(np.uint8)
            edges.append(covered_pairs(view, members, pairs[~equal], covered, task.threshold))
            copies.append(members[pairs[equal]])
        candidates, left_out = candidates + len(pairs), left_out + more
    similar = np.concatenate(edges)
    write_arrays(
        view.store,
        task.path,
        {
            "keys": keys,
            "documents": (numbers - first).astype(np.uint32),
            "edges": similar,
            "copies": np.concatenate(copies),
            "counts": np.array([candidates, left_out], np.int64),
        },
    )
    return Joined(candidates, left_out, len(similar))


def again(view: View, task: JoinTask, documents: Ints, order: Order) -> Iterator[tuple[Ints, Ints, Flags]]:
    """Yield the members and pairs of the buckets of these documents, and whether the two of each pair are equal."""
    if not len(documents):
        return
    first, arrays = view.plan["first"], read_arrays(view.store, task.path)
    wanted = np.unique(view.columns(documents, task.band + 1)[task.band])
    keys = arrays["keys"]
    starts, ends = (np.searchsorted(keys, wanted, side) for side in ("left", "right"))
    sizes = ends - starts
    own = np.arange(int(sizes.sum())) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
    keys, numbers = keys[own], arrays["documents"][own].astype(np.int64) + first
    old_keys, old_numbers, _ = _matches(view, task, keys)
    alike = _shared((old_keys, old_numbers, view.digests(old_numbers)), (keys, numbers, view.digests(numbers)))
    for chunk, pairs, equal, _ in _candidates(view, task, *alike, order):
        yield chunk, pairs, equal


def _candidates(
    view: View, task: JoinTask, keys: Words, documents: Ints, digests: Words, order: Order
) -> Iterator[tuple[Ints, Ints, Flags, int]]:
    """Yield documents, pairs of indices into them, whether the two are equal, and how many pairs are left out."""
    # A pair takes 32 bytes, and a document its keys of the bands before, its digest, and numbers.
    for low, high in _chunks(keys, sized(ROOM, view.room), (task.band + 4) / 4):
        go_on()
        members, sets = documents[low:high], digests[low:high]
        if order.ranks is not None:
            placed = np.lexsort((order.places(members), keys[low:high]))
            members, sets = members[placed], sets[placed]
        columns = _columns(view, task.band, keys[low:high], members, sets)
        pairs, more = near_pairs.candidates(keys[low:high], members >= view.plan["first"], sets, columns)
        del columns
        yield members, pairs, sets[pairs[:, 0]] == sets[pairs[:, 1]], more


def _columns(view: View, bands: int, keys: Words, members: Ints, digests: Words) -> Words:
    """Return the keys of some bands, uint64[bands, n], of the documents that share a bucket with a set unlike theirs.

    Others are compared by their digests alone, and have zeros.
    """
    columns = np.zeros((bands, len(members)), np.uint64)
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])
    sizes = np.diff(starts, append=len(keys))
    unlike = np.add.reduceat(digests != np.repeat(digests[starts], sizes), starts, dtype=np.int64)
    if bands and len(chosen := np.flatnonzero(np.repeat(unlike > 0, sizes))):
        columns[:, chosen] = view.columns(members[chosen], bands)
    return columns


def removed_before(view: View, documents: Ints) -> Flags:
    """Return which documents an earlier dump has removed, bool[n]. These cover nothing."""
    removed, old = np.zeros(len(documents), np.bool_), documents < view.plan["first"]
    if old.any():
        removed[old] = view.decisions(documents[old])[1] != documents[old]
    return removed


def _column(view: View, task: JoinTask, first: int) -> tuple[Words, Ints, Words]:
    """Return the sorted keys of the new documents in this range, and the documents, ordered by key and number.

    The third result is the digests of the documents' sets.
    """
    if task.files:
        keys, numbers, digests = read_ordered(view, task.files, task.band, task.part)
    else:
        keys, numbers, digests = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for begin, arrays in view.segments(first):
            column = arrays["keys"][task.band]
            chosen = np.flatnonzero(column)
            keys.append(column[chosen])
            numbers.append(chosen + begin)
            digests.append(arrays["digests"][chosen])
    all_keys = np.concatenate(keys)
    order = np.argsort(all_keys, kind="stable")
    return all_keys[order], np.concatenate(numbers)[order], np.concatenate(digests)[order]


def _matches(view: View, task: JoinTask, keys: Words) -> tuple[Words, Ints, int]:
    """Return the keys and numbers of the documents of earlier dumps that have one of these sorted keys.

    If thousands have the same key, only some of the first and last are returned. The third result is the number of
    pairs that this skips.
    """
    if len(view.plans) == 1:
        return np.empty(0, np.uint64), np.empty(0, np.int64), 0
    wanted, counts = np.unique(keys, return_counts=True)
    found_keys, found, left_out = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], 0
    for plan in view.plans[:-1]:
        for part, (low, high) in enumerate(ranges(plan["ranges"])):
            inside = slice(np.searchsorted(wanted, np.uint64(low)), np.searchsorted(wanted, np.uint64(high), "right"))
            queried = wanted[inside]
            if high < task.low or low > task.high or not queried.size:
                continue
            arrays = read_arrays(view.store, index_name(plan["folder"], task.band, part))
            starts = np.searchsorted(arrays["keys"], queried)
            sizes = np.searchsorted(arrays["keys"], queried, "right") - starts
            taken = np.minimum(sizes, 2 * MOST)
            left_out += int(((sizes - taken) * counts[inside]).sum())
            at = np.arange(int(taken.sum())) - np.repeat(np.cumsum(taken) - taken, taken)
            at += np.repeat(starts, taken) + np.where(at >= MOST, np.repeat(sizes - taken, taken), 0)
            found_keys.append(np.repeat(queried, taken))
            found.append(arrays["documents"][at].astype(np.int64) + plan["first"])
    return np.concatenate(found_keys), np.concatenate(found), left_out


def _shared(old: tuple[Words, Ints, Words], new: tuple[Words, Ints, Words]) -> tuple[Words, Ints, Words]:
    """Return the documents that share their key with another, sorted by key: for equal keys, old ones first.

    Args:
        old, new: keys, documents, and the digests of their sets. Those of new documents are sorted by key.
    """
    keys, numbers, digests = new
    if len(old[0]):
        keys, numbers, digests = (np.concatenate(both) for both in zip(old, new, strict=True))
        order = np.argsort(keys, kind="stable")
        keys, numbers, digests = keys[order], numbers[order], digests[order]
    same = keys[1:] == keys[:-1]
    several = np.zeros(len(keys), np.bool_)
    several[1:] |= same
    several[:-1] |= same
    return keys[several], numbers[several], digests[several]


def _chunks(keys: Words, most: int, each: float) -> Iterator[tuple[int, int]]:
    """Yield the bounds of chunks of whole buckets with up to `most` pairs each, or more if a single bucket has more.

    Args:
        each: Number of pairs that take as much memory as a document.
    """
    if not len(keys):
        return
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [len(keys)]])
    sizes = np.diff(starts)
    reach = np.maximum(LEAST, np.minimum(MOST, PAIRS // sizes))
    room = np.cumsum(sizes * np.minimum(sizes, 2 * reach + 1) + (sizes * each).astype(np.int64))
    low, before = 0, 0
    while low < len(sizes):
        high = max(low + 1, int(np.searchsorted(room, before + most, "right")))
        yield int(starts[low]), int(starts[high])
        low, before = high, int(room[high - 1])


def _connected(view: View, numbers: Ints, pairs: Ints, threshold: float) -> Ints:
    """Return the similar pairs among `pairs` of indices into `numbers`, without those that other pairs connect."""
    kept, parents = [np.empty((0, 2), np.int64)], np.arange(len(numbers))
    for batch, which, sets, starts, sizes in _batches(view, numbers, pairs):
        kept.append(near_pairs.similar(sets, starts, sizes, which, batch, threshold, parents))
    return np.concatenate(kept)


def covered_pairs(view: View, numbers: Ints, pairs: Ints, covered: Bytes, threshold: float) -> Ints:
    """Return similar pairs of documents, int64[k, 2]: the first one of each later document, of those not covered.

    Args:
        numbers: The documents.
        pairs: int64[m, 2], indices into `numbers`; those of one later document follow one another.
        covered: uint8[n], whether each document is covered; changed in place.
    """
    found = [np.empty((0, 2), np.int64)]
    for batch, which, sets, starts, sizes in _batches(view, numbers, pairs, covered):
        kept = np.empty(len(batch), np.int64)
        table = np.empty(near_pairs.room(sizes), np.uint64)
        count = near_pairs.covering(sets, starts, sizes, which, batch, threshold, covered, table, kept)
        found.append(numbers[batch[kept[:count]]])
    return np.concatenate(found)


def shared_sizes(view: View, pairs: Ints) -> tuple[Ints, Ints]:
    """Return the sizes of the intersection and of the union of the sets of each pair of documents, int64[m] each."""
    numbers, at = np.unique(pairs, return_inverse=True)
    inside, either = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for _, which, sets, starts, sizes in _batches(view, numbers, at.reshape(-1, 2)):
        shared = np.empty(len(which), np.int64)
        near_pairs.overlaps(sets, starts, sizes, which, np.empty(near_pairs.room(sizes), np.uint64), shared)
        inside.append(shared)
        either.append(sizes[which].sum(axis=1) - shared)
    return np.concatenate(inside), np.concatenate(either)


def _batches(
    view: View, numbers: Ints, pairs: Ints, covered: Bytes | None = None
) -> Iterator[tuple[Ints, Ints, Words, Ints, Ints]]:
    """Yield pairs, the two sets of each, and these sets: concatenated, their starts and their sizes.

    Pairs with a document that is covered by then are left out.
    """
    own, sizes = np.unique(pairs), np.zeros(len(numbers), np.int64)
    sizes[own] = view.sizes(numbers[own])
    todo = [pairs[at : at + BATCH] for at in range(0, len(pairs), BATCH)][::-1]
    while todo:
        batch = todo.pop()
        if covered is not None:
            batch = batch[(covered[batch] == 0).all(axis=1)]
        used, which = np.unique(batch, return_inverse=True)
        if sizes[used].sum() > sized(HELD, view.room) and len(batch) > 1:
            todo += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
            continue
        if len(batch):
            yield batch, which.reshape(-1, 2), *view.sets(numbers[used]), sizes[used]
