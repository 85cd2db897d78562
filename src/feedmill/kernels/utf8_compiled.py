"""Validation of UTF-8, one character at a time, for kernels over bytes."""

from __future__ import annotations

from feedmill.kernels.native import kernel


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
