"""Order the keys of the documents of a dump by band and range, so that a join task reads only its own; and by length.

The digests of the documents' sets lie beside the keys. The documents of a range are in all segments: to look them up
there, each of the tasks, whose number grows with the documents, would read all segments.

These are stages of their own, the first for dumps with more than one range: only when all files are read are the ranges
and lengths known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feedmill.curation.near.parallel import go_on
from feedmill.curation.near.view import NUMBERS, RANKS, WORK, Ints, View, Words, open_view, order_name
from feedmill.formats.arrays import Arrays, release, stream_arrays, write_arrays
from feedmill.formats.signatures import read_arrays
from feedmill.jobs.memory import sized

GROUP = 1 << 19
"""Approximate number of documents whose keys are ordered at once, in a task with full room."""
PLACES = 4 << 20
"""Number of documents whose places in the order by length are in memory, in a task with full room."""


@dataclass(frozen=True, slots=True)
class KeysTask:
    """Segments `low` to `high` of the view; `last` is the folder of the dump that is being added.

    `bounds` are the last keys of the ranges.
    """

    folder: str
    dumps: int
    last: str
    number: int
    low: int
    high: int
    bands: int
    bounds: tuple[int, ...]
    room: int

    def __str__(self) -> str:
        return f"signatures {self.low} to {self.high - 1}"


def key_name(folder: str, band: int, number: int) -> str:
    """Return the path of a file of keys."""
    return f"{folder}/{WORK}/ordered-{band:02d}-{number:05d}"


def groups(view: View) -> list[tuple[int, int]]:
    """Return the bounds of groups of segments of the last dump with about `GROUP` documents."""
    first = int(np.searchsorted(view.firsts, view.plan["first"]))
    ends = [*view.firsts[1:].tolist(), view.plan["first"] + view.plan["rows"]]
    found, low = [], first
    for number in range(first, len(view.names)):
        if ends[number] - int(view.firsts[low]) >= sized(GROUP, view.room) or number == len(view.names) - 1:
            found.append((low, number + 1))
            low = number + 1
    return found


def order_keys(task: KeysTask) -> int:
    """Write the keys of some segments, ordered by range, for each band, unless an earlier run did. Return their number.

    The array file of a band has ``keys`` uint64[k], ``documents`` uint32[k], relative to the dump's first, their
    ``digests`` uint64[k], and ``starts`` int64[ranges + 1]: the first of each range. Within a range, they are in the
    order of the documents.
    """
    view = open_view(task.folder, task.dumps, task.last, task.room)
    first, bounds, count = view.plan["first"], np.array(task.bounds, np.uint64), 0
    digests = None
    for band in range(task.bands):
        path = key_name(task.last, band, task.number)
        if not view.store.exists(path):
            go_on()
            if digests is None:
                digests = np.concatenate([_longs(view, n)["digests"] for n in range(task.low, task.high)])
            column = np.concatenate([_longs(view, n)["keys"][band] for n in range(task.low, task.high)])
            used = np.flatnonzero(column)
            column = column[used]
            ranges = np.searchsorted(bounds, column).astype(np.uint16)
            order = np.argsort(ranges, kind="stable")
            starts = np.zeros(len(bounds) + 1, np.int64)
            np.cumsum(np.bincount(ranges, minlength=len(bounds)), out=starts[1:])
            used = used[order]
            documents = (used + (int(view.firsts[task.low]) - first)).astype(np.uint32)
            arrays = {"keys": column[order], "documents": documents, "digests": digests[used], "starts": starts}
            write_arrays(view.store, path, arrays)
        count += len(read_arrays(view.store, path)["keys"])
    return count


def _longs(view: View, number: int) -> Arrays:
    """Return the arrays of a segment, of which one value for each document is read."""
    return view.segment(number, 8 * view.rows(number))


def read_ordered(
    view: View, files: int, band: int, part: int
) -> tuple[Sequence[Words], Sequence[Ints], Sequence[Words]]:
    """Return the keys of a range of a band from all files, their documents, and the digests of these."""
    keys, documents, digests = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
    for number in range(files):
        arrays = read_arrays(view.store, key_name(view.plan["folder"], band, number))
        own = slice(*arrays["starts"][part : part + 2].tolist())
        keys.append(arrays["keys"][own].copy())  # so that the file is not mapped any more
        documents.append(arrays["documents"][own].astype(np.int64) + view.plan["first"])
        digests.append(arrays["digests"][own].copy())
    return keys, documents, digests


@dataclass(frozen=True, slots=True)
class RankTask:
    """Documents of the dump that is being added, in the folder `last`."""

    folder: str
    dumps: int
    last: str
    room: int

    def __str__(self) -> str:
        return "lengths"


def rank(task: RankTask) -> int:
    """Write the order of ``keep="longest"``, unless an earlier run did: by length, then by number. Return the number.

    In memory are the number of documents of each length, and the lengths or places of `PLACES` documents.
    """
    view = open_view(task.folder, task.dumps, task.last, task.room)
    ranks, numbers = (order_name(task.last, name) for name in (RANKS, NUMBERS))
    rows = int(view.plan["rows"])
    if not view.store.exists(ranks):
        with view.store.build(ranks) as path, open(path, "wb") as out:
            stream_arrays(out, RANKS, _places(view), dtype="<u4")
    if not view.store.exists(numbers):
        places = read_arrays(view.store, ranks)[RANKS]
        with view.store.build(numbers) as path, open(path, "wb") as out:
            stream_arrays(out, NUMBERS, _inverse(places, sized(PLACES, task.room)), dtype="<u4")
    return rows


def _lengths(view: View) -> Iterator[Ints]:
    first = int(np.searchsorted(view.firsts, view.plan["first"]))
    for number in range(first, len(view.names)):
        go_on()
        yield _longs(view, number)["lengths"]


def _places(view: View) -> Iterator[Ints]:
    """Yield the place of each document, segment by segment: after longer ones, and earlier ones of its length."""
    values, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for lengths in _lengths(view):
        own, times = np.unique(lengths, return_counts=True)
        values, at = np.unique(np.concatenate([values, own]), return_inverse=True)
        counts = np.bincount(at, np.concatenate([counts, times]), len(values)).astype(np.int64)
    nexts = counts[::-1].cumsum()[::-1] - counts
    for lengths in _lengths(view):
        which = np.searchsorted(values, lengths)
        order = np.argsort(which, kind="stable")
        times = np.bincount(which, minlength=len(values))
        places = np.empty(len(which), np.int64)
        places[order] = np.arange(len(which)) + np.repeat(nexts - times.cumsum() + times, times)
        nexts += times
        yield places


def _inverse(places: npt.NDArray[np.uint32], most: int) -> Iterator[npt.NDArray[np.uint32]]:
    """Yield the document at each place, `most` of them at a time. All places are read for each time."""
    for low in range(0, len(places), most):
        go_on()
        high = min(low + most, len(places))
        out = np.empty(high - low, np.uint32)
        for at in range(0, len(places), most):
            some = places[at : at + most]
            own = np.flatnonzero((some >= low) & (some < high))
            out[some[own] - np.uint32(low)] = own + at
            release({"": places})
        yield out
