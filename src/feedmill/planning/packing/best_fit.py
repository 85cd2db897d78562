"""Best-fit packing of whole documents into rows of `seq_len` tokens, planned from their lengths in large buffers.

A buffer is a range of the stream's documents that are packed together. Documents that are too long are first split,
truncated or dropped. The pieces are packed by best-fit decreasing (`kernels.binpack`), and the rows of a buffer are
shuffled with a key, because in packing order the first rows would hold the longest documents. Within a row, pieces
keep the order of the stream, for the same reason.

Segment s is the documents ``[s * size, (s + 1) * size)``, and one file (`segments`). It is one buffer if the recipe
gives the size (`buffer`). By default it is cut into buffers wherever a pass of a source or a stage ends (`Node.seams`):
rows are shuffled and filled inside a buffer, so a buffer with two passes would repeat documents before all were seen.

Groups of documents that stay together (`nodes.groups`) are packed as one piece each, whole or not at all. A segment
then begins with the group that its first document would cut.

Rows are numbered across all buffers. Finding a row only needs the number of rows in earlier segments, so once these are
planned, any row is found in O(log segments).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.kernels.bounds import bounds_of, ranges
from feedmill.kernels.order.binpack import best_fit_decreasing, group_by
from feedmill.planning.nodes.base import Node
from feedmill.planning.packing.documents import Documents, IntArray
from feedmill.planning.packing.segments import Segment, Segments
from feedmill.planning.packing.spans import Placements, Spans
from feedmill.planning.permutation import branch, permute

BUFFER = 1 << 20
BUFFER_ON_READ = 1 << 12
"""Documents of a segment if they are tokenized when they are read: all of a segment are, for its first row."""
_KEPT = 4
_SORTED = 1 << 16
"""Rows that are sorted at once."""

IntArray32 = npt.NDArray[np.int32]


class Buffer(NamedTuple):
    """One buffer: its documents, and the rows that it is packed into.

    Attributes:
        start, stop: its documents, as positions in the stream.
        first, behind: its first row, and the row after its last.
    """

    start: int
    stop: int
    first: int
    behind: int


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
        buffer: documents that are packed together, passes or not; None for buffers that end where passes end.
        key: 64 bits from `permutation.derive`, for the order of rows.
        width: tokens in a full row, if not all of them are filled: `seq_len` is then what documents may fill.
        multiple: a piece takes a place of its length rounded up to a multiple; `seq_len` is one.
        limits: what else a row takes a limited amount of, see `Documents.sized`.

    Attributes:
        width: tokens in a full row.
        size: documents of a segment.
    """

    def __init__(
        self,
        documents: Documents,
        folder: Path,
        seq_len: int,
        long: str = "split",
        buffer: int | None = None,
        key: int = 0,
        width: int | None = None,
        multiple: int = 1,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.documents, self.seq_len, self.width = documents, seq_len, width or seq_len
        self.multiple, self.limits = multiple, limits or {}
        self.long, self.buffer, self.key = long, buffer, key
        self.size = buffer or (BUFFER_ON_READ if documents.counted_on_read else BUFFER)
        most = seq_len if long == "drop" else None
        self.segments = Segments(folder, self._plan, documents.segments(self.size), lambda: documents.have(most))
        self._inverses: OrderedDict[int, _Inverse] = OrderedDict()
        self._latest: tuple[int, IntArray] | None = None  # of `_bounds`; threads may compute the same twice
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
            position[to] = document[came] + np.int64(self._begin(segment.number))
            start[to] = piece[came] * np.int64(self.seq_len)
            length[to] = size[came]
        return Spans(row_offsets, position, start, length)

    def placements(self, positions: IntArray) -> Placements:
        """Return the rows that hold the documents at these positions, int64[n]."""
        owner = positions // self.size
        for number in np.unique(owner).tolist() if self.documents.grouped else ():
            owner[(owner == number) & (positions >= self._begin(number + 1))] = number + 1
        found: list[IntArray] = []
        for number in np.unique(owner).tolist():
            mine = np.flatnonzero(owner == number)
            segment, inverse = self.segments.get(number), self._inverse(number)
            local = positions[mine] - self._begin(number)
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

    def landmark(self, row: int) -> list[int]:
        """Return from where planning can begin for a row: a segment, and the rows before it."""
        return self.segments.landmark(row)

    def begin_at(self, landmark: Sequence[int]) -> None:
        """Begin planning at a landmark."""
        self.segments.begin_at(*landmark)

    def held(self, rows: int) -> list[tuple[int, int, Fraction]]:
        """Return which documents the first rows hold: ranges, and how much of each.

        Of the last buffer, whose rows are shuffled, as large a share is counted as there are rows of it.
        """
        last = self.last_buffer(rows)
        share = Fraction(rows - last.first, max(last.behind - last.first, 1))
        return [(0, last.start, Fraction(1)), (last.start, last.stop, share)]

    def reach(self, rows: int) -> int:
        """Return the number of documents in the buffers that the first `rows` rows come from."""
        return self.last_buffer(rows).stop

    def last_buffer(self, rows: int) -> Buffer:
        """Return the buffer that the last of the first `rows` rows comes from; an empty one without rows."""
        if rows == 0:
            return Buffer(0, 0, 0, 0)
        number = int(self.segments.of_units(np.array([rows - 1]))[0])
        segment, begin = self.segments.get(number), self._begin(number)
        bounds = self._bounds(number, segment.documents)
        if len(bounds) == 2:
            return Buffer(begin, begin + segment.documents, segment.first, segment.first + segment.units)
        # The rows of a buffer follow those of the buffers before it, and each begins with a document of its buffer.
        documents = segment.narrow[: len(segment.narrow) // 3][segment.wide[:-1]]
        buffer = np.searchsorted(bounds, documents[rows - 1 - segment.first], side="right") - 1
        start, stop = bounds[buffer : buffer + 2].tolist()
        before, behind = (segment.first + int(np.count_nonzero(documents < end)) for end in (start, stop))
        return Buffer(begin + start, begin + stop, before, behind)

    def ends_at(self, documents: int) -> bool:
        """Return whether a buffer ends after this many documents, also if the stream does not end there."""
        number = documents // self.size
        number += self._begin(number + 1) == documents
        rest = documents - self._begin(number)
        return not rest or rest in self._ends(self.documents.plan.node, number)

    def same_buffers(self, other: Node, documents: int) -> bool:
        """Return whether another stream is cut into the same buffers by this many documents, and where they end."""
        for number in range(-(-documents // self.size)):
            ours, theirs = (self._ends(node, number) for node in (self.documents.plan.node, other))
            until = documents - self._begin(number)
            if not np.array_equal(ours[ours <= until], theirs[theirs <= until]):
                return False
        return True

    def counts(self, rows: int) -> tuple[int, int]:
        """Return the tokens in the first `rows` rows, and the dropped tokens of documents in their buffers."""
        if rows == 0:
            return 0, 0
        last = int(self.segments.of_units(np.array([rows - 1]))[0])
        heads = [self.segments.head(number) for number in range(last)]
        tokens, left_out = sum(head.tokens for head in heads), sum(head.left_out for head in heads)
        segment = self.segments.get(last)
        document, _, size = segment.narrow.reshape(3, -1)
        tokens += int(size[: int(segment.wide[rows - segment.first])].sum(dtype=np.int64))
        if segment.left_out:  # those of later buffers of this segment do not count
            stop = self.reach(rows)
            begin = self._begin(last)
            kept = int(size[document < stop - begin].sum(dtype=np.int64))
            left_out += int(self.documents.between(begin, stop).sum()) - kept
        return tokens, left_out

    def used_up(self, rows: int) -> dict[str, tuple[int, int]]:
        """Return which limits leave tokens free: name -> how many of the first `rows` rows, and their free tokens.

        A limit ends a row if too little of it is left for any sample of the row's segment that takes some of it, while
        the shortest of these would find room for its tokens.
        """
        found = dict.fromkeys(self.limits, (0, 0))
        names, last = tuple(self.limits), int(self.segments.of_units(np.array([rows - 1]))[0]) if rows else -1
        for number in range(last + 1 if names else 0):
            segment, begin = self.segments.get(number), self._begin(number)
            bounds = segment.wide[: min(segment.units, rows - segment.first) + 1]
            document, _, size = segment.narrow.reshape(3, -1)[:, : int(bounds[-1])]
            places = -(-size.astype(np.int64) // self.multiple) * self.multiple
            _, needs = self.documents.sized_between(begin, begin + segment.documents, names)
            demands = needs[:, document]
            if self.documents.grouped:
                firsts = np.flatnonzero(self.documents.places(begin + document.astype(np.int64))[0] == 0)
                places, demands = np.add.reduceat(places, firsts), np.add.reduceat(demands, firsts, axis=1)
                bounds = np.searchsorted(firsts, bounds)
            free = self.seq_len - np.add.reduceat(places, bounds[:-1])
            for name, taken in zip(names, demands, strict=True):
                some = taken > 0
                if some.any():
                    left = self.limits[name] - np.add.reduceat(taken, bounds[:-1])
                    ended = (left < taken[some].min()) & (free >= places[some].min())
                    count, slots = found[name]
                    found[name] = count + int(ended.sum()), slots + int(free[ended].sum())
        return {name: counts for name, counts in found.items() if counts[0]}

    def largest_buffer(self, rows: int) -> int:
        """Return the documents of the largest buffer in the first segment that the first `rows` rows come from."""
        documents = min(self.reach(rows), self.size)
        return int(np.diff(self._bounds(0, documents)).max())

    def _bounds(self, number: int, documents: int) -> IntArray:
        """Return where the buffers of a segment begin, counted in its documents, and its end: int64[buffers + 1]."""
        if self._latest is None or self._latest[0] != number:
            self._latest = number, self._ends(self.documents.plan.node, number)
        inside = self._latest[1]
        return np.concatenate(([0], inside[inside < documents], [documents]))

    def _ends(self, node: Node, number: int) -> IntArray:
        """Return where buffers end inside a segment of an endless stream, counted in the documents of the segment."""
        if self.buffer is not None:
            return np.zeros(0, np.int64)
        begin, stop = self._begin(number), self._begin(number + 1)
        stop = stop if self.documents.length is None else min(stop, self.documents.length)
        return cuts(self.documents.seams(node, begin, stop)) - begin

    def _begin(self, number: int) -> int:
        """Return the first document of a segment."""
        return self.documents.whole(number * self.size)

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
        begin = self._begin(number)
        lengths, needs = self.documents.sized_between(begin, self._begin(number + 1), tuple(self.limits))
        limits = np.array(list(self.limits.values()), np.int64)
        fits: npt.NDArray[np.bool_] = np.all(needs <= limits[:, None], axis=0)
        if self.documents.grouped:
            fits = self._whole_groups(begin, lengths, needs, limits)
        document, piece, size = cut(lengths if fits.all() else np.where(fits, lengths, 0), self.seq_len, self.long)
        tokens = int(size.sum(dtype=np.int64))
        places = size if self.multiple == 1 else -(-size // self.multiple) * self.multiple
        firsts, demands = document, needs[:, document]
        grouped = self.documents.grouped and len(document) > 0
        if grouped:  # what is packed are groups
            begins_group = self.documents.places(begin + document.astype(np.int64))[0] == 0
            starts = np.flatnonzero(begins_group)
            firsts, places = document[starts], np.add.reduceat(places, starts).astype(np.int32)
            demands = np.add.reduceat(demands, starts, axis=1)
        buffers = np.searchsorted(firsts, self._bounds(number, len(lengths)))
        # Clipping the row length to all tokens does not change the result, and saves memory, which grows with it.
        most = min(self.seq_len, max(1, int(places.sum(dtype=np.int64))))
        bins, rows = best_fit_decreasing(places, most, buffers, demands, limits)
        order = self._shuffled(number, bins, buffers, rows)
        row = order[bins]
        begins, spans = group_by(row[np.cumsum(begins_group) - 1] if grouped else row, rows)
        columns = np.concatenate([document[spans], piece[spans], size[spans]])
        left_out = int(lengths.sum()) - tokens
        return Segment(number, len(lengths), first, rows, tokens, left_out, begins, columns)

    def _whole_groups(self, begin: int, lengths: IntArray, needs: IntArray, limits: IntArray) -> npt.NDArray[np.bool_]:
        """Return which documents of a segment are of groups that a row can hold, bool[n].

        Raises:
            ConfigError: a group is larger than a segment, or no row can hold it and it is not to be dropped.
        """
        if not len(lengths):
            raise ConfigError(
                f"the group from document {begin:,} on is larger than a buffer of {self.size:,} documents",
                kind="bad-recipe",
                fix="Give a larger 'buffer', or smaller groups.",
            )
        place, _ = self.documents.places(begin + np.arange(len(lengths)))
        starts = np.flatnonzero(place == 0)
        fits, sums = fitting_groups(lengths, needs, starts, self.multiple, self.seq_len, limits)
        if self.long != "drop" and len(over := np.flatnonzero(sums > self.seq_len)):
            worst = int(over[np.argmax(sums[over])])
            raise ConfigError(
                f"{len(over):,} groups have more than the {self.seq_len:,} tokens of a row, the largest is that from"
                f" document {begin + int(starts[worst]):,} on with {int(sums[worst]):,}: 'long: {self.long}' cannot cut"
                " groups",
                kind="too-large",
                fix="Use 'long: drop', or a larger seq_len.",
            )
        return np.repeat(fits, np.diff(np.append(starts, len(lengths))))

    def _shuffled(self, number: int, bins: npt.NDArray[np.int32], buffers: IntArray, rows: int) -> IntArray32:
        """Return the row of each bin: those of a buffer are shuffled among themselves, int32[rows]."""
        buffer = np.empty(rows, np.int32)
        buffer[bins] = np.repeat(np.arange(len(buffers) - 1, dtype=np.int32), np.diff(buffers))
        key = branch(self.key, number)
        # The first buffer has the permutation of a segment that is one buffer; the others sort by a hash.
        first = int(np.searchsorted(buffer, 0, side="right"))
        order = np.empty(rows, np.int32)
        order[:first] = permute(np.arange(first), first, key)
        begin = first
        while begin < rows:  # some whole buffers at a time, which the processor's cache holds
            end = int(np.searchsorted(buffer, buffer[min(begin + _SORTED, rows) - 1], side="right"))
            others = np.lexsort((branch(key, np.arange(begin, end)), buffer[begin:end]))
            order[begin + others] = np.arange(begin, end, dtype=np.int32)
            begin = end
        return order


def fitting_groups(
    lengths: IntArray, needs: IntArray, starts: IntArray, multiple: int, seq_len: int, limits: IntArray
) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """Return which groups a row can hold, bool[groups], and what they take of one, int64[groups].

    A group of which a document has no tokens is in no row: the others would lack it.

    Args:
        lengths, needs: as from `Documents.sized`.
        starts: the first document of each group, int64[groups].
    """
    sums = np.add.reduceat(-(-lengths // multiple) * multiple, starts)
    fits = (np.minimum.reduceat(lengths, starts) > 0) & (sums <= seq_len)
    return fits & (np.add.reduceat(needs, starts, axis=1) <= limits[:, None]).all(0), sums


def cuts(seams: IntArray) -> IntArray:
    """Return the fewest positions at which a stream is cut at all these seams (`Node.seams`), ascending: int64[k].

    Each cut is as late as the seams allow, which makes the cuts before a position independent of what follows it.
    """
    found: list[int] = []
    last = -1
    for low, high in seams[np.argsort(seams[:, 1], kind="stable")].tolist():
        if low > last:
            last = high
            found.append(high)
    return np.array(found, np.int64)


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
