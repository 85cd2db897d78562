"""Sort UTF-8 texts byte by byte (SQLite's BINARY collation); the texts are NUL-terminated in one buffer.

The reference is Python's ``sorted`` over the encoded texts. `sort_texts` is a radix sort from the most significant
end, eight bytes at a time ("Engineering Radix Sort", McIlroy, Bostic and McIlroy, 1993, with eight-byte digits that
are themselves sorted by a least-significant-byte radix sort): its time is linear in the bytes that distinguish the
texts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import kernel

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_SMALL = 48
_GAPS = (1 << 20, 400_000, 150_000, 57_000, 21_500, 8_100, 3_050, 1_150, 436, 132, 57, 23, 10, 4, 1)


@kernel("u8[:], i64, i64 -> i64")
def compare(text, a, b):  # type: ignore[no-untyped-def]
    """Return a number below, equal to or above 0 if the text at `a` is before, equal to or after the text at `b`."""
    while text[a] == text[b] and text[a] != 0:
        a += 1
        b += 1
    return np.int64(text[a]) - np.int64(text[b])


@kernel("u8[:], i64[:] -> i64")
def _strictly_ascending(text, starts):  # type: ignore[no-untyped-def]
    i = 0
    while i < len(starts) - 2 and compare(text, starts[i], starts[i + 1]) < 0:
        i += 1
    return i >= len(starts) - 2


@kernel
def _digit(text, at):  # type: ignore[no-untyped-def]
    """Return the next eight bytes as a big-endian number, padded with zeros after the end."""
    digit = np.uint64(0)
    size = 0
    while size < 8 and text[at + size] != 0:
        digit = (digit << np.uint64(8)) | np.uint64(text[at + size])
        size += 1
    return digit << np.uint64(8 * (8 - size)) if size else digit


@kernel
def _sort_digits(digits, rows, other_digits, other_rows, counts):  # type: ignore[no-untyped-def]
    """Sort rows by their digits, both in place; stable. The other arrays are scratch space."""
    n = len(digits)
    if n <= _SMALL:
        for i in range(1, n):
            digit, row = digits[i], rows[i]
            j = i
            while j > 0 and digits[j - 1] > digit:
                digits[j], rows[j] = digits[j - 1], rows[j - 1]
                j -= 1
            digits[j], rows[j] = digit, row
        return
    counts[:] = 0
    for digit in digits:
        for byte in range(8):
            counts[byte, (digit >> np.uint64(8 * byte)) & np.uint64(255)] += 1
    for byte in range(8):
        shift = np.uint64(8 * byte)
        if counts[byte, (digits[0] >> shift) & np.uint64(255)] == n:
            continue  # all digits have the same byte
        total = 0
        for i in range(256):
            here = counts[byte, i]
            counts[byte, i] = total
            total += here
        for i in range(n):
            slot = (digits[i] >> shift) & np.uint64(255)
            to = counts[byte, slot]
            counts[byte, slot] = to + 1
            other_digits[to] = digits[i]
            other_rows[to] = rows[i]
        digits[:] = other_digits[:n]
        rows[:] = other_rows[:n]


@kernel("u8[:], i64[:], out i64[:], out u64[:], out u64[:], out i64[:], out i64[:,:], out i64[:,:] -> i64")
def _sort(text, starts, rows, digits, other_digits, other_rows, counts, todo):  # type: ignore[no-untyped-def]
    """Sort rows in place. Return whether all texts are different.

    Args:
        digits, other_digits, other_rows: scratch space, one number for each row.
        counts: int64[8, 256], scratch space.
        todo: int64[rows // 2 + 1, 3], a stack of runs of rows: begin, end, bytes in common.
    """
    distinct, left = True, 1
    todo[0, 0], todo[0, 1], todo[0, 2] = 0, len(rows), 0
    while left > 0:
        left -= 1
        begin, end, depth = todo[left, 0], todo[left, 1], todo[left, 2]
        for i in range(begin, end):
            digits[i] = _digit(text, starts[rows[i]] + depth)
        _sort_digits(digits[begin:end], rows[begin:end], other_digits, other_rows, counts)
        i = begin
        while i < end:
            digit = digits[i]
            j = i + 1
            while j < end and digits[j] == digit:
                j += 1
            if j - i > 1:
                if digit & np.uint64(255) == 0:
                    distinct = False
                else:
                    todo[left, 0], todo[left, 1], todo[left, 2] = i, j, depth + 8
                    left += 1
            i = j
    return distinct


def sort_texts(text: Bytes, starts: Int64s) -> tuple[Int64s, bool]:
    """Return the order of texts, and whether they are all different.

    Args:
        text: uint8, each text followed by one NUL; no text contains a NUL.
        starts: int64[n + 1], the offset of each text, then the end of the buffer.

    Returns:
        int64[n], row numbers in ascending order, equal texts by row number.
    """
    rows = np.arange(len(starts) - 1)
    if _strictly_ascending(text, starts):
        return rows, True
    digits = np.empty(len(rows), np.uint64)
    counts, todo = np.empty((8, 256), np.int64), np.empty((len(rows) // 2 + 1, 3), np.int64)
    distinct = _sort(text, starts, rows, digits, np.empty_like(digits), np.empty_like(rows), counts, todo)
    return rows, bool(distinct)


@kernel
def _row_before(ints, text, starts, a, b):  # type: ignore[no-untyped-def]
    """Return whether row a comes before row b by text, then the integer columns in turn, then row number."""
    order = compare(text, starts[a], starts[b])
    k = 0
    while order == 0 and k < len(ints):
        order = np.int64(ints[k, a] > ints[k, b]) - np.int64(ints[k, a] < ints[k, b])
        k += 1
    return order < 0 or (order == 0 and a < b)


@kernel("i64[:,:], i64[:,:], u8[:], i64[:], out i64[:]")
def _sort_groups(group, then, text, starts, rows):  # type: ignore[no-untyped-def]
    begin = 0
    while begin < len(rows):
        end = begin + 1
        while end < len(rows) and _same(group, rows[begin], rows[end]):
            end += 1
        for gap in _GAPS:  # Shellsort, because groups usually have only a few rows
            for i in range(begin + gap, end):
                row = rows[i]
                j = i
                while j - gap >= begin and _row_before(then, text, starts, row, rows[j - gap]):
                    rows[j] = rows[j - gap]
                    j -= gap
                rows[j] = row
        begin = end


@kernel
def _same(ints, a, b):  # type: ignore[no-untyped-def]
    same = True
    for k in range(len(ints)):
        same &= ints[k, a] == ints[k, b]
    return same


def sort_groups(group: Int64s, then: Int64s, text: Bytes, starts: Int64s, rows: Int64s) -> Int64s:
    """Return rows sorted by group columns, text, other columns and row number, from rows sorted by group columns.

    Args:
        group, then: int64[k, n], the columns before and after the text.
        text, starts: as in `sort_texts`.
        rows: int64[n], an order by the group columns.
    """
    out = rows.copy()
    _sort_groups(group, then, text, starts, out)
    return out


@kernel("i64[:,:] -> i64")
def _ascending(ints):  # type: ignore[no-untyped-def]
    for i in range(1, ints.shape[1]):
        k = 0
        while k < len(ints) and ints[k, i - 1] == ints[k, i]:
            k += 1
        if k < len(ints) and ints[k, i - 1] > ints[k, i]:
            return False
    return True


def sort_rows(ints: Int64s) -> Int64s:
    """Return the rows in ascending order of the columns int64[k, n], equal rows by row number, int64[n]."""
    if _ascending(ints):
        return np.arange(ints.shape[1])
    return np.lexsort(ints[::-1])
