"""Dolma's summaries of attributes: its bins, and the rows of ``summaries.jsonl.gz``.

A number m * 2^e (0.5 <= m < 1) falls into the bin (floor(100,000 m), e). A summary has at most this many bins as are
asked for, and one edge more::

    {"name": "<attribute>/score", "counts": [...], "bins": [edges...], "total": numbers, "sum": their sum}

Each attribute gives two, of scores and of the spans' lengths. An empty list counts as one span of length and score 0,
and scores of names with ``__label__`` are at most 1. Dolma summarises each file and then the summaries, so that numbers
move to the lower edges of bins; here that is done with `exact` only, else the fine bins of all files are joined.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from feedmill.curation.measure import (
    TOO_LARGE,
    AttributesRow,
    compiled,
    flattened,
    gathered,
    too_large,
    workers_for,
)
from feedmill.documents.file import DocumentFile, once
from feedmill.documents.find import find_documents
from feedmill.documents.rows import REFUSED, uncollected
from feedmill.errors import ConfigError, DataError
from feedmill.formats.documents import json_fault, read_rows, write_rows
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.storage import open_store

Ints = npt.NDArray[np.int64]
SUMMARIES = "summaries.jsonl.gz"
_STEPS = 100_000
_ROOM = 1 << 18  # of keys for one exponent
_WHOLE = 2.0**62


class Summary(msgspec.Struct):
    """A row of the report, see the module."""

    name: str
    counts: list[int]
    bins: list[float]
    total: int
    sum: int | float


class Bins:
    """Numbers counted in Dolma's bins.

    Attributes:
        total, sum: how many numbers, and their sum, added one by one.
    """

    def __init__(self) -> None:
        self.total = 0
        self.sum: int | float = 0
        self._keys: Ints = np.zeros(0, np.int64)
        self._counts: Ints = np.zeros(0, np.int64)

    def add(self, numbers: npt.NDArray[np.float64], *, whole: bool) -> None:
        """Count numbers; `whole` ones have a whole sum."""
        if not len(numbers):
            return
        keys, counts = np.unique(_keys(numbers), return_counts=True)
        self._join(keys, counts)
        self.total += len(numbers)
        if whole:
            within = float(np.abs(numbers).sum()) < _WHOLE
            self.sum += int(numbers.astype(np.int64).sum()) if within else sum(map(int, numbers.tolist()))
        else:
            self.sum = float(np.cumsum(np.concatenate(([float(self.sum)], numbers)))[-1])

    def merge(self, other: Bins) -> None:
        """Count all numbers of another."""
        self._join(other._keys, other._counts)
        self.total += other.total
        self.sum += other.sum

    def add_summary(self, summary: Summary) -> None:
        """Count a summary's numbers, all of a bin as its lower edge."""
        counts = np.array(summary.counts, np.int64)
        self._join(_keys(np.array(summary.bins[: len(counts)], np.float64)), counts)
        self.total += summary.total
        self.sum += summary.sum

    def _join(self, keys: Ints, counts: Ints) -> None:
        self._keys, places = np.unique(np.concatenate((self._keys, keys)), return_inverse=True)
        joined = np.bincount(places, np.concatenate((self._counts, counts)), len(self._keys))
        self._counts = joined.astype(np.int64)

    def edges(self) -> tuple[npt.NDArray[np.float64], Ints]:
        """Return the lower edges of the bins that hold something, rising, and how many numbers each has."""
        exponents, steps = np.divmod(self._keys, _ROOM)
        lower = np.ldexp((steps - _STEPS) / _STEPS, exponents)
        order = np.lexsort((self._counts, lower))
        return lower[order], self._counts[order]

    def summary(self, name: str, most: int) -> Summary:
        """At most `most` bins: those of the numbers, or as many of equal width."""
        lower, counts = self.edges()
        if len(lower) <= most:
            fraction, exponent = np.frexp(lower[-1])
            with np.errstate(over="ignore"):
                upper = min(float(np.ldexp((np.floor(fraction * _STEPS) + 1) / _STEPS, exponent)), sys.float_info.max)
            return Summary(name, counts.tolist(), [*lower.tolist(), upper], self.total, self.sum)
        new, edges = np.histogram(lower, most, weights=counts)
        return Summary(name, new.astype(np.int64).tolist(), edges.tolist(), self.total, self.sum)


def _keys(numbers: npt.NDArray[np.float64]) -> Ints:
    fraction, exponent = np.frexp(numbers)
    keys: Ints = exponent.astype(np.int64) * _ROOM + (np.floor(fraction * _STEPS).astype(np.int64) + _STEPS)
    return keys


class _Task(NamedTuple):
    file: DocumentFile
    pattern: str | None
    most: int
    exact: bool


def summarise(
    patterns: Sequence[str],
    *,
    most: int = 1000,
    pattern: str | None = None,
    workers: int | None = 1,
    exact: bool = False,
    progress: bool | None = None,
) -> list[Summary]:
    """Return the summaries of all attributes, in the order in which they appear in the files.

    Args:
        patterns: of attribute files; with `exact` one only.
        most: bins of a summary.
        pattern: a regular expression that is found in the names of the attributes wanted.

    Raises:
        ConfigError, NotFound: for options and patterns.
        DataError: a row is none of attributes, or a file is damaged.
    """
    compiled(pattern)
    if most < 1:
        raise ConfigError(f"there are no summaries of {most} bins", fix="Take 1 or more.")
    if exact and len(patterns) > 1:
        raise ConfigError("Dolma takes one pattern of attributes only", fix="Leave --exact out, or give one pattern.")
    files = once(find_documents(patterns, exact=True).files)
    tasks = [_Task(file, pattern, most, exact) for file in files]
    workers = workers_for(sum(file.size for file in files), workers)
    found: dict[str, Bins] = {}
    with Progress("reading", len(tasks), "files", progress) as bar:
        for part in run(bins_of, tasks, workers=workers, progress=bar, preload=("feedmill.curation.dolma_stat",)):
            for name, bins in part.items():
                own = found.setdefault(name, Bins())
                own.add_summary(bins.summary(name, most)) if exact else own.merge(bins)
    return [bins.summary(name, most) for name, bins in found.items()]


def bins_of(task: _Task) -> dict[str, Bins]:
    """Return the bins of one file. Runs in a process of its own."""
    wanted = compiled(task.pattern)

    def is_wanted(name: str) -> bool:
        return wanted is None or wanted.search(name) is not None

    found: dict[str, Bins] = {}
    line = 0
    with uncollected():
        for lines in read_rows(task.file.store(), task.file.path):
            rows = _decoded(lines, task.file.name, line)
            try:
                _count(found, gathered(rows, is_wanted))
            except OverflowError:
                raise _bad(task.file.name, line + 1 + too_large(rows, is_wanted), TOO_LARGE) from None
            line += len(rows)
    return found


def _count(found: dict[str, Bins], columns: dict[str, list[Any]]) -> None:
    for name, values in columns.items():
        _, spans = flattened([spans or [(0, 0, 0.0)] for spans in values])
        scores = np.minimum(spans[:, 2], 1.0) if "__label__" in name else spans[:, 2]
        found.setdefault(f"{name}/score", Bins()).add(scores, whole=False)
        found.setdefault(f"{name}/length", Bins()).add(spans[:, 1] - spans[:, 0], whole=True)


_decode = msgspec.json.Decoder(AttributesRow).decode


def _decoded(lines: Sequence[bytes], file: str, before: int) -> list[AttributesRow]:
    try:
        return [_decode(line) for line in lines]
    except REFUSED:
        for number, line in enumerate(lines, before + 1):
            try:
                _decode(line)
            except REFUSED as error:
                what = f"this is no row of attributes ({json_fault(line, error)})"
                raise _bad(file, number, what) from None
        raise


def _bad(file: str, line: int, what: str) -> DataError:
    return DataError(what, file=file, record=f"line {line}", kind="bad-row", fix="Fix the line, or name other files.")


def write_summaries(folder: str, summaries: Iterable[Summary]) -> None:
    """Write ``summaries.jsonl.gz`` into a folder."""
    with write_rows(open_store(folder), SUMMARIES) as append:
        append(msgspec.json.encode(summary) for summary in summaries)


def shown(summary: Summary, rows: int = 10) -> list[tuple[str, float, int]]:
    """Return a summary in few classes of about equal counts: range, share, count."""
    counts = np.array(summary.counts, np.int64)
    ends = np.cumsum(counts)
    wanted = np.searchsorted(ends, np.linspace(0, ends[-1], min(rows, len(counts)) + 1)[1:], side="left")
    cuts = np.unique(np.concatenate(([0], wanted + 1)))
    edges = [_number(summary.bins[cut]) for cut in cuts]
    out: list[tuple[str, Any, int]] = []
    for low, high, begin, end in zip(edges, edges[1:], cuts, cuts[1:], strict=False):
        count = int(counts[begin:end].sum())
        out.append((f"[{low}, {high}{']' if end == len(counts) else ')'}", count / max(int(ends[-1]), 1), count))
    return out


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) < 1e15 and value == round(value) else f"{value:.5g}"
