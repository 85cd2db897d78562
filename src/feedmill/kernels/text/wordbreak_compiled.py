"""The compiled form of `feedmill.kernels.text.wordbreak`, over UTF-8 bytes."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import Array, kernel
from feedmill.kernels.text.wordbreak import (
    BLANK,
    CLASS_BITS,
    CR,
    DOUBLE_QUOTE,
    EXTEND,
    EXTEND_NUM_LET,
    FLAG,
    FORMAT,
    HEBREW,
    KATAKANA,
    LETTER,
    LF,
    MID_LETTER,
    MID_NUM,
    MID_NUM_LET,
    NEWLINE,
    NUMERIC,
    OTHER,
    PICTOGRAPHIC,
    QUOTE,
    SPACE,
    ZWJ,
)


@kernel
def kind_at(data, at, index, pages):  # type: ignore[no-untyped-def]
    """Return the class of the character at byte `at` and its length in bytes. The data must be valid UTF-8."""
    first = np.int64(data[at])
    if first < 0x80:
        return np.int64(pages[(np.int64(index[0]) << 8) + first]), 1
    if first < 0xE0:
        code, size = ((first & 31) << 6) | (data[at + 1] & 63), 2
    elif first < 0xF0:
        code, size = ((first & 15) << 12) | (np.int64(data[at + 1] & 63) << 6) | (data[at + 2] & 63), 3
    else:
        code = ((first & 7) << 18) | (np.int64(data[at + 1] & 63) << 12) | (np.int64(data[at + 2] & 63) << 6)
        code, size = code | (data[at + 3] & 63), 4
    return np.int64(pages[(np.int64(index[code >> 8]) << 8) + (code & 255)]), size


@kernel
def _ahead(data, at, high, index, pages):  # type: ignore[no-untyped-def]
    """Return the class of the next character that is not ignored."""
    while at < high:
        kind, size = kind_at(data, at, index, pages)
        kind &= CLASS_BITS
        if kind != EXTEND and kind != FORMAT and kind != ZWJ:
            return kind
        at += size
    return OTHER


@kernel
def _joined(earlier, before, after, flags, data, at, high, index, pages):  # type: ignore[no-untyped-def]
    before_letter = before == LETTER or before == HEBREW
    after_letter = after == LETTER or after == HEBREW
    if (before_letter or before == NUMERIC) and (after_letter or after == NUMERIC):
        return True
    middle = after == MID_LETTER or after == MID_NUM_LET or after == QUOTE
    if before_letter and middle:
        ahead = _ahead(data, at, high, index, pages)
        if ahead == LETTER or ahead == HEBREW or (before == HEBREW and after == QUOTE):
            return True
    middle = before == MID_LETTER or before == MID_NUM_LET or before == QUOTE
    if after_letter and middle and (earlier == LETTER or earlier == HEBREW):
        return True
    if before == HEBREW and after == DOUBLE_QUOTE and _ahead(data, at, high, index, pages) == HEBREW:
        return True
    if earlier == HEBREW and before == DOUBLE_QUOTE and after == HEBREW:
        return True
    middle = after == MID_NUM or after == MID_NUM_LET or after == QUOTE
    if before == NUMERIC and middle and _ahead(data, at, high, index, pages) == NUMERIC:
        return True
    middle = before == MID_NUM or before == MID_NUM_LET or before == QUOTE
    if earlier == NUMERIC and middle and after == NUMERIC:
        return True
    if before == KATAKANA and after == KATAKANA:
        return True
    joiner = before_letter or before == NUMERIC or before == KATAKANA
    if after == EXTEND_NUM_LET and (joiner or before == EXTEND_NUM_LET):
        return True
    if before == EXTEND_NUM_LET and (after_letter or after == NUMERIC or after == KATAKANA):
        return True
    return before == FLAG and after == FLAG and flags % 2 == 1


@kernel
def _is_letter(byte):  # type: ignore[no-untyped-def]
    return 97 <= (byte | 32) <= 122


@kernel
def words(data, low, high, index, pages, lows, highs, count):  # type: ignore[no-untyped-def]
    """Append the segments of ``data[low:high]`` that are not blank, and return the new number of segments.

    Args:
        data: uint8, UTF-8.
        index, pages: see `feedmill.kernels.text.wordbreak.tables`.
        lows, highs: int64, filled from index `count` on with byte offsets.
    """
    if low >= high:
        return count
    raw, size = kind_at(data, low, index, pages)
    begin, at = low, low + size
    blank = raw & BLANK != 0
    kind = raw & CLASS_BITS
    last, before, earlier = kind, kind, OTHER  # last counts ignored characters; before and earlier skip them
    flags = 1 if kind == FLAG else 0
    while at < high:
        byte = data[at]
        if before == LETTER and last == LETTER and _is_letter(byte):
            at += 1
            while at < high and _is_letter(data[at]):
                at += 1
            earlier = LETTER
            continue
        if byte == 32 and before == LETTER and last == LETTER and at + 1 < high and _is_letter(data[at + 1]):
            # Fast path: one space between ASCII letters is a blank segment.
            if not blank:
                lows[count] = begin
                highs[count] = at
                count += 1
            begin, blank = at + 1, False
            earlier, flags = SPACE, 0
            at += 2
            continue
        raw, size = kind_at(data, at, index, pages)
        kind = raw & CLASS_BITS
        ignored = kind == EXTEND or kind == FORMAT or kind == ZWJ
        hard = last == CR or last == LF or last == NEWLINE
        if last == CR and kind == LF:
            joined = True
        elif hard or kind == CR or kind == LF or kind == NEWLINE:
            joined = False
        elif ignored or (last == ZWJ and raw & PICTOGRAPHIC != 0) or (last == SPACE and kind == SPACE):
            joined = True
        else:
            joined = _joined(earlier, before, kind, flags, data, at + size, high, index, pages)
        if not joined:
            if not blank:
                lows[count] = begin
                highs[count] = at
                count += 1
            begin, blank = at, True
        blank = blank and raw & BLANK != 0
        if not ignored or hard:
            earlier, before = before, kind
            flags = flags + 1 if kind == FLAG else 0
        last = kind
        at += size
    if not blank:
        lows[count] = begin
        highs[count] = high
        count += 1
    return count


def count_words(data: Array, lows: Array, highs: Array, index: Array, pages: Array, least: int) -> Array:
    """Return whether each text ``data[lows[i]:highs[i]]`` has at least `least` words, bool[n]."""
    enough = np.empty(len(lows), np.bool_)
    begins, ends = np.empty((2, int((highs - lows).max(initial=0)) + 1), np.int64)
    _count_words(data, lows, highs, index, pages, least, begins, ends, enough)
    return enough


@kernel
def _count_words(data, lows, highs, index, pages, least, begins, ends, enough):  # type: ignore[no-untyped-def]
    for i in range(len(lows)):
        enough[i] = words(data, lows[i], highs[i], index, pages, begins, ends, 0) >= least
