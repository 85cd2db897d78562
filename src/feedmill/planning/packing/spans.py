"""Spans of documents in rows: the tokens of a row, the rows of a document, and inputs for attention kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.kernels.bounds import bounds_of
from feedmill.planning.nodes.base import Located

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of rows: those of row i are ``row_offsets[i]`` to ``row_offsets[i + 1]``, in the order of the row.

    Attributes:
        row_offsets: int64[rows + 1].
        position: the document, as a position in the stream of documents, int64[spans].
        start: first token of the span, counted in its document, int64[spans].
        length: tokens, at least one, int64[spans].
    """

    row_offsets: IntArray
    position: IntArray
    start: IntArray
    length: IntArray

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    @property
    def row_lengths(self) -> IntArray:
        """Return the number of tokens in each row, int64[rows]."""
        ends = bounds_of(self.length)
        return np.diff(ends[self.row_offsets])

    def places(self, multiple: int) -> IntArray:
        """Return the slots that each span takes: its tokens, rounded up to a multiple, int64[spans]."""
        return self.length if multiple == 1 else -(-self.length // multiple) * multiple

    def cu_seqlens(self, width: int | None = None) -> list[npt.NDArray[np.int32]]:
        """Return for each row the cumulative lengths of its spans, int32[spans + 1], from 0.

        This is the input of attention kernels for variable-length sequences. Padding up to `width` counts as one more
        sequence.
        """
        rows = []
        for begin, end in zip(self.row_offsets[:-1].tolist(), self.row_offsets[1:].tolist(), strict=True):
            ends = np.cumsum(self.length[begin:end])
            pad = [width] if width is not None and (end == begin or ends[-1] < width) else []
            rows.append(np.concatenate(([0], ends, pad)).astype(np.int32))
        return rows

    def position_ids(self, width: int) -> npt.NDArray[np.int32]:
        """Return token positions, which begin at 0 in each span and in the padding: int32[rows, width]."""
        filled = self.row_lengths
        if len(filled) and int(filled.max()) > width:
            raise ValueError(f"a row has {int(filled.max())} tokens, more than {width}")
        ends = np.cumsum(self.length)
        before = np.concatenate(([0], ends))[self.row_offsets[:-1]]
        rows = np.repeat(np.arange(len(self)), np.diff(self.row_offsets))
        begins = ends - self.length - before[rows]
        # The start of each sequence, extended to its tokens by a running maximum: starts only grow within a row.
        origin = np.zeros((len(self), width + 1), np.int32)
        origin[rows, begins] = begins
        origin[np.arange(len(self)), filled] = filled
        np.maximum.accumulate(origin, axis=1, out=origin)
        return np.arange(width, dtype=np.int32) - origin[:, :width]


@dataclass(frozen=True, slots=True)
class LocatedSpans:
    """The spans of rows, with the samples of their documents. A slice has the spans of these rows.

    Attributes:
        spans: the spans of the rows.
        located: the document of each span: source int32[spans], sample number and epoch int64[spans].
    """

    spans: Spans
    located: Located

    def __iter__(self) -> Iterator[Any]:
        """Yield the spans and their documents, so that ``spans, located = ...`` gives both."""
        return iter((self.spans, self.located))

    def __getitem__(self, rows: slice) -> LocatedSpans:
        """Return some consecutive rows."""
        first, stop, _ = rows.indices(len(self.spans))
        bounds = self.spans.row_offsets[first : stop + 1]
        of_them = slice(int(bounds[0]), int(bounds[-1]))
        spans = self.spans
        cut = Spans(bounds - bounds[0], spans.position[of_them], spans.start[of_them], spans.length[of_them])
        return LocatedSpans(cut, self.located[of_them])


@dataclass(frozen=True, slots=True)
class Placements:
    """The rows of documents: the pieces of document i are ``offsets[i]`` to ``offsets[i + 1]``, sorted by start.

    Attributes:
        offsets: int64[documents + 1].
        row: the row, int64[pieces].
        at: first token of the piece, counted in the row, int64[pieces].
        start: first token of the piece, counted in the document, int64[pieces].
        length: tokens, int64[pieces].
    """

    offsets: IntArray
    row: IntArray
    at: IntArray
    start: IntArray
    length: IntArray
