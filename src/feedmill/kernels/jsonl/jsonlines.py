"""Check quickly which lines of a block are certainly valid JSON.

A line is plain if it is one JSON value by RFC 8259 in valid UTF-8, nests at most 64 deep, and has no number of more
than 300 characters. Python's ``json.loads`` accepts every plain line; all other lines must be
checked with it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feedmill.kernels.jsonl.lines import newlines
from feedmill.kernels.machine import load64, trailing
from feedmill.kernels.native import kernel

Int64s = npt.NDArray[np.int64]
MOST_DEPTH, MOST_NUMBER = 64, 300
"""Maximum nesting depth of a plain line, and maximum characters of its numbers."""


def plain_lines(buffer: npt.NDArray[np.uint8]) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return the lines of a block and whether each is plain.

    Args:
        buffer: uint8[size], whole lines; the last may lack its newline.

    Returns:
        int64[n], the end of each line without its newline, and bool[n].
    """
    ends = newlines(buffer)
    if len(buffer) and buffer[-1] != 10:
        ends = np.append(ends, len(buffer))
    good = np.empty(len(ends), np.bool_)
    _judge(buffer, ends, good)
    return ends, good


# --- compiled ---------------------------------------------------------------------------------------------------------

# States: the expected next token.
VALUE, FIRST_VALUE, FIRST_KEY, KEY, COLON, AFTER = range(6)

ONES, HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
SPACES, QUOTES, BACKSLASHES = ONES * np.uint64(0x20), ONES * np.uint64(0x22), ONES * np.uint64(0x5C)


@kernel
def hexadecimal(byte):  # type: ignore[no-untyped-def]
    """Return whether a byte is a hexadecimal digit."""
    return 48 <= byte <= 57 or 97 <= byte | 32 <= 102


@kernel
def _special(data, at, end):  # type: ignore[no-untyped-def]
    """Return the end of an escape or a non-ASCII character at `at`; -1 if it is invalid."""
    byte = data[at]
    if byte == 0x5C:
        if at + 1 >= end:
            return -1
        byte = data[at + 1]
        if byte in (0x22, 0x5C, 0x2F, 0x62, 0x66, 0x6E, 0x72, 0x74):
            return at + 2
        if byte != 0x75 or at + 6 > end:
            return -1
        for i in range(2, 6):
            if not hexadecimal(data[at + i]):
                return -1
        return at + 6
    return behind_character(data, at, end)


@kernel
def _marks(word):  # type: ignore[no-untyped-def]
    """Return a word whose lowest set bit marks the first control, quote, backslash or non-ASCII byte among 8 bytes.

    A borrow can only begin at such a byte, so no earlier byte is marked.
    """
    quote, slash = word ^ QUOTES, word ^ BACKSLASHES
    return (word | (word - SPACES) | (quote - ONES) | (slash - ONES)) & HIGHS


@kernel
def behind_string(data, at, end):  # type: ignore[no-untyped-def]
    """Return the end of the string whose quote is before `at`; -1 if it is invalid."""
    while at < end:
        if at + 8 <= end:
            found = _marks(load64(data, at))
            if found == np.uint64(0):
                at += 8
                continue
            at += np.int64(trailing(found)) >> 3
        byte = data[at]
        if byte == 0x22:
            return at + 1
        if byte < 0x20:
            return -1
        if byte == 0x5C or byte >= 0x80:
            at = _special(data, at, end)
            if at < 0:
                return -1
        else:
            at += 1
    return -1


@kernel
def _digits(data, at, end):  # type: ignore[no-untyped-def]
    """Return the end of one or more digits; -1 if there are none."""
    begin = at
    while at < end and 48 <= data[at] <= 57:
        at += 1
    return at if at > begin else -1


@kernel
def _number(data, at, end):  # type: ignore[no-untyped-def]
    begin = at
    if data[at] == 0x2D:
        at += 1
    if at < end and data[at] == 48:
        at += 1
    else:
        at = _digits(data, at, end)
    if at >= 0 and at < end and data[at] == 0x2E:
        at = _digits(data, at + 1, end)
    if at >= 0 and at < end and data[at] | 32 == 0x65:
        at += 1
        if at < end and (data[at] == 0x2B or data[at] == 0x2D):
            at += 1
        at = _digits(data, at, end)
    return at if at - begin <= MOST_NUMBER else -1


@kernel
def _word(data, at, end):  # type: ignore[no-untyped-def]
    """Return the end of true, false or null; -1 for anything else."""
    if end - at >= 4:
        a, b, c, d = data[at], data[at + 1], data[at + 2], data[at + 3]
        if (a == 0x74 and b == 0x72 and c == 0x75 and d == 0x65) or (
            a == 0x6E and b == 0x75 and c == 0x6C and d == 0x6C
        ):
            return at + 4
        if a == 0x66 and b == 0x61 and c == 0x6C and d == 0x73 and end - at >= 5 and data[at + 4] == 0x65:
            return at + 5
    return -1


@kernel
def behind_value(data, at, end):  # type: ignore[no-untyped-def]
    """Return the end of the value at `at`, within a line; -1 if it is not plain."""
    objects = np.uint64(0)  # bit d: the open container at depth d + 1 is an object
    depth = 0
    expect = VALUE
    while at < end:
        byte = data[at]
        if byte == 0x20 or byte == 0x09 or byte == 0x0D:
            at += 1
        elif expect == AFTER:
            inside = (objects >> np.uint64(depth - 1)) & np.uint64(1)
            if byte == 0x2C:
                expect = KEY if inside else VALUE
            elif (byte == 0x7D and inside) or (byte == 0x5D and not inside):
                depth -= 1
            else:
                return -1
            at += 1
        elif expect == COLON:
            if byte != 0x3A:
                return -1
            expect = VALUE
            at += 1
        elif expect in (KEY, FIRST_KEY):
            if byte == 0x22:
                at = behind_string(data, at + 1, end)
                if at < 0:
                    return -1
                expect = COLON
            elif byte == 0x7D and expect == FIRST_KEY:
                depth -= 1
                expect = AFTER
                at += 1
            else:
                return -1
        elif byte == 0x7B or byte == 0x5B:
            if depth >= MOST_DEPTH:
                return -1
            bit = np.uint64(1) << np.uint64(depth)
            objects = objects | bit if byte == 0x7B else objects & ~bit
            expect = FIRST_KEY if byte == 0x7B else FIRST_VALUE
            depth += 1
            at += 1
        elif byte == 0x5D and expect == FIRST_VALUE:
            depth -= 1
            expect = AFTER
            at += 1
        else:
            if byte == 0x22:
                at = behind_string(data, at + 1, end)
            elif byte == 0x2D or 48 <= byte <= 57:
                at = _number(data, at, end)
            else:
                at = _word(data, at, end)
            if at < 0:
                return -1
            expect = AFTER
        if expect == AFTER and depth == 0:
            return at
    return -1


@kernel
def behind_blanks(data, at, end):  # type: ignore[no-untyped-def]
    """Return the end of the white space at `at`, within a line."""
    while at < end and (data[at] == 0x20 or data[at] == 0x09 or data[at] == 0x0D):
        at += 1
    return at


@kernel
def has_escape(data, low, high):  # type: ignore[no-untyped-def]
    """Return whether a backslash is among these bytes."""
    for i in range(low, high):
        if data[i] == 0x5C:
            return True
    return False


@kernel("u8[:], i64[:], out b[:]")
def _judge(data, ends, good):  # type: ignore[no-untyped-def]
    """Write to `good` whether each line is plain."""
    begin = 0
    for i in range(len(ends)):
        at = behind_value(data, begin, ends[i])
        good[i] = at >= 0 and behind_blanks(data, at, ends[i]) == ends[i]
        begin = ends[i] + 1


@kernel
def behind_character(data, at, end):  # type: ignore[no-untyped-def]
    """Return the end of the non-ASCII character at byte `at` of uint8[>= end]; -1 if it is not valid UTF-8."""
    byte = data[at]
    if byte < 0xC2 or byte > 0xF4:
        return -1
    more = 1 if byte < 0xE0 else (2 if byte < 0xF0 else 3)
    if at + more >= end:
        return -1
    for i in range(1, more + 1):
        if data[at + i] & 0xC0 != 0x80:
            return -1
    second = data[at + 1]
    if (byte == 0xE0 and second < 0xA0) or (byte == 0xED and second > 0x9F):
        return -1
    if (byte == 0xF0 and second < 0x90) or (byte == 0xF4 and second > 0x8F):
        return -1
    return at + more + 1
