"""The compiled loop of `feedmill.kernels.crc`."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def crc_pairs(keys, key_starts, owners, parts, part_starts, table):  # type: ignore[no-untyped-def]
    """uint32[m]; texts are uint8 with a NUL after each, `starts` int64 with one entry more than there are texts."""
    ones = np.uint32(0xFFFFFFFF)
    begun = np.empty(len(key_starts) - 1, np.uint32)
    for i in range(len(begun)):
        state = ones
        for at in range(key_starts[i], key_starts[i + 1] - 1):
            state = table[(state ^ keys[at]) & np.uint32(255)] ^ (state >> np.uint32(8))
        begun[i] = table[(state ^ np.uint32(46)) & np.uint32(255)] ^ (state >> np.uint32(8))
    out = np.empty(len(owners), np.uint32)
    for i in range(len(owners)):
        state = begun[owners[i]]
        for at in range(part_starts[i], part_starts[i + 1] - 1):
            state = table[(state ^ parts[at]) & np.uint32(255)] ^ (state >> np.uint32(8))
        out[i] = state ^ ones
    return out
