"""Gather many ranges of tokens of one length into an array: local files by memory map, others by ranged reads.

Ranges are copied directly from the map by a kernel, at memory speed and without the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.offsets import Int64s, read_records, read_rows
from feedmill.formats.tokens.shard import TokenShard
from feedmill.jobs.buffers import empty
from feedmill.kernels.rows import copy_spans, count_up
from feedmill.storage import Store
from feedmill.storage.local import raise_file_limit
from feedmill.storage.reasons import copy_again


class Gather:
    """Reader of ranges of the flat tokens of files. Thread-safe.

    Args:
        store, shards: the files. Local files are mapped when first read.
    """

    def __init__(self, store: Store, shards: Sequence[TokenShard]) -> None:
        self._store, self._shards = store, shards
        self._paths = [shard.path for shard in shards]
        self._maps: dict[int, _Map] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}

    def rows(self, shard: int, starts: Int64s, out: npt.NDArray[Any], rows: Int64s | None = None) -> None:
        """Fill rows of `out` with tokens of one file.

        Args:
            shard: number of the file.
            starts: int64[n], the first token of each row; ``starts + out.shape[1]`` must be in the file.
            out: integers[m, width]; if n = 0 or width = 0, nothing is read.
            rows: int64[n], rows to fill; by default the first n.

        Raises:
            DataError: the file has become shorter since it was opened.
        """
        width = out.shape[1]
        if not (width and len(starts)):
            return
        tokens = self._mapped(shard) if self._store.is_local else None
        if tokens is not None:
            _copy(tokens, starts, out, rows)
            return
        table = self._shards[shard]
        offsets, files = table.offset + starts * table.dtype.itemsize, np.full(len(starts), shard)
        rows = np.arange(len(starts)) if rows is None else rows
        read_rows(self._store, self._paths, files, offsets, table.dtype, out, rows)

    def spans(self, shard: int, first: Int64s, stop: Int64s, to: Int64s, out: npt.NDArray[Any]) -> None:
        """Copy ranges of tokens of one file to a flat array.

        Args:
            shard: number of the file.
            first, stop: int64[n], the first token of each range, and its end, which must be in the file.
            to: int64[n], where each range begins in `out`.
            out: integers[m].

        Raises:
            DataError: the file has become shorter since it was opened.
        """
        if self._store.is_local:
            copy_spans(self._mapped(shard), first, stop - first, to, out)
            return
        table = self._shards[shard]
        size = table.dtype.itemsize
        blocks = read_records(self._store, table.path, table.offset + first * size, table.offset + stop * size)
        for place, block in zip(to.tolist(), blocks, strict=True):
            tokens = np.frombuffer(block, table.dtype)
            out[place : place + len(tokens)] = tokens

    def flat(self, shard: int) -> npt.NDArray[Any] | None:
        """Return all tokens of a local file; None for others. Raises as `rows` does."""
        return self._mapped(shard) if self._store.is_local else None

    def _mapped(self, shard: int) -> npt.NDArray[Any]:
        """Return the tokens of a local file, which is mapped once.

        Each call checks the size of the file, because reading a map beyond the end of its file kills the process.
        """
        kept = self._maps.get(shard)
        if kept is not None and _size(kept.path) >= kept.end:
            return kept.tokens
        table = self._shards[shard]
        end = table.offset + table.tokens * table.dtype.itemsize
        size = self._store.stat(table.path).size
        if size < end:
            raise DataError(
                f"the file is truncated (its tokens end at byte {end}, the file has {size} bytes)",
                file=self._store.locate(table.path),
                kind="truncated",
                fix="The file changed after it was opened. " + copy_again(instead="write it again"),
            )
        if kept is None:
            raise_file_limit()
            with self._store.local_copy(table.path) as local:
                # A plain array, because slicing a memmap object costs more than copying a window.
                tokens = np.asarray(np.memmap(local, table.dtype, "r", table.offset, (table.tokens,)))
            kept = self._maps[shard] = _Map(tokens, str(local), end)
        return kept.tokens


class _Map(NamedTuple):
    """The mapped tokens of a file, its path, and the byte at which they end."""

    tokens: npt.NDArray[Any]
    path: str
    end: int


def _size(path: str) -> int:
    """Return the size of a file, asked as cheaply as each batch needs it; -1 if it cannot be asked."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _copy(tokens: npt.NDArray[Any], starts: Int64s, out: npt.NDArray[Any], rows: Int64s | None) -> None:
    """Copy ranges of mapped tokens to rows, each in one pass."""
    width = out.shape[1]
    if len(starts) > 1 and out.flags.c_contiguous:
        to = (np.arange(len(starts)) if rows is None else rows) * width
        copy_spans(tokens, starts, np.full(len(starts), width), to, out.reshape(-1))
        return
    for row, start in zip(range(len(starts)) if rows is None else rows.tolist(), starts.tolist(), strict=True):
        out[row] = tokens[start : start + width]


class Pieces(NamedTuple):
    """The documents, or parts of them, of which ranges of a stream of documents consist, in order; int64[k] each.

    Attributes:
        row: number of the range.
        column: position of the piece in it.
        document: number of the document in the stream.
        start, length: its tokens ``[start, start + length)``, at least one.
    """

    row: Int64s
    column: Int64s
    document: Int64s
    start: Int64s
    length: Int64s


def pieces_of(bounds: Int64s, starts: Int64s, stops: Int64s) -> Pieces:
    """Return the pieces of ranges of a stream of documents; what lies beyond its end belongs to none.

    Args:
        bounds: int64[documents + 1], start of each document in the stream, and the end of the last one.
        starts, stops: int64[n], the ranges.
    """
    stops = np.minimum(stops, bounds[-1])
    low = np.searchsorted(bounds, starts, side="right") - 1
    counts = np.maximum(np.searchsorted(bounds, stops, side="left") - low, 0)
    row = np.repeat(np.arange(len(starts)), counts)
    at = np.arange(len(row)) + (low - np.cumsum(counts) + counts)[row]
    begin, end = np.maximum(bounds[at], starts[row]), np.minimum(bounds[at + 1], stops[row])
    real = end > begin  # documents without tokens are no pieces
    row, at, begin, end = row[real], at[real], begin[real], end[real]
    return Pieces(row, begin - starts[row], at, begin - bounds[at], end - begin)


def resets_from_bounds(bounds: Int64s, starts: Int64s, width: int) -> tuple[Int64s, Int64s]:
    """Return the starts of documents inside ranges of a file's tokens.

    Args:
        bounds: int64[documents + 1], start of each document, and the end of the last one.
        starts: int64[n], the start of each range.
        width: tokens per range.

    Returns:
        Row and position in it (1 to width - 1) of each start except those at position 0, int64[k] both.
    """
    low = np.searchsorted(bounds, starts, side="right")
    high = np.searchsorted(bounds, starts + width, side="left")
    counts = np.maximum(high - low, 0)
    row = np.repeat(np.arange(len(starts)), counts)
    before = np.cumsum(counts) - counts
    at = bounds[np.arange(len(row)) - before[row] + low[row]] - starts[row]
    return row, np.asarray(at, np.int64)


def resets_from_eos(tokens: npt.NDArray[Any], eos: int) -> tuple[Int64s, Int64s]:
    """Return the result of `resets_from_bounds` from tokens [n, width]: a document begins after each `eos`."""
    row, at = np.nonzero(tokens[:, :-1] == eos)
    return row.astype(np.int64), at.astype(np.int64) + 1


def positions_from(resets: tuple[Int64s, Int64s], shape: tuple[int, int]) -> Int64s:
    """Return each token's position in its document, int64[n, width]; for the first document, in the window."""
    out: Int64s = empty(shape, np.int64)
    count_up(*resets, out)
    return out


def boundaries_from(resets: tuple[Int64s, Int64s], shape: tuple[int, int]) -> list[Int64s]:
    """Return for each window 0, the starts of its further documents, and its width, int64[documents + 1]."""
    row, at = resets
    cuts = np.searchsorted(row, np.arange(shape[0] + 1))
    ends = np.zeros(1, np.int64), np.full(1, shape[1], np.int64)
    # An empty document has the same start as the next one.
    return [
        np.unique(np.concatenate((ends[0], at[low:high], ends[1])))
        for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
    ]
