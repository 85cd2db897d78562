"""Index the lines of a file by ranges of bytes: units of a stage, for an engine.

A line belongs to the range in which it begins. What is found in a range is a file in a work folder, which the run that
publishes the index joins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.jobs.engine import Policy, Where, key_of
from feedmill.jobs.run import run
from feedmill.storage import Store

RANGE = 256 << 20
"""Bytes of a unit."""

Arrays = dict[str, npt.NDArray[Any]]
IndexRange = Callable[[Store, str, int, tuple[int, int]], Arrays]
"""Function of a store, a path, the size of the file, and the range; returns what is found."""


class Range(NamedTuple):
    """A unit: bytes ``[low, high)`` of a file."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"bytes {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class _Job:
    index: IndexRange
    store: Store
    path: str
    size: int
    folder: Store
    key: str


def on_engine(index: IndexRange, store: Store, path: str, folder: Store) -> Iterator[tuple[int, Arrays]]:
    """Yield the bytes of each range, and what is found in it, in order.

    Args:
        index: a function at the top level of a module.
        folder: the work folder, which all machines reach.
    """
    entry = store.stat(path)
    key = key_of(index.__module__, index.__qualname__, store.locate(path), str(entry.size), entry.version, str(RANGE))
    ranges = [Range(low, min(low + RANGE, entry.size)) for low in range(0, entry.size, RANGE)]
    policy = Policy(shared=_Job(index, store, path, entry.size, folder, key))
    names = run(_find, ranges, policy=policy, where=Where("indexing", key, folder))
    with closing(names):
        for (low, high), name in zip(ranges, names, strict=True):
            with folder.local_copy(name) as copied, np.load(copied) as found:
                yield high - low, dict(found)


def _find(job: _Job, span: Range) -> str:
    """Write what is found in a range to a file, unless it exists, and return its name."""
    name = f"lines-{job.key}-{span[0]}"
    if not job.folder.exists(name):
        found = job.index(job.store, job.path, job.size, span)
        with job.folder.build(name) as path, open(path, "wb") as file:
            np.savez(file, **found)  # type: ignore[arg-type]
    return name


def begin_of(store: Store, path: str, size: int, at: int) -> int:
    """Return the offset of the first line that begins at `at` or later; the size of the file if there is none."""
    return 0 if at <= 0 else line_end(store, path, at - 1, size)


def line_end(store: Store, path: str, at: int, size: int) -> int:
    """Return the offset after the first newline from `at` on, or the file's size."""
    step = 1 << 16
    while at < size:
        block = store.read(path, at, min(step, size - at))
        found = block.find(b"\n")
        if found >= 0:
            return at + found + 1
        at, step = at + len(block), min(step * 4, 16 << 20)
    return size
