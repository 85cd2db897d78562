"""What is read of documents: files, the units that they are cut into, and batches of texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from feedmill.storage import join_url
from feedmill.storage.codec import PLAIN, compression
from feedmill.tokens.textpath import Record


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of documents: its folder, its path in it, of which kind, and its size and version.

    Attributes:
        rows: of a file of columns only every `rows[1]`-th row, from number `rows[0]` on.
    """

    folder: str
    path: str
    kind: str
    size: int
    version: str
    rows: tuple[int, int] = (0, 1)

    @property
    def url(self) -> str:
        """The whole path, as shown to people."""
        return join_url(self.folder, self.path)

    @property
    def packed(self) -> bool:
        """Whether it is compressed as a whole."""
        return compression(self.path) != PLAIN


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work: the documents of `file` that begin in ``[begin, end)``, in bytes or in row groups."""

    file: SourceFile
    begin: int
    end: int
    bytes: int


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
