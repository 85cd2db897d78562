"""Documents as readers give them: texts in batches, and why others have none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Record:
    """One document: its text, or why it has none; and the fields that were asked for beside it."""

    text: str | None
    reason: str = ""
    fields: tuple[Any, ...] = ()


class Records(NamedTuple):
    """The documents of some lines, all of them good: texts, and the fields asked for of each (none if none were)."""

    texts: list[str]
    fields: list[tuple[Any, ...]]


class BadDocument(Exception):
    """Why a document has no text."""


@dataclass(slots=True)
class Batch:
    """Documents in order.

    Attributes:
        texts: the texts of the good ones; none is empty or has a lone surrogate.
        rows: for each of them, its line or row in the unit, from 0.
        bad: (row, reason) of those without a text.
        fields: for each text, the fields asked for beside it.
        lines: lines or rows of the file that were read for this batch; `blank` of them hold nothing, `empty` a document
            that the reader passes over.
    """

    texts: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    fields: list[tuple[Any, ...]] = field(default_factory=list)
    lines: int = 0
    blank: int = 0
    empty: int = 0

    def extend(self, other: Batch, first: int) -> None:
        """Take in another batch, whose row 0 is row `first` here."""
        self.texts += other.texts
        self.fields += other.fields
        self.rows += [first + row for row in other.rows]
        self.bad += [(first + row, reason) for row, reason in other.bad]
        self.lines += other.lines
        self.blank += other.blank
        self.empty += other.empty

    def add(self, row: int, record: Record) -> None:
        """Take one document in."""
        if record.text is None and not record.reason:
            self.empty += 1
        elif record.text is None:
            self.bad.append((row, record.reason))
        else:
            self.texts.append(record.text)
            self.rows.append(row)
            self.fields.append(record.fields)
