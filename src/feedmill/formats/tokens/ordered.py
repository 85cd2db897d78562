"""Windows over documents that lie in another order than in their files: the samples of Megatron-LM's `GPTDataset`.

The documents, in a given order and possibly several times, are one stream of tokens. Window ``i`` holds the tokens
``[i * stride, i * stride + width)`` of that stream. Only the bounds of the documents in the stream are in memory, 8
bytes per document and pass; which tokens a window holds is computed from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.formats.base import Indices, numbers_inside
from feedmill.formats.offsets import Extents
from feedmill.formats.sample import Source
from feedmill.formats.tokens.base import Int64s, TokenDataset
from feedmill.formats.tokens.gather import Gather, Pieces, pieces_of, resets_from_bounds
from feedmill.formats.tokens.masks import Masks
from feedmill.formats.tokens.windows import Resets, WindowDataset


class DocumentOrder(Protocol):
    """The order of the documents of a stream."""

    @property
    def documents(self) -> npt.NDArray[Any]:
        """Return the number of each document of the stream, integers[n]; computed or mapped when first used."""

    @property
    def tokens(self) -> int:
        """Return the number of tokens of the stream, without computing `documents`."""

    @property
    def windows(self) -> int:
        """Return the number of windows."""

    @property
    def identity(self) -> str:
        """Return everything that determines the order, for fingerprints."""


class OrderedWindows(WindowDataset):
    """Windows of ``seq_len`` tokens, and one more that the next window begins with, over documents in an order.

    Args:
        tokens: the documents.
        order: their order in the stream, and the number of windows.
        seq_len: tokens from one window to the next.
        extra: windows hold ``seq_len + 1`` tokens.
        partial: the last window may be shorter, and is padded; it then has ``tokens``, see `WindowDataset`.
        pad: id of the padding.
        positions, boundaries: also return these fields, by the index of documents.

    Raises:
        NotFound: the index of documents is missing.
        ConfigError: the settings are invalid, or there are no windows.
    """

    format = "ordered windows"

    def __init__(
        self,
        tokens: TokenDataset,
        order: DocumentOrder,
        *,
        seq_len: int,
        extra: bool = True,
        partial: bool = False,
        pad: int = 0,
        positions: bool = False,
        boundaries: bool = False,
    ) -> None:
        tokens.need_index()
        self.order, self._extra = order, int(extra)
        tail: dict[str, Any] = {"tail": "pad", "pad": pad} if partial else {}
        super().__init__(
            tokens, width=seq_len + extra, stride=seq_len, positions=positions, boundaries=boundaries, **tail
        )

    def __getstate__(self) -> dict[str, Any]:
        # Another process computes or maps the stream itself.
        return {name: value for name, value in super().__getstate__().items() if name != "_bounds"}

    @cached_property
    def _bounds(self) -> Int64s:
        """Return the first token of each document in the stream, and its end: int64[documents + 1]."""
        documents = self.order.documents
        bounds = np.zeros(len(documents) + 1, np.int64)
        np.cumsum(self.tokens.lengths[documents], out=bounds[1:])
        return bounds

    def _count(self, sizes: Int64s) -> Int64s:  # noqa: ARG002
        return np.array([self.order.windows], np.int64)

    def begins(self, indices: Indices) -> tuple[Int64s, Int64s]:
        """Return zeros and the first token of each window in the stream, int64[n] both. Raises IndexError."""
        wanted = numbers_inside(indices, len(self), self.url, "window")
        return np.zeros_like(wanted), np.minimum(wanted * self.stride, self.order.tokens - self._extra)

    def pieces(self, indices: Indices) -> Pieces:
        """Return the parts of documents that windows consist of. Raises IndexError."""
        return self._pieces_at(self.begins(indices)[1])

    def _pieces_at(self, start: Int64s) -> Pieces:
        found = pieces_of(self._bounds, start, start + self.width)
        return found._replace(document=self.order.documents[found.document].astype(np.int64))

    def _fill(
        self,
        file: Int64s,
        start: Int64s,
        out: npt.NDArray[Any],
        source: Gather | Masks,
        pad: int | None,
    ) -> None:
        if not out.flags.c_contiguous:
            whole = np.empty(out.shape, out.dtype)
            self._fill(file, start, whole, source, pad)
            out[:] = whole
            return
        row, column, document, first, length = self._pieces_at(start)
        shard, begin = self._in_files(document, first)
        flat, to = out.reshape(-1), row * self.width + column
        copy = source.fill if isinstance(source, Masks) else source.spans
        for number in np.unique(shard).tolist():
            mine = np.flatnonzero(shard == number)
            copy(number, begin[mine], begin[mine] + length[mine], to[mine], flat)
        if self.tail == "pad":
            for number in np.flatnonzero(start + self.width > self.order.tokens).tolist():
                out[number, self.order.tokens - int(start[number]) :] = pad

    def _in_files(self, document: Int64s, first: Int64s) -> tuple[Int64s, Int64s]:
        """Return the file of each document, and the place in it of the token `first` of the document."""
        shard, local = self.tokens.places(document)
        begin = np.empty_like(shard)
        for number in np.unique(shard).tolist():
            mine = np.flatnonzero(shard == number)
            begin[mine] = self.tokens.shards[number].bounds[local[mine]] + first[mine]
        return shard, begin

    def _count_loss(self, masks: Masks, numbers: Int64s) -> Int64s:
        row, _, document, first, length = self.pieces(numbers)
        shard, begin = self._in_files(document, first)
        out = np.zeros(len(numbers), np.int64)
        for number in np.unique(shard).tolist():
            mine = np.flatnonzero(shard == number)
            mine = mine[np.argsort(begin[mine], kind="stable")]
            np.add.at(out, row[mine], masks.counts(number, begin[mine], begin[mine] + length[mine]))
        return out

    def _in_one_piece(self, file: Int64s, start: Int64s) -> bool:  # noqa: ARG002
        return False

    def documents_of(self, index: int) -> list[tuple[int, int]]:
        shard, local = self.tokens.places(self.pieces([index]).document)
        return list(dict.fromkeys(zip(shard.tolist(), local.tolist(), strict=True)))

    def windows_of(self, file: int, document: int) -> Sequence[int]:
        number = self.tokens.files()[file][1] + document
        found: set[int] = set()
        for place in np.flatnonzero(self.order.documents == number).tolist():
            low, high = self._bounds[place : place + 2].tolist()
            first, stop = self._overlapping(file, low, high)
            found.update(range(first, min(stop, len(self))) if low < high else ())
        return sorted(found)

    def _index_resets(self, indices: Indices) -> Resets:
        _, start = self.begins(indices)
        return resets_from_bounds(self._bounds, start, self.width)  # padding begins at the last bound

    def before(self, index: int, most: int) -> npt.NDArray[Any]:
        pieces = self.pieces([index])
        most = min(most, int(pieces.start[0]))
        low = pieces.start[:1] - most
        return self.tokens.read_tokens(pieces.document[:1], low, np.array([most]))[0].astype(self.dtype)

    def _real(self, numbers: Int64s) -> Int64s:
        return np.minimum(self.order.tokens - self.begins(numbers)[1], self.width)

    def _stored(self, index: int) -> bytes:
        pieces = self.pieces([index])
        return b"".join(part.tobytes() for part in self.tokens.read_tokens(*pieces[2:]))

    def locate(self, index: int) -> Source:
        """Return where the first document of a window begins in it."""
        number = self._checked(index)
        pieces = self.pieces([number])
        (shard, *_), (begin, *_) = self._in_files(pieces.document, pieces.start)
        table = self.tokens.shards[int(shard)]
        size = table.dtype.itemsize
        at, length = table.offset + int(begin) * size, int(pieces.length[0]) * size
        return Source(self.url, table.path, at, length, number, str(number), ("input_ids",))

    def extents(self, indices: Indices) -> Sequence[Extents]:
        if self.tokens.store.is_local:
            return ()
        pieces = self.pieces(indices)
        return [part.of_samples(pieces.row) for part in self.tokens.extents_of_tokens(*pieces[2:])]

    def _rule(self) -> str:
        return f"{super()._rule()} {self.order.identity}"

    def fingerprint_of_first(self, count: int) -> str | None:  # noqa: ARG002 - other documents change the whole order
        return None

    def _left_out(self) -> int:
        """Return the number of tokens of the stream after its last window."""
        return max(self.order.tokens - (len(self) * self.stride + self._extra), 0)
