"""Compute the starts of blocks of whole documents: Megatron-style packing as Modalities implements it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import kernel

Int64s = npt.NDArray[np.int64]


def greedy_blocks(bounds: Int64s, block: int) -> Int64s:
    """Return the first token of each block.

    Documents are added to a block until it has at least `block` tokens; it is then truncated to `block` tokens. The
    next block begins with the document that did not fit, so every block begins with a document. A document that alone
    is too long gives one block. An incomplete block at the end is dropped.

    Args:
        bounds: int64[documents + 1], the start of each document, and the end of the last one.
        block: tokens per block, at least 1.

    >>> greedy_blocks(np.array([0, 3, 6, 10, 30, 32]), 8).tolist()
    [0, 6, 10]
    """
    out = np.empty(len(bounds), np.int64)
    return out[: _fill(bounds, block, out)].copy()


@kernel("i64[:], i64, out i64[:] -> i64")
def _fill(bounds, block, out):  # type: ignore[no-untyped-def]
    """Fill `out`, and return the number of blocks."""
    count = 0
    first = 0
    for document in range(len(bounds) - 1):
        tokens = bounds[document + 1] - bounds[first]
        if tokens < block:
            continue
        out[count] = bounds[first]
        count += 1
        alone = bounds[document + 1] - bounds[document]
        if tokens > block and document > first and alone < block:
            first = document
            continue
        if tokens > block and document > first:
            out[count] = bounds[document]
            count += 1
        first = document + 1
    return count
