"""Cheap test whether a text may contain an e-mail address, a phone number or an IP address.

Each hint tests a necessary condition. Most texts meet none, which saves the full regular expressions.
"""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import Array, kernel
from feedmill.kernels.text.characters import DIGIT, SPACE

EMAIL, PHONE, ADDRESS = 1, 2, 4
_AT, _DOT, _DASH, _BLANK, _OPEN, _CLOSE = 64, 46, 45, 32, 40, 41


@kernel
def _three(codes, i, end, table):  # type: ignore[no-untyped-def]
    """Return whether three digits begin here."""
    return (
        i + 3 <= end
        and table[codes[i]] & DIGIT != 0
        and table[codes[i + 1]] & DIGIT != 0
        and table[codes[i + 2]] & DIGIT != 0
    )


@kernel
def _is_phone(codes, i, end, table):  # type: ignore[no-untyped-def]
    """Return whether a phone number may begin at `i`, the character after white space."""
    if i < end and codes[i] == _OPEN:
        i += 1
    if not _three(codes, i, end, table):
        return False
    i += 3
    if i < end and codes[i] == _CLOSE:
        i += 1
    while i < end and (codes[i] == _DASH or codes[i] == _DOT or codes[i] == _BLANK):
        i += 1
    return _three(codes, i, end, table)


@kernel
def _is_address(codes, i, end):  # type: ignore[no-untyped-def]
    """Return whether three dots with one to three digits between them, then a digit, begin at the dot `i`."""
    for _ in range(2):
        i += 1
        digits = 0
        while i < end and 48 <= codes[i] <= 57 and digits < 4:
            digits += 1
            i += 1
        if digits < 1 or digits > 3 or i >= end or codes[i] != _DOT:
            return False
    return i + 1 < end and 48 <= codes[i + 1] <= 57


def hints(codes: Array, starts: Array, ends: Array, table: Array) -> Array:
    """Return the bits of each range, uint8[ranges]; `table` is `feedmill.kernels.text.characters.table()`."""
    found = np.empty(len(starts), np.uint8)
    _hints(codes, starts, ends, table, found)
    return found


@kernel("u32[:], i64[:], i64[:], u8[:], out u8[:]")
def _hints(codes, starts, ends, table, found):  # type: ignore[no-untyped-def]
    for k in range(len(starts)):
        end = ends[k]
        has = 0
        for i in range(starts[k], end):
            code = codes[i]
            if code > 64 and code < 128:
                continue
            if code == _AT:
                has |= EMAIL
            elif code == _DOT:
                if i > starts[k] and 48 <= codes[i - 1] <= 57 and _is_address(codes, i, end):
                    has |= ADDRESS
            elif table[code] & SPACE and i + 1 < end and not has & PHONE:
                after = codes[i + 1]  # fast path: mostly a letter
                if (after <= 64 or after >= 128) and _is_phone(codes, i + 1, end, table):
                    has |= PHONE
        found[k] = has
