"""Pairs of documents on disk, by ranges of documents, for tasks that read only what belongs to their range.

A graph is a set of array files, called runs. Each has ``ends`` int64[m, 2], sorted, and ``starts`` int64[ranges + 1]:
the rows whose first document is in each range. The ranges are those of `Ranges`, which depend only on the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from feedmill.curation.near.view import Ints
from feedmill.formats.arrays import write_arrays
from feedmill.formats.signatures import read_arrays
from feedmill.storage import Store

NODES = 2 << 20
"""Number of documents in a range, for a task with full room."""
CHUNK = 1 << 20
"""Number of pairs of a graph in memory, in a task with full room. Sorting takes 72 bytes for each."""

Pairs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of documents: those of earlier dumps, and from number `first` on those of the last dump.

    Attributes:
        first: Number of the last dump's first document.
        end: Number of documents.
        nodes: Number of documents in a range.
    """

    first: int
    end: int
    nodes: int

    @property
    def earlier(self) -> int:
        """Number of ranges of earlier dumps."""
        return -(-self.first // self.nodes)

    @property
    def count(self) -> int:
        """Number of all ranges."""
        return self.earlier - (self.first - self.end) // self.nodes

    @property
    def bounds(self) -> Ints:
        """First document of each range and the end of the last one, int64[ranges + 1]."""
        new = range(self.first, self.end, self.nodes)
        return np.array([*range(0, self.first, self.nodes), *new, self.end], np.int64)

    def of(self, part: int) -> tuple[int, int]:
        """Return the first document of a range, and its end."""
        low = part * self.nodes if part < self.earlier else self.first + (part - self.earlier) * self.nodes
        return low, min(low + self.nodes, self.first if part < self.earlier else self.end)


def run_name(folder: str, stage: int, unit: int, run: int) -> str:
    """Return the path of a run that a unit of a stage wrote."""
    return f"{folder}/run-{stage:03d}-{unit:05d}-{run:04d}"


@dataclass(slots=True)
class Runs:
    """Writes the pairs of a unit as runs of up to `most` pairs each, without pairs that occur twice in a run."""

    store: Store
    folder: str
    stage: int
    unit: int
    bounds: Ints
    most: int
    written: int = 0
    _pairs: list[Pairs] = field(default_factory=list)
    _size: int = 0

    def add(self, ends: Pairs) -> None:
        """Add pairs, int64[m, 2]."""
        for at in range(0, len(ends), self.most):
            some = ends[at : at + self.most]
            if self._size + len(some) > self.most:
                self.flush()
            self._pairs.append(some)
            self._size += len(some)

    def flush(self) -> None:
        """Write the pairs added so far, if there are any."""
        if not self._size:
            return
        ends = distinct(np.concatenate(self._pairs))
        self._pairs, self._size = [], 0
        starts = np.searchsorted(ends[:, 0], self.bounds)
        path = run_name(self.folder, self.stage, self.unit, self.written)
        write_arrays(self.store, path, {"ends": ends, "starts": starts})
        self.written += 1


def distinct(ends: Pairs) -> Pairs:
    """Return the distinct rows, sorted."""
    ends = ends[np.lexsort((ends[:, 1], ends[:, 0]))]
    new = np.ones(len(ends), np.bool_)
    new[1:] = (ends[1:] != ends[:-1]).any(axis=1)
    return ends[new]


def read_pairs(store: Store, folder: str, stage: int, runs: Sequence[int], part: int, most: int) -> Iterator[Pairs]:
    """Yield the pairs whose first document is in a range, up to `most` at a time; `runs` are those of each unit."""
    for unit, count in enumerate(runs):
        for run in range(count):
            arrays = read_arrays(store, run_name(folder, stage, unit, run))
            low, high = arrays["starts"][part : part + 2].tolist()
            for at in range(low, high, most):
                yield arrays["ends"][at : min(at + most, high)].copy()  # so that the file is not mapped any more
