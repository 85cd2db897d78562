"""Many ranges of tokens, of one length, into one array: local files by memory map, others by ranged reads.

Ranges are copied straight out of the map; numpy's own loops do it at memory speed and let other threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from feedmill.errors import DataError
from feedmill.formats.offsets import Int64s
from feedmill.formats.tokens.base import TokenShard
from feedmill.storage import Store
from feedmill.storage.local import more_files

_PIECE = 1 << 20
"""Bytes that are copied before they are widened: few enough to stay in the processor's cache."""


class Gather:
    """Reads ranges of the flat tokens of some files. Any thread may use it.

    Args:
        store, shards: the files. Those of a local store are mapped when first read.
    """

    def __init__(self, store: Store, shards: Sequence[TokenShard]) -> None:
        self._store, self._shards = store, shards
        self._maps: dict[int, npt.NDArray[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}

    def rows(self, shard: int, starts: Int64s, out: npt.NDArray[Any], rows: Int64s | None = None) -> None:
        """Fill rows of `out` with tokens of one file.

        Args:
            shard: number of the file.
            starts: int64[n], the first token of each row; ``starts + out.shape[1]`` lies in the file.
            out: integers[m, width]; where n = 0 or width = 0 nothing is read.
            rows: int64[n], which rows to fill; the first n where None.

        Raises:
            DataError: the file became shorter than when it was opened.
        """
        width = out.shape[1]
        if not (width and len(starts)):
            return
        tokens = self._mapped(shard) if self._store.is_local else None
        if tokens is not None:
            _copy(tokens, starts, out, rows)
            return
        table = self._shards[shard]
        size = table.dtype.itemsize
        at = (table.offset + starts * size).tolist()
        found = np.empty(len(at) * width * size, np.uint8)
        self._store.fill([(table.path, at, [width * size] * len(at))], found.data)
        out[slice(len(at)) if rows is None else rows] = found.view(table.dtype).reshape(len(at), width)

    def _mapped(self, shard: int) -> npt.NDArray[Any]:
        """The tokens of a local file, mapped once; looks each time that the file still has them all, because reading
        a map behind the end of its file kills the process."""
        table = self._shards[shard]
        end = table.offset + table.tokens * table.dtype.itemsize
        found = self._store.stat(table.path).size
        if found < end:
            raise DataError(
                f"the file is cut short (its tokens end at byte {end}, the file has {found})",
                file=self._store.locate(table.path),
                kind="truncated",
                fix="It changed after it was opened: copy or make it again.",
            )
        if shard not in self._maps:
            more_files()
            with self._store.local_copy(table.path) as local:
                # As a plain array: slicing a memmap object costs more than copying a window.
                self._maps[shard] = np.asarray(np.memmap(local, table.dtype, "r", table.offset, (table.tokens,)))
        return self._maps[shard]


def _copy(tokens: npt.NDArray[Any], starts: Int64s, out: npt.NDArray[Any], rows: Int64s | None) -> None:
    """Ranges of mapped tokens into rows: copied as they are, a piece of the batch at a time, then widened at once.

    Widening each row by itself would take twice as long.
    """
    width = out.shape[1]
    together = _PIECE // (width * tokens.itemsize)
    if together < 2 or len(starts) < 2:
        for row, start in zip(range(len(starts)) if rows is None else rows.tolist(), starts.tolist(), strict=True):
            out[row] = tokens[start : start + width]
        return
    (step,) = tokens.strides
    ranges = as_strided(tokens, (len(tokens) - width + 1, width), (step, step), writeable=False)
    for at in range(0, len(starts), together):
        piece = ranges[starts[at : at + together]]
        out[slice(at, at + len(piece)) if rows is None else rows[at : at + together]] = piece


def resets_from_bounds(bounds: Int64s, starts: Int64s, width: int) -> tuple[Int64s, Int64s]:
    """Return where documents begin inside of ranges of a file's tokens.

    Args:
        bounds: int64[documents + 1], where documents begin, and the end of the last one.
        starts: int64[n], where the ranges begin.
        width: tokens in each.

    Returns:
        int64[k] row, and int64[k] place in it, from 1 to width - 1: every document's beginning but one at place 0.
    """
    low = np.searchsorted(bounds, starts, side="right")
    high = np.searchsorted(bounds, starts + width, side="left")
    counts = np.maximum(high - low, 0)
    row = np.repeat(np.arange(len(starts)), counts)
    before = np.cumsum(counts) - counts
    at = bounds[np.arange(len(row)) - before[row] + low[row]] - starts[row]
    return row, np.asarray(at, np.int64)


def resets_from_eos(tokens: npt.NDArray[Any], eos: int) -> tuple[Int64s, Int64s]:
    """As `resets_from_bounds`, from the tokens [n, width] themselves: a document begins behind each `eos`."""
    row, at = np.nonzero(tokens[:, :-1] == eos)
    return row.astype(np.int64), at.astype(np.int64) + 1


def positions_from(resets: tuple[Int64s, Int64s], shape: tuple[int, int]) -> Int64s:
    """int64[n, width]: each token's place in its document, counted from the window's beginning for the first one."""
    count, width = shape
    row, at = resets
    begins = np.unique(np.concatenate((np.arange(count, dtype=np.int64) * width, row * width + at)))
    out: Int64s = np.ones(shape, np.int64)  # not a view of something flat, so that collating can take it as it is
    flat = out.reshape(-1)
    flat[begins[:1]] = 0
    flat[begins[1:]] = 1 - np.diff(begins)  # so that the running sum is 0 there
    np.cumsum(flat, out=flat)
    return out


def boundaries_from(resets: tuple[Int64s, Int64s], shape: tuple[int, int]) -> list[Int64s]:
    """For each window int64[documents + 1]: 0, where its further documents begin, and its width."""
    row, at = resets
    cuts = np.searchsorted(row, np.arange(shape[0] + 1))
    ends = np.zeros(1, np.int64), np.full(1, shape[1], np.int64)
    # An empty document begins where the next one does.
    return [
        np.unique(np.concatenate((ends[0], at[low:high], ends[1])))
        for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
    ]
