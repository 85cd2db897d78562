"""Access to the documents of a folder of signatures by their numbers, across segments and dumps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.curation.options import LONGEST, Keep
from feedmill.formats.arrays import Arrays, release
from feedmill.formats.signatures import damaged, dump_name, read_arrays, read_record, segment_name
from feedmill.jobs.memory import FULL, sized
from feedmill.storage import Store, open_store

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
MAPPED = 8192
"""Maximum number of segments that are mapped at once."""
RESIDENT = 32 << 20
"""Bytes of mapped segments that may be in the memory of a task with full room; more if one segment has more."""
_TABLE = 8 << 20
"""Bytes of a mapped table that may be in memory."""
_AROUND = 2 << 20
"""Bytes that become resident where one is read: Linux maps all pages of a large folio of its cache at once."""
RANKS, NUMBERS = "ranks", "numbers"
WORK = "work"
"""Folder in a dump's folder for what is needed only until the dump is recorded."""


@dataclass(slots=True)
class View:
    """Documents of all dumps up to one, in order.

    Args:
        plans: The dumps' records (see `curation.near.dumps`).
        room: Memory of a task; see `feedmill.jobs.memory`.
    """

    store: Store
    plans: Sequence[dict[str, Any]]
    room: int = FULL
    names: list[str] = field(default_factory=list)
    firsts: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    _open: OrderedDict[int, Arrays] = field(default_factory=OrderedDict)
    _read: set[int] = field(default_factory=set)
    _resident: int = 0

    def __post_init__(self) -> None:
        firsts, at = [], 0
        for plan in self.plans:
            for file in plan["files"]:
                for number, rows in enumerate(file["segments"]):
                    self.names.append(segment_name(file["print"], number))
                    firsts.append(at)
                    at += rows
        self.firsts = np.array(firsts, np.int64)

    @property
    def plan(self) -> dict[str, Any]:
        """Record of the last dump."""
        return self.plans[-1]

    def segment(self, number: int, size: int | None = None) -> Arrays:
        """Return the memory-mapped arrays of a segment.

        Args:
            size: Bytes of it that become resident before the next call. None: All.
        """
        arrays = self._open.pop(number, None)
        if arrays is None:
            arrays = read_arrays(self.store, self.names[number])
            if len(self._open) >= MAPPED:
                self._open.popitem(last=False)
        self._open[number] = arrays
        whole = sum(values.nbytes for values in arrays.values())
        size = whole if size is None else min(size + _AROUND, whole)
        if self._resident + size > sized(RESIDENT, self.room):
            read, self._read, self._resident = self._read, set(), 0
            for one in list(read):  # if other threads read them now, their pages are mapped again
                if (before := self._open.get(one)) is not None:
                    release(before)
        self._read.add(number)
        self._resident += size
        return arrays

    def rows(self, number: int) -> int:
        """Return the number of documents of a segment."""
        last = number + 1 == len(self.firsts)
        end = self.plan["first"] + self.plan["rows"] if last else self.firsts[number + 1]
        return int(end - self.firsts[number])

    def segments(self, first: int) -> Iterator[tuple[int, Arrays]]:
        """Yield the segments with documents from number `first` on, each with the number of its first document."""
        for number in range(int(np.searchsorted(self.firsts, first)), len(self.names)):
            yield int(self.firsts[number]), self.segment(number)

    def columns(self, numbers: Ints, bands: int) -> Words:
        """Return the keys of the first `bands` bands of these documents, uint64[bands, n]."""
        out = np.empty((bands, len(numbers)), np.uint64)
        for where, arrays, local in self._parts(numbers, bands):
            for band in range(bands):
                out[band, where] = arrays["keys"][band, local]
        return out

    def digests(self, numbers: Ints) -> Words:
        """Return the digests of the documents' sets, uint64[n]."""
        out = np.empty(len(numbers), np.uint64)
        for where, arrays, local in self._parts(numbers):
            out[where] = arrays["digests"][local]
        return out

    def lengths(self, numbers: Ints) -> Ints:
        """Return the documents' lengths in characters, int64[n]."""
        out = np.empty(len(numbers), np.int64)
        for where, arrays, local in self._parts(numbers):
            out[where] = arrays["lengths"][local]
        return out

    def sizes(self, numbers: Ints) -> Ints:
        """Return the sizes of the documents' sets, int64[n]."""
        out = np.empty(len(numbers), np.int64)
        for where, arrays, local in self._parts(numbers):
            out[where] = _sizes(arrays["ends"], local)
        return out

    def sets(self, numbers: Ints) -> tuple[Words, Ints]:
        """Return the concatenated sets of the documents (uint64, in any order), and the start of each set, int64[n]."""
        pieces, starts, at = [np.empty(0, np.uint64)], np.empty(len(numbers), np.int64), 0
        for where, arrays, local in self._parts(numbers):
            ends, sets = arrays["ends"][local], arrays["sets"]
            sizes = _sizes(arrays["ends"], local)
            starts[where] = at + np.cumsum(sizes) - sizes
            at += int(sizes.sum())
            own = [sets[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
            pieces.append(np.concatenate(own))  # while the segment is in memory
        return np.concatenate(pieces), starts

    def ids(self, numbers: Ints) -> list[bytes]:
        """Return the documents' ids as JSON."""
        out = [b""] * len(numbers)
        for where, arrays, local in self._parts(numbers):
            ends, ids = arrays["id_ends"][local], arrays["ids"]
            sizes = _sizes(arrays["id_ends"], local)
            for at, end, size in zip(where.tolist(), ends.tolist(), sizes.tolist(), strict=True):
                out[at] = ids[end - size : end].tobytes()
        return out

    def origin(self, number: int) -> tuple[str, int]:
        """Return the file and line of a document."""
        for plan in self.plans:
            for file in plan["files"]:
                if number < file["rows"]:
                    return str(file["name"]), number + 1
                number -= file["rows"]
        raise IndexError(number)

    def files(self, numbers: Ints) -> dict[str, int]:
        """Return how many of these documents are in each file, by its name."""
        files = [file for plan in self.plans for file in plan["files"]]
        ends = np.cumsum([file["rows"] for file in files])
        which, counts = np.unique(np.searchsorted(ends, numbers, side="right"), return_counts=True)
        return {str(files[at]["name"]): count for at, count in zip(which.tolist(), counts.tolist(), strict=True)}

    def decisions(self, numbers: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
        """Return the first and the kept document of each document's cluster, int64[n] each.

        Both are the document itself if it has no cluster. The third result is whether the document's own dump found a
        cluster that it is in, bool[n]. All documents must be in dumps whose clusters were written.
        """
        roots, kept, members = numbers.copy(), numbers.copy(), np.zeros(len(numbers), np.bool_)
        firsts = np.array([plan["first"] for plan in self.plans], np.int64)
        owners = np.searchsorted(firsts, numbers, side="right") - 1
        for owner in np.unique(owners).tolist():
            plan, where = self.plans[owner], np.flatnonzero(owners == owner)
            size = plan.get("clusters", 0)
            files = (numbers[where] - plan["first"]) // size if size else np.zeros(len(where), np.int64)
            for file in np.unique(files).tolist():
                arrays = read_arrays(self.store, clusters_name(plan["folder"], file if size else None))
                own, found = where[files == file], arrays["members"]
                at = np.searchsorted(found, numbers[own])
                hit = at < len(found)
                hit[hit] = found[at[hit]] == numbers[own[hit]]
                members[own] = hit
                roots[own[hit]], kept[own[hit]] = arrays["roots"][at[hit]], arrays["kept"][at[hit]]
        return roots, kept, members

    def _parts(self, numbers: Ints, places: int = 2) -> Iterator[tuple[Ints, Arrays, Ints]]:
        """Yield, per segment, the indices of its documents in `numbers`, its arrays, and the rows of the documents.

        Args:
            places: Number of places of the arrays that are read for a document.
        """
        owners = np.searchsorted(self.firsts, numbers, side="right") - 1
        order = np.argsort(owners, kind="stable")
        sorted_owners = owners[order]
        cuts = np.flatnonzero(np.diff(sorted_owners)) + 1
        for where in np.split(order, cuts) if len(order) else []:
            owner = int(owners[where[0]])
            size = _AROUND * places * len(where)
            yield where, self.segment(owner, size), numbers[where] - self.firsts[owner]


@dataclass(frozen=True, slots=True)
class Order:
    """Numbers of the new documents in the order in which they are settled, and back.

    Attributes:
        first: Number of the first new document. Earlier ones keep their numbers.
        ranks, numbers: int[n], the place of each new document, and the document at each place; None where these agree.
    """

    first: int
    ranks: npt.NDArray[Any] | None = None
    numbers: npt.NDArray[Any] | None = None

    def places(self, documents: Ints) -> Ints:
        """Return the places of documents."""
        return self._mapped(documents, self.ranks)

    def documents(self, places: Ints) -> Ints:
        """Return the documents at these places."""
        return self._mapped(places, self.numbers)

    def _mapped(self, values: Ints, table: npt.NDArray[Any] | None) -> Ints:
        if table is None:
            return values
        out, new = values.copy(), values >= self.first
        wanted = values[new] - self.first
        if table.nbytes <= _TABLE:
            out[new] = table[wanted] + self.first
            return out
        order = np.argsort(wanted)
        wanted = wanted[order]
        cuts = np.searchsorted(wanted, np.arange(0, len(table) + _TABLE // 4, _TABLE // 4)).tolist()
        found = np.empty(len(wanted), np.int64)
        for low, high in pairwise(cuts):
            if low < high:
                found[order[low:high]] = table[wanted[low:high]]
                release({"": table})
        out[new] = found + self.first
        return out


def order_of(view: View, keep: Keep) -> Order:
    """Return the order in which the last dump's documents are settled; `curation.near.keys.rank` wrote it."""
    if keep != LONGEST:
        return Order(view.plan["first"])
    ranks, numbers = (read_arrays(view.store, order_name(view.plan["folder"], name))[name] for name in (RANKS, NUMBERS))
    return Order(view.plan["first"], ranks, numbers)


def order_name(folder: str, name: str) -> str:
    """Return the path of `RANKS` or `NUMBERS` of the order by length of the dump in this folder."""
    return f"{folder}/{WORK}/{name}"


def clusters_name(folder: str, number: int | None = None) -> str:
    """Return the path of a dump's clusters, or of those of one range of its documents."""
    return f"{folder}/clusters" if number is None else f"{folder}/clusters-{number:05d}"


def _sizes(ends: Ints, which: Ints) -> Ints:
    return ends[which] - np.where(which > 0, ends[np.maximum(which - 1, 0)], 0)


@lru_cache(maxsize=1)  # two views would have twice the pages in memory
def open_view(
    folder: str,
    dumps: int,
    last: str | None,
    room: int = FULL,
    key: str = "",  # noqa: ARG001 - key of the cache
) -> View:
    """Return a view of the first `dumps` dumps and, unless `last` is None, of the planned dump in that folder.

    Views are cached, also between runs in a worker that is kept: `key` identifies the content, as `last` does.
    """
    store = open_store(folder)
    plans = [read_record(store, dump_name(number)) for number in range(dumps)]
    if last is not None:
        plans.append(read_record(store, f"{last}/plan.json"))
    missing = [number for number, plan in enumerate(plans) if plan is None]
    if missing:
        raise damaged(store, dump_name(missing[0]), "it is missing")
    return View(store, [plan for plan in plans if plan is not None], room)
