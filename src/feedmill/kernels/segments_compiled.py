"""Counts of word segments (UAX 29), including blank ones, built on `wordbreak_compiled`.

The test oracle is `feedmill.kernels.text.wordbreak.segments`. A segment is blank if ``str.strip`` leaves nothing of it.
"""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import Array, kernel
from feedmill.kernels.text.wordbreak import CLASS_BITS, CR, LF, SPACE
from feedmill.kernels.text.wordbreak_compiled import kind_at, words


@kernel
def _blanks(data, low, high, index, pages):  # type: ignore[no-untyped-def]
    """Count the segments of a range of white space: runs of spaces, CR LF, and each other character."""
    count = 0
    before = -1
    at = low
    while at < high:
        kind, size = kind_at(data, at, index, pages)
        kind &= CLASS_BITS
        joined = (before == SPACE and kind == SPACE) or (before == CR and kind == LF)
        count += not joined
        before = kind
        at += size
    return count


def count_segments(data: Array, lows: Array, highs: Array, index: Array, pages: Array) -> Array:
    """Count the segments of each range that are not blank, and all its segments, int64[2, ranges].

    Args:
        data: uint8, UTF-8.
        lows, highs: int64[ranges], byte offsets.
        index, pages: see `feedmill.kernels.text.wordbreak.tables`.
    """
    begins, ends = np.empty((2, int((highs - lows).max(initial=0)) + 1), np.int64)
    counts = np.empty((2, len(lows)), np.int64)
    _count_segments(data, lows, highs, index, pages, begins, ends, counts)
    return counts


@kernel
def _count_segments(data, lows, highs, index, pages, begins, ends, counts):  # type: ignore[no-untyped-def]
    for k in range(len(lows)):
        found = words(data, lows[k], highs[k], index, pages, begins, ends, 0)
        filled = total = found
        at = lows[k]
        for i in range(found):
            # Four separators (0x1C to 0x1F) are white space in Python but not in Unicode.
            filled -= ends[i] == begins[i] + 1 and 0x1C <= data[begins[i]] <= 0x1F
            if begins[i] > at:
                total += _blanks(data, at, begins[i], index, pages)
            at = ends[i]
        counts[0, k] = filled
        counts[1, k] = total + _blanks(data, at, highs[k], index, pages)
