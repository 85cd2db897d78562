"""Decode batches of documents: rows of JSON to validated ids, texts and sources, and to code points for kernels."""

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
from feedmill.kernels.text.lengths import encode

Table = npt.NDArray[np.int64]


class Row(msgspec.Struct, gc=False):
    """The fields of a document that taggers read; other fields are ignored."""

    id: str | int
    text: str
    source: str = ""
    version: str | None = ""


class RowWithMetadata(Row, gc=False):
    """A row with the metadata that some taggers need."""

    metadata: dict[str, Any] | None = None


class StrictRow(Row, gc=False):
    """A row with the types that Dolma requires: ids and both times must be text."""

    id: str
    added: str = ""
    created: str = ""


class StrictRowWithMetadata(RowWithMetadata, gc=False):
    """Both."""

    id: str
    added: str = ""
    created: str = ""


_KINDS = {
    (False, False): Row,
    (False, True): RowWithMetadata,
    (True, False): StrictRow,
    (True, True): StrictRowWithMetadata,
}


@dataclass(frozen=True, eq=False)
class Batch:
    """Consecutive documents of a file.

    Attributes:
        rows: the decoded rows.
        exact: whether taggers reproduce Dolma's known defects.
        line: number of the first row in its file, from 1.
        codes, offsets: uint32[characters], int64[n + 1]: all texts as code points, and the offset of each.
    """

    rows: Sequence[Row]
    exact: bool = False
    line: int = 1

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, k: int) -> str:
        """Return how errors name a document."""
        return f"line {self.line + k}, id {self.rows[k].id}"

    @cached_property
    def texts(self) -> list[str]:
        return [row.text for row in self.rows]

    @cached_property
    def encoded(self) -> tuple[npt.NDArray[np.uint32], Table]:
        return encode(self.texts)

    @property
    def codes(self) -> npt.NDArray[np.uint32]:
        return self.encoded[0]

    @property
    def offsets(self) -> Table:
        return self.encoded[1]

    @cached_property
    def lengths(self) -> Table:
        """int64[n]: characters of each text."""
        return np.diff(self.offsets)

    @cached_property
    def paragraphs(self) -> Table:
        """int64[4, paragraphs]: document, start and end in `codes`, whether blank. See `kernels.text_compiled`."""
        from feedmill.kernels.text.lengths_compiled import paragraphs

        found: Table = paragraphs(self.codes, self.offsets, characters.table())
        return found

    @cached_property
    def filled(self) -> Table:
        """Those of the paragraphs that are not blank."""
        return self.paragraphs[:, self.paragraphs[3] == 0]

    @cached_property
    def words(self) -> tuple[Table, Table]:
        """int64[2, words], int64[n + 1]: start and end of each word between white space, where each text's begin."""
        from feedmill.kernels.text.lengths_compiled import words

        found: tuple[Table, Table] = words(self.codes, self.offsets, characters.table())
        return found

    @cached_property
    def gopher(self) -> npt.NDArray[np.float64]:
        """float64[n, 15]: the signals of Gopher that both versions share. See `kernels.gopher_compiled`."""
        from feedmill.kernels.text.gopher_compiled import word_signals

        (starts, ends), first = self.words
        found: npt.NDArray[np.float64] = word_signals(self.codes, self.offsets, starts, ends, first, characters.table())
        return found


class Decoder:
    """Decodes rows of JSON to batches; errors name the file and the line.

    Args:
        file: named in errors. line: of the next row, from 1.
        metadata: whether to read the field ``metadata``.
        exact: see `Batch`.
    """

    def __init__(self, file: str, line: int = 1, *, metadata: bool = False, exact: bool = False) -> None:
        self.file = file
        self.exact = exact
        self.line = line - 1
        self._decode = msgspec.json.Decoder(_KINDS[exact, metadata]).decode

    def batch(self, rows: Sequence[bytes]) -> Batch:
        """Return the next rows of the file. Raises `DataError` of kind ``bad-document``."""
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
                    f"{what}; a JSON object with an 'id' and the text 'text' was expected",
                    file=self.file,
                    record=f"line {number}",
                    kind="bad-document",
                    fix=FIXES.get(missing, "Fix or remove the line: attributes belong to documents line by line."),
                ) from None
