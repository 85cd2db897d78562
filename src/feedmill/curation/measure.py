"""Decode rows of documents and attributes to the arrays that statistics are computed from.

A row is a document (it has ``text``), a row of attributes (``attributes``), or both. An attribute is a list of spans
``[start, end, score]``. A single number counts as a score without a span.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from feedmill.documents.rows import FIXES, REFUSED, missing_field
from feedmill.errors import PATTERN_ERRORS, ConfigError, DataError
from feedmill.formats.documents import json_fault
from feedmill.structs import decoder_of

Floats = npt.NDArray[np.float64]
Spans = list[tuple[int, int, float]]

_SMALL = 8 << 20
_FARTHEST = 2.0**63
TOO_LARGE = "a number is too large for float64"


class _Row(msgspec.Struct, gc=False):
    id: msgspec.Raw
    text: str | None = None
    source: str | None = None
    attributes: dict[str, Spans] | None = None


class _LooseRow(msgspec.Struct):
    id: msgspec.Raw
    text: str | None = None
    source: str | None = None
    attributes: dict[str, Any] | None = None


class AttributesRow(msgspec.Struct, gc=False):
    """Row of an attribute file. Its text, if any, is ignored."""

    id: msgspec.Raw
    attributes: dict[str, Spans]


@dataclass(frozen=True, slots=True)
class Column:
    """One attribute of a batch of rows.

    Attributes:
        counts: Number of spans of each row that has the attribute as a list, int64[rows].
        spans: Start, end and score of all spans, float64[spans, 3].
        scalars: Values of the rows that have a single number, float64[n]. These rows are not in `counts`.
    """

    counts: npt.NDArray[np.int64]
    spans: Floats
    scalars: Floats

    @property
    def lengths(self) -> Floats:
        """Characters that each span covers, float64[spans]."""
        return self.spans[:, 1] - self.spans[:, 0]


@dataclass(frozen=True, slots=True)
class Measured:
    """Batch of rows: their number, the texts and sources of the documents among them, and the attributes by name."""

    rows: int
    texts: list[str]
    sources: list[str]
    columns: dict[str, Column]


class Measurer:
    """Reader of the rows of a file, batch by batch.

    Args:
        file: File name for error messages.
        wanted: Returns whether to measure the attribute of the given name.
        line: Number of the next row, from 1.
    """

    def __init__(self, file: str, wanted: Callable[[str], bool], line: int = 1) -> None:
        self.file, self.line = file, line - 1
        self._wanted = wanted
        self._decode = decoder_of(_Row).decode

    def measure(self, lines: Sequence[bytes]) -> Measured:
        """Decode the next rows. Raises `DataError` of kind ``bad-document`` that names the line."""
        try:
            rows: list[Any] = [self._decode(line) for line in lines]
        except REFUSED:
            rows = list(self._loosely(lines))
        for number, row in enumerate(rows, self.line + 1):
            if row.text is None and row.attributes is None:
                raise self._bad(number, "the row has neither 'text' nor 'attributes'")
        try:
            columns = {name: _column(spans) for name, spans in gathered(rows, self._wanted).items()}
        except OverflowError:
            raise self._bad(self.line + 1 + too_large(rows, self._wanted), TOO_LARGE) from None
        measured = Measured(
            len(rows),
            [row.text for row in rows if row.text is not None],
            [row.source or "" for row in rows if row.text is not None],
            columns,
        )
        self._check(rows, measured)
        self.line += len(rows)
        return measured

    def _loosely(self, lines: Sequence[bytes]) -> Iterator[Any]:
        """Yield the rows one by one, allowing attributes that are single numbers. Raise for the first invalid row."""
        loose = decoder_of(_LooseRow).decode
        for number, line in enumerate(lines, self.line + 1):
            try:
                yield self._decode(line)
                continue
            except REFUSED as error:
                first = error
            try:
                row = loose(line)
            except REFUSED:
                fault = json_fault(line, first)
                if missing := missing_field(fault):
                    lacking = self._bad(number, f"the document has no {missing!r}")
                    lacking.fix = FIXES[missing]
                    raise lacking from None
                raise self._bad(number, f"not a row of documents or attributes ({fault})") from None
            for name, value in (row.attributes or {}).items():
                if not _is_number(value) and not _are_spans(value):
                    shown = f"{value!r}"
                    what = f"the attribute {name!r} is neither a list of [start, end, score] nor a number: {shown:.100}"
                    raise self._bad(number, what)
            yield row

    def _check(self, rows: Sequence[Any], found: Measured) -> None:
        """Raise an error if a span begins before 0, ends before it begins, or ends too far for int64."""
        for name, column in found.columns.items():
            wrong = np.flatnonzero((column.lengths < 0) | (column.spans[:, 0] < 0) | (column.spans[:, 1] >= _FARTHEST))
            if not len(wrong):
                continue
            at = int(np.searchsorted(np.cumsum(column.counts), wrong[0], side="right"))
            having = [n for n, row in enumerate(rows) if isinstance((row.attributes or {}).get(name), list)]
            start, end = (int(n) for n in column.spans[wrong[0], :2])
            raise self._bad(self.line + 1 + having[at], f"the attribute {name!r} has a span from {start} to {end}")

    def _bad(self, line: int, what: str) -> DataError:
        return DataError(
            what,
            file=self.file,
            record=f"line {line}",
            kind="bad-document",
            fix="Fix or remove the line, or pass other files. '--on-error skip' counts the other files.",
        )


def gathered(rows: Sequence[Any], wanted: Callable[[str], bool]) -> dict[str, list[Any]]:
    """Return the values of each attribute in the rows that have it, in the order in which the names first appear."""
    found: dict[str, list[Any]] = {}
    left_out: set[str] = set()
    for row in rows:
        for name, value in (row.attributes or {}).items():
            values = found.get(name)
            if values is None:
                if name in left_out:
                    continue
                if not wanted(name):
                    left_out.add(name)
                    continue
                values = found[name] = []
            values.append(value)
    return found


def compiled(pattern: str | None) -> re.Pattern[str] | None:
    """Return a compiled regular expression. Raises `ConfigError`."""
    try:
        return None if pattern is None else re.compile(pattern)
    except PATTERN_ERRORS as error:
        raise ConfigError(f"{pattern!r} is not a valid regular expression ({error})", fix="Fix the pattern.") from None


def workers_for(size: int, workers: int | None) -> int | None:
    """Return the requested number of processes, or 1 if starting them takes longer than reading this many bytes."""
    return 1 if size < _SMALL else workers


def _column(values: list[Any]) -> Column:
    scalars = [value for value in values if not isinstance(value, list)]
    spans = [value for value in values if isinstance(value, list)] if scalars else values
    return Column(*flattened(spans), np.array(scalars, np.float64))


def flattened(spans: list[Spans]) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the number of spans of each row, int64[rows], and all spans, float64[spans, 3]."""
    counts = np.fromiter(map(len, spans), np.int64, len(spans))
    flat = np.fromiter(chain.from_iterable(chain.from_iterable(spans)), np.float64, 3 * int(counts.sum()))
    return counts, flat.reshape(-1, 3)


def too_large(rows: Sequence[Any], wanted: Callable[[str], bool]) -> int:
    """Return the index of the first row with a number too large for float64. There must be one."""
    for n, row in enumerate(rows):
        try:
            for values in gathered([row], wanted).values():
                _column(values)
        except OverflowError:
            return n
    raise AssertionError("all numbers fit")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _are_spans(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(span, list)
        and len(span) == 3
        and all(isinstance(n, int) and not isinstance(n, bool) for n in span[:2])
        and _is_number(span[2])
        for span in value
    )
