"""Paragraphs, words and lengths of a batch of texts, in code points.

`codes`, uint32[characters], are the concatenated UTF-32 code points of all texts, `offsets`, int64[texts + 1], where
each text begins, and `table` is `feedmill.kernels.text.characters.table()`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.native import Array, kernel
from feedmill.kernels.text.characters import BLANK, SPACE, WORD

Codes = npt.NDArray[np.uint32]
Positions = npt.NDArray[np.int64]
_NEWLINE = 10


def encode(texts: list[str]) -> tuple[Codes, Positions]:
    """Return the concatenated code points, uint32[characters], and the offset of each text, int64[len(texts) + 1]."""
    offsets = bounds_of([len(text) for text in texts])
    return np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4"), offsets


def paragraphs(codes: Array, offsets: Array, table: Array) -> Array:
    """Return int64[4, paragraphs]: text, start and end in `codes`, and 1 if blank, else 0.

    A paragraph includes its newline; text after the last newline is a paragraph too.
    """
    found = np.empty((4, int(np.count_nonzero(codes == _NEWLINE)) + len(offsets) - 1), np.int64)
    return found[:, : _paragraphs(codes, offsets, table, found)]


@kernel("u32[:], i64[:], u8[:], out i64[:,:] -> i64")
def _paragraphs(codes, offsets, table, found):  # type: ignore[no-untyped-def]
    m = 0
    for k in range(len(offsets) - 1):
        start, end, blank = offsets[k], offsets[k + 1], 1
        for i in range(start, end):
            code = codes[i]
            if blank and not table[code] & SPACE:
                blank = 0
            if code == _NEWLINE or i + 1 == end:
                found[0, m], found[1, m], found[2, m], found[3, m] = k, start, i + 1, blank
                m += 1
                start, blank = i + 1, 1
    return m


def words(codes: Array, offsets: Array, table: Array) -> tuple[Array, Array]:
    """Return the words between white space.

    Returns:
        The start and end of each word in `codes`, int64[2, words], and the first word of each text, int64[texts + 1].
    """
    first = np.empty(len(offsets), np.int64)
    found = np.empty((2, _count_words(codes, offsets, table, first)), np.int64)
    _words(codes, offsets, table, found)
    return found, first


@kernel("u32[:], i64[:], u8[:], out i64[:] -> i64")
def _count_words(codes, offsets, table, first):  # type: ignore[no-untyped-def]
    count = 0
    first[0] = 0
    for k in range(len(offsets) - 1):
        inside = False
        for i in range(offsets[k], offsets[k + 1]):
            space = table[codes[i]] & SPACE
            count += (not space) and not inside
            inside = not space
        first[k + 1] = count
    return count


@kernel("u32[:], i64[:], u8[:], out i64[:,:]")
def _words(codes, offsets, table, found):  # type: ignore[no-untyped-def]
    m = 0
    for k in range(len(offsets) - 1):
        start = -1
        for i in range(offsets[k], offsets[k + 1]):
            if table[codes[i]] & SPACE:
                if start >= 0:
                    found[0, m], found[1, m] = start, i
                    m += 1
                    start = -1
            elif start < 0:
                start = i
        if start >= 0:
            found[0, m], found[1, m] = start, offsets[k + 1]
            m += 1


def count_pieces(codes: Array, starts: Array, ends: Array, table: Array) -> Array:
    """Count the runs of word characters and of other non-space characters in each range, int64[ranges]."""
    counts = np.empty(len(starts), np.int64)
    _count_pieces(codes, starts, ends, table, counts)
    return counts


@kernel("u32[:], i64[:], i64[:], u8[:], out i64[:]")
def _count_pieces(codes, starts, ends, table, counts):  # type: ignore[no-untyped-def]
    for k in range(len(starts)):
        before = 0  # 0 white space, 1 word, 2 other
        count = 0
        for i in range(starts[k], ends[k]):
            bits = table[codes[i]]
            now = 1 if bits & WORD else (0 if bits & BLANK else 2)
            count += now != before and now != 0
            before = now
        counts[k] = count


def stripped_lengths(codes: Array, offsets: Array, table: Array) -> Array:
    """Return the number of characters of each stripped text, int64[texts]."""
    lengths = np.empty(len(offsets) - 1, np.int64)
    _stripped_lengths(codes, offsets, table, lengths)
    return lengths


@kernel("u32[:], i64[:], u8[:], out i64[:]")
def _stripped_lengths(codes, offsets, table, lengths):  # type: ignore[no-untyped-def]
    for k in range(len(offsets) - 1):
        low, high = offsets[k], offsets[k + 1]
        while low < high and table[codes[low]] & SPACE:
            low += 1
        while low < high and table[codes[high - 1]] & SPACE:
            high -= 1
        lengths[k] = high - low


def byte_lengths(codes: Array, offsets: Array) -> Array:
    """Return the number of UTF-8 bytes of each text, int64[texts]."""
    lengths = np.empty(len(offsets) - 1, np.int64)
    _byte_lengths(codes, offsets, lengths)
    return lengths


@kernel("u32[:], i64[:], out i64[:]")
def _byte_lengths(codes, offsets, lengths):  # type: ignore[no-untyped-def]
    for k in range(len(offsets) - 1):
        size = 0
        for i in range(offsets[k], offsets[k + 1]):
            code = codes[i]
            size += 1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)
        lengths[k] = size
