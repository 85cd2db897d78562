"""The compiled forms of `feedmill.kernels.text`, over the code points of a batch of texts.

In all of them ``codes`` is uint32[characters], ``offsets`` int64[texts + 1], ``table`` that of
`feedmill.kernels.characters`.
"""

from __future__ import annotations

import numba
import numpy as np

_SPACE, _WORD, _BLANK = 1, 4, 8
_NEWLINE = 10


@numba.njit(cache=True, nogil=True)
def paragraphs(codes, offsets, table):  # type: ignore[no-untyped-def]
    """int64[4, paragraphs]: text, start and end in the whole run of codes, and 1 where it is blank."""
    n = len(offsets) - 1
    count = 0
    for k in range(n):
        for i in range(offsets[k], offsets[k + 1]):
            count += codes[i] == _NEWLINE
    found = np.empty((4, count + n), np.int64)
    m = 0
    for k in range(n):
        start, end, blank = offsets[k], offsets[k + 1], 1
        for i in range(start, end):
            code = codes[i]
            if blank and not table[code] & _SPACE:
                blank = 0
            if code == _NEWLINE or i + 1 == end:
                found[0, m], found[1, m], found[2, m], found[3, m] = k, start, i + 1, blank
                m += 1
                start, blank = i + 1, 1
    return found[:, :m]


@numba.njit(cache=True, nogil=True)
def words(codes, offsets, table):  # type: ignore[no-untyped-def]
    """Words between white space: start and end of each in the whole run of codes, int64[2, words], and where the words
    of each text begin, int64[texts + 1]."""
    n = len(offsets) - 1
    first = np.zeros(n + 1, np.int64)
    count = 0
    for k in range(n):
        inside = False
        for i in range(offsets[k], offsets[k + 1]):
            space = table[codes[i]] & _SPACE
            count += (not space) and not inside
            inside = not space
        first[k + 1] = count
    found = np.empty((2, count), np.int64)
    m = 0
    for k in range(n):
        start = -1
        for i in range(offsets[k], offsets[k + 1]):
            if table[codes[i]] & _SPACE:
                if start >= 0:
                    found[0, m], found[1, m] = start, i
                    m += 1
                    start = -1
            elif start < 0:
                start = i
        if start >= 0:
            found[0, m], found[1, m] = start, offsets[k + 1]
            m += 1
    return found, first


@numba.njit(cache=True, nogil=True)
def count_pieces(codes, starts, ends, table):  # type: ignore[no-untyped-def]
    """int64[ranges]: runs of word characters, and of others that are not white space, in each range."""
    counts = np.zeros(len(starts), np.int64)
    for k in range(len(starts)):
        before = 0  # 0 white space, 1 word, 2 other
        count = 0
        for i in range(starts[k], ends[k]):
            bits = table[codes[i]]
            now = 1 if bits & _WORD else (0 if bits & _BLANK else 2)
            count += now != before and now != 0
            before = now
        counts[k] = count
    return counts


@numba.njit(cache=True, nogil=True)
def stripped_lengths(codes, offsets, table):  # type: ignore[no-untyped-def]
    """int64[texts]: characters without the white space at both ends."""
    n = len(offsets) - 1
    lengths = np.zeros(n, np.int64)
    for k in range(n):
        low, high = offsets[k], offsets[k + 1]
        while low < high and table[codes[low]] & _SPACE:
            low += 1
        while low < high and table[codes[high - 1]] & _SPACE:
            high -= 1
        lengths[k] = high - low
    return lengths


@numba.njit(cache=True, nogil=True)
def byte_lengths(codes, offsets):  # type: ignore[no-untyped-def]
    """int64[texts]: bytes of each text as UTF-8."""
    n = len(offsets) - 1
    lengths = np.zeros(n, np.int64)
    for k in range(n):
        size = 0
        for i in range(offsets[k], offsets[k + 1]):
            code = codes[i]
            size += 1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)
        lengths[k] = size
    return lengths
