"""Order the keys of the documents of a dump by band and range, so that a join task reads only its own; and by length.

These are stages of their own, the first for dumps with more than one range: only when all files are read are the ranges
and lengths known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feedmill.curation.near.parallel import go_on
from feedmill.curation.near.view import WORK, Ints, View, Words, open_view, order_name
from feedmill.formats.arrays import Arrays, write_arrays
from feedmill.formats.signatures import read_arrays

KEYS = 16 << 20
"""Approximate number of keys in a file, of all bands."""


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

    def __str__(self) -> str:
        return f"signatures {self.low} to {self.high - 1}"


def key_name(folder: str, number: int) -> str:
    """Return the path of a file of keys."""
    return f"{folder}/{WORK}/keys-{number:05d}"


def groups(view: View, bands: int) -> list[tuple[int, int]]:
    """Return the bounds of groups of segments of the last dump with about `KEYS` keys."""
    first = int(np.searchsorted(view.firsts, view.plan["first"]))
    ends = [*view.firsts[1:].tolist(), view.plan["first"] + view.plan["rows"]]
    found, low = [], first
    for number in range(first, len(view.names)):
        if (ends[number] - int(view.firsts[low])) * bands >= KEYS or number == len(view.names) - 1:
            found.append((low, number + 1))
            low = number + 1
    return found


def order_keys(task: KeysTask) -> int:
    """Write the keys of some segments, ordered by band and range, unless an earlier run did. Return their number.

    The array file has ``keys`` uint64[k], ``documents`` uint32[k], relative to the dump's first, and ``starts``
    int64[bands * ranges + 1]: the first of each range in each band. Within a range, they are in the order of the
    documents.
    """
    view = open_view(task.folder, task.dumps, task.last)
    path = key_name(task.last, task.number)
    if not view.store.exists(path):
        first, bounds = view.plan["first"], np.array(task.bounds, np.uint64)
        keys, documents, sizes = list[Words](), [np.empty(0, np.uint32)], [0]
        for band in range(task.bands):
            go_on()
            column = np.concatenate([view.segment(number)["keys"][band] for number in range(task.low, task.high)])
            used = np.flatnonzero(column)
            column = column[used]
            ranges = np.searchsorted(bounds, column).astype(np.uint16)
            order = np.argsort(ranges, kind="stable")
            keys.append(column[order])
            documents.append((used[order] + (int(view.firsts[task.low]) - first)).astype(np.uint32))
            sizes += np.bincount(ranges, minlength=len(bounds)).tolist()
        arrays: Arrays = {
            "keys": np.concatenate(keys),
            "documents": np.concatenate(documents),
            "starts": np.cumsum(sizes, dtype=np.int64),
        }
        write_arrays(view.store, path, arrays)
    return len(read_arrays(view.store, path)["keys"])


def read_ordered(view: View, files: int, slot: int) -> tuple[Sequence[Words], Sequence[Ints]]:
    """Return the keys of a range of a band from all files, and their documents; `slot` is ``band * ranges + range``."""
    keys, documents = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for number in range(files):
        arrays = read_arrays(view.store, key_name(view.plan["folder"], number))
        own = slice(*arrays["starts"][slot : slot + 2].tolist())
        keys.append(arrays["keys"][own])
        documents.append(arrays["documents"][own].astype(np.int64) + view.plan["first"])
    return keys, documents


@dataclass(frozen=True, slots=True)
class RankTask:
    """Documents of the dump that is being added, in the folder `last`."""

    folder: str
    dumps: int
    last: str

    def __str__(self) -> str:
        return "lengths"


def rank(task: RankTask) -> int:
    """Write the order of ``keep="longest"``, unless an earlier run did: by length, then by number. Return the number.

    This holds 24 bytes for each document.
    """
    view = open_view(task.folder, task.dumps, task.last)
    if not view.store.exists(order_name(task.last)):
        pieces = [arrays["lengths"] for _, arrays in view.segments(view.plan["first"])]
        lengths = np.concatenate([np.empty(0, np.int64), *pieces])
        numbers = np.argsort(-lengths, kind="stable").astype(np.uint32)
        ranks = np.empty_like(numbers)
        ranks[numbers] = np.arange(len(numbers), dtype=np.uint32)
        write_arrays(view.store, order_name(task.last), {"ranks": ranks, "numbers": numbers})
    return int(view.plan["rows"])
