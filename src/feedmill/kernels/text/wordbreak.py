"""Unicode word boundaries (UAX 29, https://www.unicode.org/reports/tr29/) and the character classes for them.

The classes come from the Unicode Character Database, as ranges in ``data/wordbreak.txt``. `segments` applies the rules
one by one in plain Python: the test oracle of `feedmill.kernels.text.wordbreak_compiled`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from itertools import pairwise

import numpy as np
import numpy.typing as npt

CLASSES = [
    "Other",
    "CR",
    "LF",
    "Newline",
    "Extend",
    "ZWJ",
    "Format",
    "Regional_Indicator",
    "Katakana",
    "Hebrew_Letter",
    "ALetter",
    "Single_Quote",
    "Double_Quote",
    "MidNumLet",
    "MidLetter",
    "MidNum",
    "Numeric",
    "ExtendNumLet",
    "WSegSpace",
]
(OTHER, CR, LF, NEWLINE, EXTEND, ZWJ, FORMAT, FLAG, KATAKANA, HEBREW, LETTER, QUOTE) = range(12)
(DOUBLE_QUOTE, MID_NUM_LET, MID_LETTER, MID_NUM, NUMERIC, EXTEND_NUM_LET, SPACE) = range(12, 19)
CLASS_BITS = 31
PICTOGRAPHIC, BLANK = 32, 64
_PAGE = 256


@cache
def tables() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the two-level table of character classes.

    Returns:
        The page number of each block of 256 characters, uint8[4352], and the pages, uint8[pages * 256]: the class of
        each character, with bits for pictographs and white space.
    """
    flat = np.zeros(0x110000, np.uint8)
    for line in files("feedmill.kernels.text").joinpath("data/wordbreak.txt").read_text("ascii").splitlines():
        name, *ranges = line.split()
        if name == "#":
            continue
        value = {"Extended_Pictographic": PICTOGRAPHIC, "White_Space": BLANK}.get(name) or CLASSES.index(name)
        for piece in ranges:
            low, _, high = piece.partition("-")
            flat[int(low, 16) : int(high or low, 16) + 1] |= value
    numbers: dict[bytes, int] = {}
    index = [numbers.setdefault(flat[at : at + _PAGE].tobytes(), len(numbers)) for at in range(0, len(flat), _PAGE)]
    return np.array(index, np.uint8), np.frombuffer(b"".join(numbers), np.uint8)


def segments(text: str) -> list[str]:
    """Split a text at its word boundaries: the concatenated segments are the text.

    >>> segments("can't stop: 3.5 km")
    ["can't", ' ', 'stop', ':', ' ', '3.5', ' ', 'km']
    """
    kinds = [_kind(character) for character in text]
    cuts = [0, *(i for i in range(1, len(text)) if _boundary(kinds, i)), len(text)]
    return [text[low:high] for low, high in pairwise(cuts) if high > low]


def words(text: str) -> list[str]:
    """Return the segments that are not blank."""
    return [piece for piece in segments(text) if not all(_kind(c) & BLANK for c in piece)]


def _kind(character: str) -> int:
    index, pages = tables()
    code = ord(character)
    return int(pages[int(index[code >> 8]) * _PAGE + (code & 255)])


def _boundary(kinds: list[int], i: int) -> bool:
    """Return whether a boundary lies before character `i`."""
    before, after = kinds[i - 1] & CLASS_BITS, kinds[i] & CLASS_BITS
    if before == CR and after == LF:
        return False
    if before in (CR, LF, NEWLINE) or after in (CR, LF, NEWLINE):
        return True
    if (before == ZWJ and kinds[i] & PICTOGRAPHIC) or (before == after == SPACE):
        return False
    if after in (EXTEND, FORMAT, ZWJ):
        return False
    left = [kind & CLASS_BITS for kind in kinds[:i]]
    while len(left) > 1 and left[-1] in (EXTEND, FORMAT, ZWJ) and left[-2] not in (CR, LF, NEWLINE):
        left.pop()
    before = left[-1]
    earlier = [kind for kind in left[:-1] if kind not in (EXTEND, FORMAT, ZWJ)]
    ahead = next((k & CLASS_BITS for k in kinds[i + 1 :] if k & CLASS_BITS not in (EXTEND, FORMAT, ZWJ)), OTHER)
    return not _joined(earlier[-1] if earlier else OTHER, before, after, ahead, _flags(left))


def _flags(left: list[int]) -> int:
    """Return the number of regional indicators at the end."""
    count = 0
    for kind in reversed(left):
        if kind == FLAG:
            count += 1
        elif kind not in (EXTEND, FORMAT, ZWJ):
            break
    return count


def _joined(earlier: int, before: int, after: int, ahead: int, flags: int) -> bool:
    """Return whether rules WB5 to WB16 forbid a boundary."""
    letters = (LETTER, HEBREW)
    if before in letters and after in letters:
        return True
    middle = (MID_LETTER, MID_NUM_LET, QUOTE)
    if before in letters and after in middle and ahead in letters:
        return True
    if earlier in letters and before in middle and after in letters:
        return True
    if before == HEBREW and (after == QUOTE or (after == DOUBLE_QUOTE and ahead == HEBREW)):
        return True
    if earlier == HEBREW and before == DOUBLE_QUOTE and after == HEBREW:
        return True
    if before in (*letters, NUMERIC) and after in (*letters, NUMERIC):
        return True
    middle = (MID_NUM, MID_NUM_LET, QUOTE)
    if before == NUMERIC and after in middle and ahead == NUMERIC:
        return True
    if earlier == NUMERIC and before in middle and after == NUMERIC:
        return True
    if before == after == KATAKANA:
        return True
    if before in (*letters, NUMERIC, KATAKANA, EXTEND_NUM_LET) and after == EXTEND_NUM_LET:
        return True
    if before == EXTEND_NUM_LET and after in (*letters, NUMERIC, KATAKANA):
        return True
    return before == after == FLAG and flags % 2 == 1
