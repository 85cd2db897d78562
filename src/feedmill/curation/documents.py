"""Decode batches of documents: JSON rows to validated ids, texts and sources, and texts to code points for kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from feedmill.documents.rows import FIXES, REFUSED, missing_field
from feedmill.errors import DataError
from feedmill.formats.documents import json_fault
from feedmill.kernels.text import characters
from feedmill.kernels.text.lengths import encode, paragraphs, words
from feedmill.structs import decoder_of

Table = npt.NDArray[np.int64]


class Row(msgspec.Struct, gc=False):
    """Fields of a document that taggers read. Other fields are ignored."""

    id: str | int
    text: str
    source: str = ""
    version: str | None = ""


class RowWithMetadata(Row, gc=False):
    """`Row` with the metadata that some taggers need."""

    metadata: dict[str, Any] | None = None


class StrictRow(Row, gc=False):
    """`Row` with the types that Dolma requires: ids and both times must be strings."""

    id: str
    added: str = ""
    created: str = ""


class StrictRowWithMetadata(RowWithMetadata, gc=False):
    """`RowWithMetadata` with the types that Dolma requires."""

    id: str
    added: str = ""
    created: str = ""


_KINDS: dict[tuple[bool, bool], type[Any]] = {
    (False, False): Row,
    (False, True): RowWithMetadata,
    (True, False): StrictRow,
    (True, True): StrictRowWithMetadata,
}


@dataclass(frozen=True, eq=False)
class Batch:
    """Consecutive documents of a file.

    Attributes:
        rows: The decoded rows.
        exact: Whether taggers reproduce Dolma's known defects.
        line: Number of the first row in its file, from 1.
        codes, offsets: All texts as code points, uint32[characters], and the offset of each text, int64[n + 1].
    """

    rows: Sequence[Row]
    exact: bool = False
    line: int = 1

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, k: int) -> str:
        """Return the line and id of a document for error messages."""
        return f"line {self.line + k}, id {self.rows[k].id}"

    @cached_property
    def texts(self) -> list[str]:
        """The texts of all documents, n."""
        return [row.text for row in self.rows]

    @cached_property
    def encoded(self) -> tuple[npt.NDArray[np.uint32], Table]:
        """`codes` and `offsets`, computed at the first use."""
        return encode(self.texts)

    @property
    def codes(self) -> npt.NDArray[np.uint32]:
        """Code points of all texts, uint32[characters]."""
        return self.encoded[0]

    @property
    def offsets(self) -> Table:
        """Begin of each text in `codes`, and the end of the last, int64[n + 1]."""
        return self.encoded[1]

    @cached_property
    def lengths(self) -> Table:
        """Number of characters of each text, int64[n]."""
        return np.diff(self.offsets)

    @cached_property
    def paragraphs(self) -> Table:
        """Document, start and end in `codes`, and whether blank, of each paragraph, int64[4, paragraphs].

        See `kernels.text.lengths`.
        """
        table: Table = paragraphs(self.codes, self.offsets, characters.table())
        return table

    @cached_property
    def filled(self) -> Table:
        """Columns of `paragraphs` that are not blank."""
        return self.paragraphs[:, self.paragraphs[3] == 0]

    @cached_property
    def words(self) -> tuple[Table, Table]:
        """Start and end of each word between white space, int64[2, words], and each text's first word, int64[n + 1]."""
        tables: tuple[Table, Table] = words(self.codes, self.offsets, characters.table())
        return tables

    @cached_property
    def gopher(self) -> npt.NDArray[np.float64]:
        """Gopher signals that both versions share, float64[n, 15]. See `kernels.text.gopher`."""
        from feedmill.kernels.text.gopher import word_signals

        (starts, ends), first = self.words
        found: npt.NDArray[np.float64] = word_signals(self.codes, self.offsets, starts, ends, first, characters.table())
        return found


class Decoder:
    """Decoder of JSON rows to batches. Errors name the file and the line.

    Args:
        file: File name for error messages.
        line: Number of the next row, from 1.
        metadata: Also read the field ``metadata``.
        exact: See `Batch`.
    """

    def __init__(self, file: str, line: int = 1, *, metadata: bool = False, exact: bool = False) -> None:
        self.file = file
        self.exact = exact
        self.line = line - 1
        self._decode = decoder_of(_KINDS[exact, metadata]).decode

    def batch(self, rows: Sequence[bytes]) -> Batch:
        """Decode the next rows of the file. Raises `DataError` of kind ``bad-document``."""
        decode = self._decode
        try:
            found = [decode(row) for row in rows]
        except REFUSED:
            self._complain(rows)
            raise
        self.line += len(rows)
        return Batch(found, self.exact, self.line - len(rows) + 1)

    def _complain(self, rows: Sequence[bytes]) -> None:
        for number, row in enumerate(rows, self.line + 1):
            try:
                self._decode(row)
            except REFUSED as error:
                fault = json_fault(row, error)
                missing = missing_field(fault)
                what = f"the document has no {missing!r}" if missing else f"this is not a document ({fault})"
                raise DataError(
                    f"{what}; expected a JSON object with an 'id' and a string 'text'",
                    file=self.file,
                    record=f"line {number}",
                    kind="bad-document",
                    fix=FIXES.get(missing, "Fix or remove the line: attributes are matched to documents line by line."),
                ) from None
