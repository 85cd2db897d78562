"""Best-fit packing of whole documents into rows of `seq_len` tokens, planned from their lengths in large buffers.

Buffer b is the documents ``[b * buffer, (b + 1) * buffer)`` of the stream. Documents that are too long are first split,
truncated or dropped. The pieces are packed by best-fit decreasing (`kernels.binpack`), and the rows of a buffer are
shuffled with a key, because in packing order the first rows would hold the longest documents. Within a row, pieces
keep the order of the stream, for the same reason.

Rows are numbered across all buffers. Finding a row only needs the number of rows in earlier buffers, so once these are
planned, any row is found in O(log buffers).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feedmill.kernels.bounds import bounds_of, ranges
from feedmill.kernels.order.binpack import best_fit_decreasing, group_by
from feedmill.planning.packing.documents import Documents, IntArray
from feedmill.planning.packing.segments import Segment, Segments
from feedmill.planning.packing.spans import Placements, Spans
from feedmill.planning.permutation import branch, permute

VERSION = 1
BUFFER = 1 << 20
BUFFER_ON_READ = 1 << 12
"""Default of a recipe with documents that are tokenized when they are read: all of a buffer are, for its first row."""
_KEPT = 4


@dataclass(frozen=True, slots=True)
class _Inverse:
    """The spans of each document of a buffer.

    Attributes:
        begins: int64[documents + 1], index in `spans` of each document's first span.
        spans: int32[spans], spans ordered by document.
        sums: int64[spans], number of tokens before each span, over all rows.
    """

    begins: IntArray
    spans: npt.NDArray[np.int32]
    sums: IntArray


class BestFit:
    """The map from rows to spans, and back.

    Args:
        documents: the stream.
        folder: where the packing is stored.
        seq_len: tokens in a full row.
        long: handling of longer documents: ``split`` into pieces of `seq_len` and a rest that is packed like a
            document, ``truncate`` to the first `seq_len` tokens, or ``drop``.
        buffer: documents that are packed together.
        key: 64 bits from `permutation.derive`, for the order of rows.

    Attributes:
        width: tokens in a full row.
    """

    def __init__(
        self, documents: Documents, folder: Path, seq_len: int, long: str = "split", buffer: int = BUFFER, key: int = 0
    ) -> None:
        self.documents, self.seq_len, self.width = documents, seq_len, seq_len
        self.long, self.buffer, self.key = long, buffer, key
        self.segments = Segments(folder, self._plan, documents.segments(buffer))
        self._inverses: OrderedDict[int, _Inverse] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """Return the number of rows of the whole stream, which must be finite."""
        return self.segments.total

    def has(self, row: int) -> bool:
        """Return whether the row exists; plans as far as needed."""
        self.segments.until(row)
        return self.documents.length is None or row < self.segments.planned

    def spans(self, rows: IntArray) -> Spans:
        """Return the spans of rows, int64[n], all of which must exist."""
        owner = self.segments.of_units(rows)
        parts = []
        counts = np.empty(len(rows), np.int64)
        for number in np.unique(owner).tolist():
            mine = np.flatnonzero(owner == number)
            segment = self.segments.get(number)
            local = rows[mine] - segment.first
            begin = segment.wide[local]
            counts[mine] = segment.wide[local + 1] - begin
            parts.append((mine, segment, begin))
        row_offsets = bounds_of(counts)
        position, start, length = (np.empty(int(row_offsets[-1]), np.int64) for _ in range(3))
        for mine, segment, begin in parts:
            to, came = ranges(row_offsets[mine], counts[mine]), ranges(begin, counts[mine])
            document, piece, size = segment.narrow.reshape(3, -1)
            position[to] = document[came] + np.int64(segment.number * self.buffer)
            start[to] = piece[came] * np.int64(self.seq_len)
            length[to] = size[came]
        return Spans(row_offsets, position, start, length)

    def placements(self, positions: IntArray) -> Placements:
        """Return the rows that hold the documents at these positions, int64[n]."""
        owner = positions // self.buffer
        found: list[IntArray] = []
        for number in np.unique(owner).tolist():
            mine = np.flatnonzero(owner == number)
            segment, inverse = self.segments.get(number), self._inverse(number)
            local = positions[mine] - number * self.buffer
            begin = inverse.begins[local]
            counts = inverse.begins[local + 1] - begin
            spans = inverse.spans[ranges(begin, counts)].astype(np.int64)
            row = np.searchsorted(segment.wide, spans, side="right") - 1
            _, piece, size = segment.narrow.reshape(3, -1)
            at = inverse.sums[spans] - inverse.sums[segment.wide[row]]
            start = piece[spans] * np.int64(self.seq_len)
            found.append(np.stack([np.repeat(mine, counts), row + segment.first, at, start, size[spans]]))
        asked, row, at, start, length = np.concatenate(found, axis=1) if found else np.zeros((5, 0), np.int64)
        order = np.lexsort((start, asked))
        counts = np.bincount(asked, minlength=len(positions))
        return Placements(bounds_of(counts), row[order], at[order], start[order], length[order])

    def unit(self, row: int) -> int:
        """Return the unit of the segments at which a row begins: itself."""
        return row

    def reach(self, rows: int) -> int:
        """Return the number of documents in the buffers that the first `rows` rows come from."""
        return sum(self.segments.head(number).documents for number in range(self._buffers(rows)))

    def counts(self, rows: int) -> tuple[int, int]:
        """Return the tokens in the first `rows` rows, and the dropped tokens of documents in their buffers."""
        tokens = left_out = 0
        for number in range(self._buffers(rows)):
            head = self.segments.head(number)
            left_out += head.left_out
            if head.first + head.units <= rows:
                tokens += head.tokens
            else:
                segment = self.segments.get(number)
                size = segment.narrow.reshape(3, -1)[2]
                tokens += int(size[: int(segment.wide[rows - head.first])].sum(dtype=np.int64))
        return tokens, left_out

    def _buffers(self, rows: int) -> int:
        """Return how many buffers the first `rows` rows come from."""
        if rows == 0:
            return 0
        return int(self.segments.of_units(np.array([rows - 1]))[0]) + 1

    def _inverse(self, number: int) -> _Inverse:
        with self._lock:
            if number in self._inverses:
                self._inverses.move_to_end(number)
                return self._inverses[number]
        segment = self.segments.get(number)
        document, _, size = segment.narrow.reshape(3, -1)
        begins, spans = group_by(document, segment.documents)
        inverse = _Inverse(begins, spans, bounds_of(size.astype(np.int64)))
        with self._lock:
            self._inverses[number] = inverse
            while len(self._inverses) > _KEPT:
                self._inverses.popitem(last=False)
        return inverse

    def _plan(self, number: int, first: int) -> Segment:
        lengths = self.documents.between(number * self.buffer, (number + 1) * self.buffer)
        document, piece, size = cut(lengths, self.seq_len, self.long)
        tokens = int(size.sum(dtype=np.int64))
        # Clipping the row length to all tokens does not change the result, and saves memory, which grows with it.
        bins, rows = best_fit_decreasing(size, min(self.seq_len, max(1, tokens)))
        order = permute(np.arange(rows), rows, branch(self.key, number)).astype(np.int32)
        begins, spans = group_by(order[bins], rows)
        columns = np.concatenate([document[spans], piece[spans], size[spans]])
        left_out = int(lengths.sum()) - tokens
        return Segment(number, len(lengths), first, rows, tokens, left_out, begins, columns)


def cut(lengths: IntArray, seq_len: int, long: str) -> tuple[npt.NDArray[np.int32], ...]:
    """Cut documents into pieces of at most `seq_len` tokens, in order.

    Args:
        lengths: int64[n].
        seq_len: the longest piece.
        long: ``split``, ``truncate`` or ``drop``.

    Returns:
        Document, number of the piece in it (it begins at token ``piece * seq_len``), and tokens, int32[pieces] each.
        Documents without tokens have no piece.
    """
    if long == "split":
        pieces = -(-lengths // seq_len)
        document = np.repeat(np.arange(len(lengths), dtype=np.int32), pieces)
        piece = ranges(np.zeros(len(lengths), np.int64), pieces)
        size = np.minimum(lengths[document] - piece * seq_len, seq_len)
        return document, piece.astype(np.int32), size.astype(np.int32)
    kept = lengths > 0 if long == "truncate" else (lengths > 0) & (lengths <= seq_len)
    document = np.flatnonzero(kept).astype(np.int32)
    return document, np.zeros(len(document), np.int32), np.minimum(lengths[kept], seq_len).astype(np.int32)
