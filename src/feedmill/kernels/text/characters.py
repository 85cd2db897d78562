"""Table of character classes: bits for each code point, for kernels over text.

The table has two definitions of white space and of letters: that of Python's strings and that of the `regex` module
(the Unicode property). They differ in a few control characters.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

SPACE = 1  # str.isspace: what str.split and str.strip remove
ALPHA = 2  # str.isalpha
WORD = 4  # \w of the `regex` module
BLANK = 8  # \s of the `regex` module
DIGIT = 16  # str.isdecimal: \d
ALNUM = 32  # str.isalnum

_COUNT = 0x110000
_ASSIGNED = ((0, 0x40000), (0xE0000, 0xE1000))
"""Ranges that can hold characters with properties: all other planes are unassigned or for private use."""


@cache
def table() -> npt.NDArray[np.uint8]:
    """Return the bits of each code point, uint8[0x110000]."""
    import regex

    found = np.zeros(_COUNT, np.uint8)
    for low, high in _ASSIGNED:
        found[low:high] = _bits(np.arange(low, high, dtype="<u4"), regex)
    return found


def _bits(codes: npt.NDArray[np.uint32], regex: Any) -> npt.NDArray[np.uint8]:
    """Return the bits of these code points."""
    single = codes.view("<U1")
    found = np.zeros(len(codes), np.uint8)
    surrogates = (codes >= 0xD800) & (codes < 0xE000)
    for bit, test in (
        (SPACE, np.char.isspace),
        (ALPHA, np.char.isalpha),
        (DIGIT, np.char.isdecimal),
        (ALNUM, np.char.isalnum),
    ):
        found[test(single)] |= bit
    every = codes.tobytes().decode("utf-32-le", "surrogatepass")
    for bit, pattern in ((WORD, r"\w+"), (BLANK, r"\s+")):
        for match in regex.finditer(pattern, every):
            found[match.start() : match.end()] |= bit
    found[surrogates] = 0
    return found
