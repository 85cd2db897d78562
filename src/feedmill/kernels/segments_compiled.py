"""Counts and places of word segments (UAX 29), blank ones too, over the search in `wordbreak_compiled`.

The oracle is `feedmill.kernels.text.wordbreak.segments`; a segment is blank where ``str.strip`` leaves nothing of it.
"""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import Array, kernel
from feedmill.kernels.text.wordbreak import CLASS_BITS, CR, LF, SPACE
from feedmill.kernels.text.wordbreak_compiled import kind_at, words


@kernel
def _blanks(data, low, high, index, pages):  # type: ignore[no-untyped-def]
    """Return how many segments there are in a range of white space: runs of spaces, CR LF, and each other character."""
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
    """int64[2, ranges]: segments that are not blank, and all segments, of each range of UTF-8.

    Args:
        data: uint8. lows, highs: int64[ranges], in bytes.
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
            # Four separators are white space to Python and not to Unicode.
            filled -= ends[i] == begins[i] + 1 and 0x1C <= data[begins[i]] <= 0x1F
            if begins[i] > at:
                total += _blanks(data, at, begins[i], index, pages)
            at = ends[i]
        counts[0, k] = filled
        counts[1, k] = total + _blanks(data, at, highs[k], index, pages)
