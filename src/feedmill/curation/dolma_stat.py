"""Dolma's summaries of attributes: its bins, and the rows of ``summaries.jsonl.gz``.

A number m * 2^e (0.5 <= m < 1) falls into the bin (floor(100,000 m), e). A summary has at most the requested number of
bins, and one more edge than bins::

    {"name": "<attribute>/score", "counts": [...], "bins": [edges...], "total": numbers, "sum": their sum}

Each attribute has two summaries: one of the scores, one of the span lengths. An empty list counts as one span of length
and score 0. Scores of attributes with ``__label__`` in their name are capped at 1. Dolma summarizes each file and then
the summaries, which moves numbers to the lower edges of bins. `exact` does the same; without it, the fine bins of all
files are merged.
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
from feedmill.documents.rows import REFUSED
from feedmill.errors import ConfigError, DataError
from feedmill.formats.documents import json_fault, read_rows, write_rows
from feedmill.jobs.memory import uncollected
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.storage import open_store
from feedmill.structs import decoder_of

Ints = npt.NDArray[np.int64]
SUMMARIES = "summaries.jsonl.gz"
_STEPS = 100_000
_ROOM = 1 << 18  # number of keys reserved for each exponent
_WHOLE = 2.0**62


class Summary(msgspec.Struct):
    """Row of ``summaries.jsonl.gz``; see the module's docstring."""

    name: str
    counts: list[int]
    bins: list[float]
    total: int
    sum: int | float


class Bins:
    """Histogram with Dolma's bins.

    Attributes:
        total: Number of numbers.
        sum: Sum of the numbers, added one by one.
    """

    def __init__(self) -> None:
        self.total = 0
        self.sum: int | float = 0
        self._keys: Ints = np.zeros(0, np.int64)
        self._counts: Ints = np.zeros(0, np.int64)

    def add(self, numbers: npt.NDArray[np.float64], *, whole: bool) -> None:
        """Add numbers. If they are `whole` numbers, their sum is an exact integer."""
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
        """Add all numbers of another histogram."""
        self._join(other._keys, other._counts)
        self.total += other.total
        self.sum += other.sum

    def add_summary(self, summary: Summary) -> None:
        """Add the numbers of a summary, each as the lower edge of its bin."""
        counts = np.array(summary.counts, np.int64)
        self._join(_keys(np.array(summary.bins[: len(counts)], np.float64)), counts)
        self.total += summary.total
        self.sum += summary.sum

    def _join(self, keys: Ints, counts: Ints) -> None:
        self._keys, places = np.unique(np.concatenate((self._keys, keys)), return_inverse=True)
        joined = np.bincount(places, np.concatenate((self._counts, counts)), len(self._keys))
        self._counts = joined.astype(np.int64)

    def edges(self) -> tuple[npt.NDArray[np.float64], Ints]:
        """Return the lower edges of the non-empty bins, in ascending order, and the number of numbers in each."""
        exponents, steps = np.divmod(self._keys, _ROOM)
        lower = np.ldexp((steps - _STEPS) / _STEPS, exponents)
        order = np.lexsort((self._counts, lower))
        return lower[order], self._counts[order]

    def summary(self, name: str, most: int) -> Summary:
        """Return a summary with the bins themselves, or with `most` bins of equal width if there are more than that."""
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


def summarize(
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
        patterns: Patterns of attribute files; with `exact`, only one.
        most: Maximum number of bins of a summary.
        pattern: Regular expression; only attributes whose name it matches somewhere are summarized.

    Raises:
        ConfigError, NotFound: An option is invalid, or a pattern matches no file.
        DataError: A line is not a row of attributes, or a file is corrupt.
    """
    compiled(pattern)
    if most < 1:
        raise ConfigError(f"the number of bins must be 1 or more, not {most}", fix="Use 1 or more bins.")
    if exact and len(patterns) > 1:
        raise ConfigError("Dolma accepts only one pattern of attributes", fix="Remove --exact, or pass one pattern.")
    files = once(find_documents(patterns, exact=True).files)
    tasks = [_Task(file, pattern, most, exact) for file in files]
    workers = workers_for(sum(file.size for file in files), workers)
    found: dict[str, Bins] = {}
    with Progress.of_files("reading", [file.size for file in files], progress) as bar:
        for part in run(bins_of, tasks, workers=workers, progress=bar, preload=("feedmill.curation.dolma_stat",)):
            for name, bins in part.items():
                own = found.setdefault(name, Bins())
                own.add_summary(bins.summary(name, most)) if exact else own.merge(bins)
    return [bins.summary(name, most) for name, bins in found.items()]


def bins_of(task: _Task) -> dict[str, Bins]:
    """Return the bins of each attribute of one file. Runs in a worker process."""
    wanted = compiled(task.pattern)

    def is_wanted(name: str) -> bool:
        return wanted is None or wanted.search(name) is not None

    bins: dict[str, Bins] = {}
    line = 0
    with uncollected():
        for lines in read_rows(task.file.store(), task.file.path):
            rows = _decoded(lines, task.file.name, line)
            try:
                _count(bins, gathered(rows, is_wanted))
            except OverflowError:
                raise _bad(task.file.name, line + 1 + too_large(rows, is_wanted), TOO_LARGE) from None
            line += len(rows)
    return bins


def _count(found: dict[str, Bins], columns: dict[str, list[Any]]) -> None:
    for name, values in columns.items():
        _, spans = flattened([spans or [(0, 0, 0.0)] for spans in values])
        scores = np.minimum(spans[:, 2], 1.0) if "__label__" in name else spans[:, 2]
        found.setdefault(f"{name}/score", Bins()).add(scores, whole=False)
        found.setdefault(f"{name}/length", Bins()).add(spans[:, 1] - spans[:, 0], whole=True)


_decode = decoder_of(AttributesRow).decode


def _decoded(lines: Sequence[bytes], file: str, before: int) -> list[AttributesRow]:
    try:
        return [_decode(line) for line in lines]
    except REFUSED:
        for number, line in enumerate(lines, before + 1):
            try:
                _decode(line)
            except REFUSED as error:
                what = f"this is not a row of attributes ({json_fault(line, error)})"
                raise _bad(file, number, what) from None
        raise


def _bad(file: str, line: int, what: str) -> DataError:
    return DataError(
        what, file=file, record=f"line {line}", kind="bad-document", fix="Fix the line, or pass other files."
    )


def write_summaries(folder: str, summaries: Iterable[Summary]) -> None:
    """Write ``summaries.jsonl.gz`` into a folder."""
    with write_rows(open_store(folder), SUMMARIES) as append:
        append(msgspec.json.encode(summary) for summary in summaries)


def shown(summary: Summary, rows: int = 10) -> list[tuple[str, float, int]]:
    """Return a summary in at most `rows` ranges of about equal counts: range, share and count of each."""
    counts = np.array(summary.counts, np.int64)
    ends = np.cumsum(counts)
    wanted = np.searchsorted(ends, np.linspace(0, ends[-1], min(rows, len(counts)) + 1)[1:], side="left")
    cuts = np.unique(np.concatenate(([0], wanted + 1)))
    edges = [_number_text(summary.bins[cut]) for cut in cuts]
    out: list[tuple[str, Any, int]] = []
    for low, high, begin, end in zip(edges, edges[1:], cuts, cuts[1:], strict=False):
        count = int(counts[begin:end].sum())
        out.append((f"[{low}, {high}{']' if end == len(counts) else ')'}", count / max(int(ends[-1]), 1), count))
    return out


def _number_text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) < 1e15 and value == round(value) else f"{value:.5g}"
