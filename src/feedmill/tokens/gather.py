"""Read units of a corpus in a given order, in batches of bounded size.

Within a batch, documents are read in stored order, and adjacent ones at once, so that a merge copies and a shuffle
reads forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.formats.tokens.base import Int64s, Tokens
from feedmill.tokens.corpus import Corpus
from feedmill.tokens.mapped import Mapped, Reads
from feedmill.tokens.orders import Numbers
from feedmill.tokens.units import Spans, Units

BATCH = 2 << 20
"""Bytes of tokens gathered at once; data that stays in the processor's cache is written fastest."""
_BLOCK = 1 << 16
_GAP = 1 << 20
"""Bytes between ranges of a remote file up to which they are read as one."""

Copy = Callable[[Iterable[tuple[int, int, int, int, int]], npt.NDArray[Any]], None]


def reads_of(corpus: Corpus, units: Units, numbers: Numbers) -> dict[int, Reads]:
    """Return what units read of each remote file, by the number of the file: 24 bytes of memory for each span."""
    if corpus.is_local:
        return {}
    blocks = [units.spans(np.asarray(numbers[low : low + _BLOCK], np.int64)) for low in range(0, len(numbers), _BLOCK)]
    if not blocks:
        return {}
    shard, start, length = (np.concatenate(columns) for columns in zip(*blocks, strict=True))
    order = np.lexsort((start, shard))
    shard, start, length = shard[order], start[order], length[order]
    numbers_of, firsts = np.unique(shard, return_index=True)
    found = {}
    for number, low, high in zip(numbers_of.tolist(), firsts, [*firsts[1:], len(shard)], strict=True):
        # An empty document may come after one that begins at the same token.
        begins, ends = start[low:high], np.maximum.accumulate(start[low:high] + length[low:high])
        gap = _GAP // corpus.shards[number][1].dtype.itemsize
        apart = np.flatnonzero(begins[1:] - ends[:-1] > gap) + 1
        found[number] = Reads(
            begins[np.concatenate(([0], apart))], ends[np.append(apart - 1, -1)], int(length[low:high].sum())
        )
    return found


def gathered(
    corpus: Corpus, mapped: Mapped, units: Units, numbers: Numbers, loss: bool
) -> Iterator[tuple[Tokens, Int64s, npt.NDArray[np.bool_] | None]]:
    """Yield the tokens of units in batches: concatenated ids, tokens per document, and the mask if `loss`."""
    for low in range(0, len(numbers), _BLOCK):
        block = np.asarray(numbers[low : low + _BLOCK], np.int64)
        spans = units.spans(block)
        ends = np.cumsum(spans.length)
        first = 0
        while first < len(ends):
            base = int(ends[first - 1]) if first else 0
            limit = base + BATCH // corpus.dtype.itemsize
            last = max(int(np.searchsorted(ends, limit, side="right")), first + 1)
            batch = Spans(*(column[first:last] for column in spans))
            yield (
                _gather(mapped.tokens, mapped.copy, batch, corpus.dtype),
                batch.length,
                _gather(mapped.loss, None, batch, np.dtype(np.bool_)) if loss else None,
            )
            mapped.was_read((int(ends[last - 1]) - base) * corpus.dtype.itemsize)
            first = last


def _gather(
    file: Callable[[int], npt.NDArray[Any]], copy: Copy | None, spans: Spans, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return the concatenated tokens of spans. Adjacent spans are copied at once; one range is not copied."""
    shard, start, length = spans
    breaks = np.flatnonzero((shard[1:] != shard[:-1]) | (start[1:] != start[:-1] + length[:-1])) + 1
    first = np.concatenate(([0], breaks))
    to = np.cumsum(length) - length  # position of each span in the output
    total = int(length.sum())
    begins = start[first]
    sizes = np.add.reduceat(length, first)
    if len(first) == 1:
        piece = file(int(shard[0]))[int(begins[0]) : int(begins[0]) + total]
        return piece.astype(dtype, copy=False)
    out = np.empty(total, dtype)
    order = np.lexsort((begins, shard[first]))
    columns = (shard[first], begins, begins + sizes, to[first], to[first] + sizes)
    pieces = zip(*(column[order].tolist() for column in columns), strict=True)
    if copy is not None:
        copy(pieces, out)
        return out
    for number, low, high, at, end in pieces:
        out[at:end] = file(number)[low:high]
    return out
