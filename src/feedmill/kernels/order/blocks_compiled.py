"""The compiled loop of `feedmill.kernels.order.blocks`."""

from __future__ import annotations

from feedmill.kernels.native import njit


@njit()
def fill(bounds, block, out):  # type: ignore[no-untyped-def]
    """Fill `out` like `blocks._plain`, and return the number of blocks."""
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
