"""Find similar pairs in one band: index the documents by key, collect pairs with equal keys, and compare them.

A task covers one range of a band's keys and sorts only these, so memory holds some millions of keys for any size of
data. Keys of earlier dumps are looked up in their sorted indexes, which are memory-mapped. Pairs that an earlier band
has found are skipped. The others are compared by their whole sets of shingles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.curation.near.keys import read_ordered
from feedmill.curation.near.parallel import go_on
from feedmill.curation.near.view import Ints, View, Words, open_view
from feedmill.formats.arrays import write_arrays
from feedmill.formats.signatures import read_arrays
from feedmill.kernels.hashing import near_pairs
from feedmill.kernels.hashing.near_pairs import LEAST, MOST, PAIRS

RANGE = 8 << 20
"""Approximate number of documents in a range of keys."""
ROOM = 8 << 20
"""Number of pairs in memory."""
HELD = 16 << 20
"""Number of shingles in memory while comparing; more if a single pair has more."""
BATCH = 1 << 16
"""Number of pairs compared at once."""


@dataclass(frozen=True, slots=True)
class JoinTask:
    """Range of the keys of a band, including `high`. `last` is the folder of the dump that is being added.

    `files` is the number of files with ordered keys (see `curation.near.keys`); 0 if there is one range.
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

    def __str__(self) -> str:
        return f"band {self.band}, range {self.part} of its keys"

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


def ranges(documents: int) -> list[tuple[int, int]]:
    """Return the bounds of the ranges of keys, upper bounds included. Each range has some millions of documents."""
    count = max(1, -(-documents // RANGE))
    bounds = [(number << 64) // count for number in range(count + 1)]
    return [(low, high - 1) for low, high in pairwise(bounds)]


def join(task: JoinTask) -> Joined:
    """Write the index and the similar pairs of a range, unless an earlier run did."""
    view = open_view(task.folder, task.dumps, task.last)
    if view.store.exists(task.path):
        done = read_arrays(view.store, task.path)
        candidates, left_out = done["counts"].tolist()
        return Joined(candidates, left_out, len(done["edges"]))
    first = view.plan["first"]
    keys, numbers = _column(view, task, first)
    old_keys, old_numbers, left_out = _matches(view, task, keys)
    shared, documents = _shared(np.concatenate([old_keys, keys]), np.concatenate([old_numbers, numbers]))
    edges, candidates = [np.empty((0, 2), np.int64)], 0
    for low, high in _chunks(shared):
        go_on()
        members = documents[low:high]
        columns = view.columns(members, task.band)
        pairs, more = near_pairs.candidates(shared[low:high], members >= first, view.digests(members), columns)
        del columns
        edges.append(members[_similar(view, members, pairs, task.threshold)])
        candidates, left_out = candidates + len(pairs), left_out + more
    similar = np.concatenate(edges)
    write_arrays(
        view.store,
        task.path,
        {
            "keys": keys,
            "documents": (numbers - first).astype(np.uint32),
            "edges": similar,
            "counts": np.array([candidates, left_out], np.int64),
        },
    )
    return Joined(candidates, left_out, len(similar))


def _column(view: View, task: JoinTask, first: int) -> tuple[Words, Ints]:
    """Return the sorted keys of the new documents in this range, and the documents, ordered by key and number."""
    if task.files:
        slot = task.band * len(ranges(view.plan["rows"])) + task.part
        keys, numbers = read_ordered(view, task.files, slot)
    else:
        keys, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for begin, arrays in view.segments(first):
            column = arrays["keys"][task.band]
            chosen = np.flatnonzero(column)
            keys.append(column[chosen])
            numbers.append(chosen + begin)
    all_keys, all_numbers = np.concatenate(keys), np.concatenate(numbers)
    order = np.argsort(all_keys, kind="stable")
    return all_keys[order], all_numbers[order]


def _matches(view: View, task: JoinTask, keys: Words) -> tuple[Words, Ints, int]:
    """Return the keys and numbers of the documents of earlier dumps that have one of these sorted keys.

    If thousands have the same key, only some of the first and last are returned. The third result is the number of
    pairs that this skips.
    """
    wanted, counts = np.unique(keys, return_counts=True)
    found_keys, found, left_out = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], 0
    for plan in view.plans[:-1]:
        for part, (low, high) in enumerate(ranges(plan["rows"])):
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


def _shared(keys: Words, numbers: Ints) -> tuple[Words, Ints]:
    """Return the documents that share their key with another, sorted by key, in the given order for equal keys."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    same = keys[1:] == keys[:-1]
    several = np.zeros(len(keys), np.bool_)
    several[1:] |= same
    several[:-1] |= same
    return keys[several], numbers[order[several]]


def _chunks(keys: Words) -> Iterator[tuple[int, int]]:
    """Yield the bounds of chunks of whole buckets with up to `ROOM` pairs each, or more if a single bucket has more."""
    if not len(keys):
        return
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1, [len(keys)]])
    sizes = np.diff(starts)
    reach = np.maximum(LEAST, np.minimum(MOST, PAIRS // sizes))
    room = np.cumsum(sizes * np.minimum(sizes, 2 * reach + 1))
    low, before = 0, 0
    while low < len(sizes):
        high = max(low + 1, int(np.searchsorted(room, before + ROOM, "right")))
        yield int(starts[low]), int(starts[high])
        low, before = high, int(room[high - 1])


def _similar(view: View, numbers: Ints, pairs: npt.NDArray[np.int64], threshold: float) -> npt.NDArray[np.int64]:
    """Return the similar pairs among `pairs` of indices into `numbers`, without those that other pairs connect."""
    kept = [np.empty((0, 2), np.int64)]
    sizes, parents = view.sizes(numbers), np.arange(len(numbers))
    todo = [pairs[at : at + BATCH] for at in range(0, len(pairs), BATCH)][::-1]
    while todo:
        batch = todo.pop()
        used, which = np.unique(batch, return_inverse=True)
        if sizes[used].sum() > HELD and len(batch) > 1:
            todo += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
            continue
        sets, starts = view.sets(numbers[used])
        kept.append(near_pairs.similar(sets, starts, sizes[used], which.reshape(-1, 2), batch, threshold, parents))
    return np.concatenate(kept)
