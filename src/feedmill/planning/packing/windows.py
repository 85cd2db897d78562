"""Concatenate and cut: windows of `seq_len` tokens over the concatenated documents.

Window r holds the tokens ``[r * seq_len, (r + 1) * seq_len)`` of the concatenation, and with `overlap` one more, which
is the first of the next window: the last target of one window is the first input of the next, so that every token but
the very first is a target once. Documents without tokens are in no window.

The offset of a document is the sum of the lengths before it. These sums are stored for every `CHUNK` documents and
computed within a chunk on demand, so a window costs one search and a part of a chunk's lengths.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from feedmill.kernels.bounds import bounds_of, ranges
from feedmill.planning.packing.documents import Documents, IntArray
from feedmill.planning.packing.segments import Segment, Segments
from feedmill.planning.packing.spans import Placements, Spans

CHUNK = 1 << 16
PER_SEGMENT = 1 << 6
ON_READ = 1 << 10
"""Documents of a segment if they must be read to know their lengths."""
_KEPT = 16


class Windows:
    """The map from windows to spans, and back.

    Args:
        documents: the stream.
        folder: where the sums are stored.
        seq_len: tokens from one window to the next.
        overlap: windows hold one more token.
        last: handling of the tokens after the last whole window: ``drop``, or ``keep`` or ``pad`` for a short window.

    Attributes:
        width: tokens in a whole window.
    """

    def __init__(
        self, documents: Documents, folder: Path, seq_len: int, overlap: bool = False, last: str = "drop"
    ) -> None:
        self.documents, self.seq_len, self.width, self.last = documents, seq_len, seq_len + overlap, last
        self._overlap = int(overlap)
        self._chunk, self._per_segment = (ON_READ, 1) if documents.counted_on_read else (CHUNK, PER_SEGMENT)
        self._span = self._chunk * self._per_segment
        self.segments = Segments(folder, self._plan, documents.segments(self._span), documents.have)
        self._chunks: OrderedDict[int, IntArray] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """Return the number of windows over the whole stream, which must be finite."""
        tokens = self.segments.total
        whole = max(tokens - self._overlap, 0) // self.seq_len
        if self.last == "drop":
            return whole
        # Every window must hold a new token; a stream of a single token still needs one window.
        return -(-max(tokens - self._overlap, min(tokens, 1)) // self.seq_len)

    def has(self, row: int) -> bool:
        """Return whether the window exists; plans as far as needed."""
        if self.documents.length is not None:
            return row < self.total
        self.segments.until(row * self.seq_len + self.width)
        return True

    def spans(self, rows: IntArray) -> Spans:
        """Return the spans of windows, int64[n], all of which must exist."""
        begin = rows * self.seq_len
        end = begin + self.width
        if len(end) and self.documents.length is not None:
            end = np.minimum(end, self.segments.total)
        bounds, before = self._find(np.concatenate([begin, end - 1]))
        first, last = np.split(bounds, 2)
        counts = last - first + 1
        position = ranges(first, counts)
        length = self.documents.lengths(position)
        spans = bounds_of(counts)
        # Tokens of a document before and after the window: only the first and last document of a window have any.
        start = np.zeros(len(position), np.int64)
        start[spans[:-1]] = begin - before[: len(rows)]
        surplus = np.zeros(len(position), np.int64)
        surplus[spans[1:] - 1] = before[len(rows) :] + length[spans[1:] - 1] - end
        length = length - start - surplus
        kept = length > 0  # documents without tokens
        return Spans(bounds_of(kept)[spans], position[kept], start[kept], length[kept])

    def placements(self, positions: IntArray) -> Placements:
        """Return the windows that hold the documents at these positions, int64[n]."""
        begin, length = self._begins(positions), self.documents.lengths(positions)
        low = np.maximum(begin - self._overlap, 0) // self.seq_len
        high = np.where(length > 0, (begin + length - 1) // self.seq_len, low - 1)
        if self.documents.length is not None:
            high = np.minimum(high, self.total - 1)
        counts = np.maximum(high - low + 1, 0)
        row = ranges(low, counts)
        owner = np.repeat(np.arange(len(positions)), counts)
        at = np.maximum(begin[owner] - row * self.seq_len, 0)
        start = np.maximum(row * self.seq_len - begin[owner], 0)
        return Placements(bounds_of(counts), row, at, start, np.minimum(length[owner] - start, self.width - at))

    def landmark(self, row: int) -> list[int]:
        """Return from where planning can begin for a window: a segment, and the tokens before it."""
        return self.segments.landmark(row * self.seq_len)

    def begin_at(self, landmark: Sequence[int]) -> None:
        """Begin planning at a landmark."""
        self.segments.begin_at(landmark[0], landmark[1])

    def held(self, rows: int) -> list[tuple[int, int, Fraction]]:
        """Return which documents the first windows hold: ranges, and how much of each."""
        return [(0, self.reach(rows), Fraction(1))]

    def used_up(self, rows: int) -> dict[str, tuple[int, int]]:  # noqa: ARG002 - windows have no limits
        """Return which limits leave tokens free: none."""
        return {}

    def reach(self, rows: int) -> int:
        """Return the number of documents of the stream up to the last one in the first `rows` windows."""
        if rows == 0:
            return 0
        spans = self.spans(np.array([rows - 1]))
        return int(spans.position[-1]) + 1

    def counts(self, rows: int) -> tuple[int, int]:
        """Return the tokens in the first `rows` windows, shared ones twice, and the tokens dropped at the end."""
        if rows == 0:
            return 0, 0
        tokens = (rows - 1) * self.width + int(self.spans(np.array([rows - 1])).row_lengths[0])
        ends = self.documents.length is not None and rows == self.total
        return tokens, max(self.segments.total - (rows * self.seq_len + self._overlap), 0) if ends else 0

    def _find(self, tokens: IntArray) -> tuple[IntArray, IntArray]:
        """Return the document of each token, and the number of tokens before that document."""
        position, before = np.empty_like(tokens), np.empty_like(tokens)
        segment = self.segments.of_units(tokens)
        chunk = np.empty_like(tokens)
        for number in np.unique(segment).tolist():
            mine = segment == number
            known = self.segments.get(number)
            inside = np.searchsorted(known.wide[:-1], tokens[mine] - known.first, side="right") - 1
            chunk[mine] = number * self._per_segment + inside
        for number in np.unique(chunk).tolist():
            mine = chunk == number
            sums = self._sums(number)
            inside = np.searchsorted(sums, tokens[mine], side="right") - 1
            position[mine] = number * self._chunk + inside
            before[mine] = sums[inside]
        return position, before

    def _begins(self, positions: IntArray) -> IntArray:
        """Return the number of tokens before each document."""
        out = np.empty_like(positions)
        chunk = positions // self._chunk
        for number in np.unique(chunk).tolist():
            mine = chunk == number
            out[mine] = self._sums(number)[positions[mine] - number * self._chunk]
        return out

    def _sums(self, chunk: int) -> IntArray:
        """Return the number of tokens before each document of a chunk, int64[documents]."""
        with self._lock:
            if chunk in self._chunks:
                self._chunks.move_to_end(chunk)
                return self._chunks[chunk]
        segment = self.segments.get(chunk // self._per_segment)
        lengths = self.documents.between(chunk * self._chunk, (chunk + 1) * self._chunk)
        sums = np.cumsum(lengths) - lengths + (segment.first + int(segment.wide[chunk % self._per_segment]))
        with self._lock:
            self._chunks[chunk] = sums
            while len(self._chunks) > _KEPT:
                self._chunks.popitem(last=False)
        return sums

    def _plan(self, number: int, first: int) -> Segment:
        begin = number * self._span
        end = begin + self._span if self.documents.length is None else min(begin + self._span, self.documents.length)
        sums = [
            int(self.documents.between(chunk, min(chunk + self._chunk, end)).sum())
            for chunk in range(begin, end, self._chunk)
        ]
        wide = bounds_of(np.array(sums, np.int64))
        total = int(wide[-1])
        return Segment(number, end - begin, first, total, total, 0, wide, np.zeros(0, np.int32))
