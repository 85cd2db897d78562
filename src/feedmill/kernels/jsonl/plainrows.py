"""Check whether blocks of JSON rows can be decoded as lines: each line is one row, and no number is ``-0``.

`feedmill.formats.documents.one_a_line` explains why checking both ends of lines is sufficient.
"""

from __future__ import annotations

import numpy as np

from feedmill.kernels.machine import load64
from feedmill.kernels.native import kernel

_NEWLINE, _OPEN, _CLOSE, _MINUS, _ZERO = 0x0A, 0x7B, 0x7D, 0x2D, 0x30
_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_NEWLINES, _MINUSES = _ONES * np.uint64(_NEWLINE), _ONES * np.uint64(_MINUS)
_TOP = np.uint64(56)


def plain_rows(lines: bytes) -> int:
    """Return the number of rows of whole lines, if they are JSON.

    Returns -1 if a line does not begin with ``{`` and end with ``}``, or has a ``-0`` that may be a number.

    >>> plain_rows(b'{"a":1}\\n{"a":-0.5}\\n'), plain_rows(b'{"a":-0}\\n'), plain_rows(b'{"a":\\n1}\\n')
    (2, -1, -1)
    """
    return int(_count_rows(np.frombuffer(lines, np.uint8)))


@kernel
def _next(data, at, end):  # type: ignore[no-untyped-def]
    """Return the first line end or minus from here; or `end`."""
    while at + 8 <= end:
        word = load64(data, at)
        one, other = word ^ _NEWLINES, word ^ _MINUSES
        # The lowest mark is exact, because a borrow can only begin at a matching byte.
        marks = (((one - _ONES) & ~one) | ((other - _ONES) & ~other)) & _HIGHS
        if marks:
            below = (marks & (~marks + np.uint64(1))) - np.uint64(1)
            return at + np.int64(((below & _ONES) * _ONES) >> _TOP) - 1
        at += 8
    while at < end and data[at] != _NEWLINE and data[at] != _MINUS:
        at += 1
    return at


@kernel
def _ends_number(byte):  # type: ignore[no-untyped-def]
    # , ] } space tab return newline
    return byte in (0x2C, 0x5D, 0x7D, 0x20, 0x09, 0x0D, 0x0A)


@kernel("u8[:] -> i64")
def _count_rows(data):  # type: ignore[no-untyped-def]
    """Return the result of `plain_rows` for a uint8 array."""
    end, at, begin, rows = len(data), 0, 0, 0
    while begin < end:
        at = _next(data, at, end)
        if at < end and data[at] == _MINUS:
            if at + 1 < end and data[at + 1] == _ZERO and (at + 2 >= end or _ends_number(data[at + 2])):
                return -1
            at += 1
            continue
        if data[begin] != _OPEN or data[at - 1] != _CLOSE or at - begin < 2:
            return -1
        rows += 1
        begin = at = at + 1
    return rows
