"""The starts of blocks of documents in plain Python, see `feedmill.kernels.order.blocks`."""

from __future__ import annotations


def greedy_blocks(bounds: list[int], block: int) -> list[int]:
    """Return the first token of each block."""
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
