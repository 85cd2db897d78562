"""Results of document readers: batches of texts, and the reasons why other documents have no text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec


class Record(msgspec.Struct, frozen=True):
    """One document: its text, or the reason why it has none, and the other requested fields."""

    text: str | None
    reason: str = ""
    fields: tuple[Any, ...] = ()


class Records(NamedTuple):
    """Valid documents of some lines: texts, and the requested fields of each (empty if none were requested)."""

    texts: list[str]
    fields: list[tuple[Any, ...]]


@runtime_checkable
class RowReader(Protocol):
    """Reader of documents that needs whole rows.

    Attributes:
        columns: the columns of tables that it reads, if a file has them.
    """

    columns: tuple[str, ...]

    def read(self, block: bytes | memoryview) -> Records | None:
        """Return the documents of whole lines at once; None if lines are read by `records`."""

    def records(self, rows: Sequence[Any]) -> Iterator[Record]:
        """Yield the document of each row, with the reason if it has no text. A row is a line as bytes, or an object."""

    def close(self) -> None:
        """Release what the reader needs for reading; it can be used again."""


class BadDocument(Exception):
    """Raised for a document without text; the message is the reason."""


@dataclass(slots=True)
class Batch:
    """Batch of documents in order.

    Attributes:
        texts: Texts of the valid documents. None has a lone surrogate, and none is empty unless the reader keeps
            empty texts.
        rows: For each text, its line or row in the unit, from 0.
        bad: (row, reason) of each document without a text.
        fields: For each text, the other requested fields.
        lines: Number of lines or rows of the file that were read for this batch.
        blank: Number of those lines that are blank.
        empty: Number of those lines whose document the reader skips.
    """

    texts: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    fields: list[tuple[Any, ...]] = field(default_factory=list)
    lines: int = 0
    blank: int = 0
    empty: int = 0

    def extend(self, other: Batch, first: int) -> None:
        """Append another batch, whose row 0 is row `first` here."""
        self.texts += other.texts
        self.fields += other.fields
        self.rows += [first + row for row in other.rows]
        self.bad += [(first + row, reason) for row, reason in other.bad]
        self.lines += other.lines
        self.blank += other.blank
        self.empty += other.empty

    def add(self, row: int, record: Record) -> None:
        """Append one document."""
        text = record.text
        if text is not None:
            self.texts.append(text)
            self.rows.append(row)
            self.fields.append(record.fields)
        elif record.reason:
            self.bad.append((row, record.reason))
        else:
            self.empty += 1
