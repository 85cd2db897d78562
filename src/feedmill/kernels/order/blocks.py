"""Where blocks of whole documents begin: Megatron-style packing as Modalities means it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

COMPILED_FROM = 200_000
"""Documents from which loading the compiled kernel pays for itself."""


def greedy_blocks(bounds: Int64s, block: int, *, compiled: bool | None = None) -> Int64s:
    """Return the first token of each block.

    Documents are added to a block while they are fewer than `block` tokens together; with the one that reaches or
    exceeds that the block is full, and is cut to `block` tokens. The next one begins with the document that did not
    fit, so that no block begins inside of a document; one that alone is too long gives one block. What is left at the
    end gives none.

    Args:
        bounds: int64[documents + 1], where documents begin, and the end of the last one.
        block: tokens in a block, 1 or more.
        compiled: use the numba kernel; by default where there is enough to do.

    >>> greedy_blocks(np.array([0, 3, 6, 10, 30, 32]), 8).tolist()
    [0, 6, 10]
    """
    if compiled is None:
        compiled = len(bounds) >= COMPILED_FROM
    if compiled:
        from feedmill.kernels.order.blocks_compiled import fill

        out = np.empty(len(bounds), np.int64)
        return out[: fill(bounds, block, out)].copy()
    return np.asarray(_plain(bounds.tolist(), block), np.int64)


def _plain(bounds: list[int], block: int) -> list[int]:
    """Return the oracle of the compiled kernel."""
    starts, first = [], 0
    for document in range(len(bounds) - 1):
        tokens = bounds[document + 1] - bounds[first]
        if tokens < block:
            continue
        starts.append(bounds[first])
        alone = bounds[document + 1] - bounds[document]
        if tokens > block and document > first and alone < block:
            first = document
            continue
        if tokens > block and document > first:
            starts.append(bounds[document])
        first = document + 1
    return starts
