"""Cut inputs into pieces, so that several processes can filter one file: lines of documents, and of attributes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

import numpy as np

from feedmill.documents.file import DocumentFile
from feedmill.documents.lines import read_blocks
from feedmill.formats.documents import read_lines

_NEWLINE = 10


class LineBlock(NamedTuple):
    """Lines of a file.

    Attributes:
        file: Number of the file.
        line: Number of the first line, from 1.
        lines: Lines of documents with line ends.
        attributes: Path of each attribute file, and its lines for these documents.
    """

    file: int
    line: int
    lines: bytes
    attributes: tuple[tuple[str, bytes], ...]

    def __repr__(self) -> str:
        return f"the lines from {self.line} on of file {self.file}"


class _Lines:
    """Lines of a file that is read in chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._left = chunks, b""

    def take(self, count: int) -> bytes:
        """Return the next lines, fewer at the end of the file."""
        parts = []
        while count and (chunk := self._left or next(self._chunks, b"")):
            have = rows_in(chunk)
            if have > count:
                ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE)
                at, have = int(ends[count - 1]) + 1, count
            else:
                at = len(chunk)
            parts.append(chunk[:at])
            self._left = chunk[at:]
            count -= have
        return b"".join(parts)


def rows_in(lines: bytes) -> int:
    """Return the number of lines; the last one may lack its line end."""
    return lines.count(b"\n") + (not lines.endswith(b"\n"))


def pieces(files: Sequence[DocumentFile], attributes: Sequence[str], packed: str | None) -> Iterator[LineBlock]:
    """Yield the pieces of files in order, with the lines of their attribute sets that exist.

    Args:
        packed: Compression of the documents; by default given by their names.
    """
    for number, file in enumerate(files):
        store = file.store()
        with ExitStack() as stack:
            paths = [path for name in attributes if store.exists(path := file.attributes(name))]
            sets = [(p, _Lines(stack.enter_context(closing(read_lines(store, p, json=True))))) for p in paths]
            line = 1
            for lines in stack.enter_context(closing(read_blocks(file, packed=packed))):
                rows = rows_in(lines)
                yield LineBlock(number, line, lines, tuple((store.locate(path), one.take(rows)) for path, one in sets))
                line += rows
