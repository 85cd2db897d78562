"""Unicode word boundaries (UAX 29, https://www.unicode.org/reports/tr29/) and the character classes for them.

The classes come from the Unicode Character Database, as ranges in ``data/wordbreak.txt``. `segments` applies the rules
one by one in plain Python: the test oracle of `words`, which works on UTF-8 bytes.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import Array, kernel

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


# --- compiled ---------------------------------------------------------------------------------------------------------


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
def _joins(earlier, before, after, flags, data, at, high, index, pages):  # type: ignore[no-untyped-def]
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


@kernel("u8[:], i64, i64, u8[:], u8[:], out i64[:], out i64[:], i64 -> i64")
def words(data, low, high, index, pages, lows, highs, count):  # type: ignore[no-untyped-def]
    """Append the segments of ``data[low:high]`` that are not blank, and return the new number of segments.

    Args:
        data: uint8, UTF-8.
        index, pages: see `tables`.
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
            joined = _joins(earlier, before, kind, flags, data, at + size, high, index, pages)
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


@kernel("u8[:], i64[:], i64[:], u8[:], u8[:], i64, out i64[:], out i64[:], out b[:]")
def _count_words(data, lows, highs, index, pages, least, begins, ends, enough):  # type: ignore[no-untyped-def]
    for i in range(len(lows)):
        enough[i] = words(data, lows[i], highs[i], index, pages, begins, ends, 0) >= least


@kernel
def _blanks(data, low, high, index, pages):  # type: ignore[no-untyped-def]
    """Count the segments of a range of white space: runs of spaces, CR LF, and each other character."""
    count = 0
    before = -1
    at = low
    while at < high:
        kind, size = kind_at(data, at, index, pages)
        kind &= CLASS_BITS
        joined = (before == SPACE and kind == SPACE) or (before == CR and kind == LF)
        count += not joined
        before = kind
        at += size
    return count


def count_segments(data: Array, lows: Array, highs: Array, index: Array, pages: Array) -> Array:
    """Count the segments of each range that are not blank for ``str.strip``, and all its segments, int64[2, ranges].

    Args:
        data: uint8, UTF-8.
        lows, highs: int64[ranges], byte offsets.
        index, pages: see `tables`.
    """
    begins, ends = np.empty((2, int((highs - lows).max(initial=0)) + 1), np.int64)
    counts = np.empty((2, len(lows)), np.int64)
    _count_segments(data, lows, highs, index, pages, begins, ends, counts)
    return counts


@kernel("u8[:], i64[:], i64[:], u8[:], u8[:], out i64[:], out i64[:], out i64[:,:]")
def _count_segments(data, lows, highs, index, pages, begins, ends, counts):  # type: ignore[no-untyped-def]
    for k in range(len(lows)):
        found = words(data, lows[k], highs[k], index, pages, begins, ends, 0)
        filled = total = found
        at = lows[k]
        for i in range(found):
            # Four separators (0x1C to 0x1F) are white space in Python but not in Unicode.
            filled -= ends[i] == begins[i] + 1 and 0x1C <= data[begins[i]] <= 0x1F
            if begins[i] > at:
                total += _blanks(data, at, begins[i], index, pages)
            at = ends[i]
        counts[0, k] = filled
        counts[1, k] = total + _blanks(data, at, highs[k], index, pages)
