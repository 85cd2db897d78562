"""Words of texts with their places, n-grams of them that an index may hold, and words that two texts share in order.

Words are as in `feedmill.kernels.hashing.shingles`, with a table of characters that folds case, accents and compatible
forms (`folded`). Markup is no text: a tag (``<`` and a letter or ``/``, up to ``>``) and a character reference
(``&`` up to ``;``) separate words.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import chain

import numpy as np

from feedmill.kernels.hashing.shingles import IGNORED, LETTER, WORD, Characters, _code_at, _mix, characters
from feedmill.kernels.native import kernel

TAG, REFERENCE = 100, 10
"""Bytes of the longest tag and character reference that are recognized."""
_SEED, _STEP = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_POWER = np.uint64(0xA0761D6478BD642F)
_0, _1, _63, _6 = np.uint64(0), np.uint64(1), np.uint64(63), np.uint64(6)
_32 = np.uint64(32)


@cache
def folded() -> Characters:
    """Return a table that maps each letter to the first one of its compatible decomposition, in lower case.

    Combining marks are ignored, so that "é" is "e" however it is encoded, and full-width letters are plain ones.
    """
    where, pages = characters(True, True)
    flat = pages.reshape(-1, 256)[where].reshape(-1).copy()
    for code in chain(range(0x80, 0x3400), range(0xA000, 0xAC00), range(0xF900, 0x20000), range(0x2F800, 0x2FA20)):
        character = chr(code)  # the rest have no decomposition, but Hangul syllables, which are letters of their own
        if unicodedata.combining(character):
            flat[code] = IGNORED
            continue
        first = unicodedata.normalize("NFKD", character)[0]
        if first == character:
            continue
        to = ord(first)
        entry = int(flat[to])
        flat[code] = (entry & 3) + 4 * (to + (entry >> 2) - code)
    rows: dict[bytes, int] = {}
    index = [rows.setdefault(page.tobytes(), len(rows)) for page in flat.reshape(-1, 256)]
    return Characters(np.array(index, np.uint16), np.frombuffer(b"".join(rows), np.int32))


@kernel
def _skipped(data, at, high):  # type: ignore[no-untyped-def]
    """Return the end of the tag or character reference at this byte, or `at` if there is none."""
    if data[at] == 0x3C and at + 2 < high:  # <
        byte = np.int64(data[at + 1]) | 0x20
        if (0x61 <= byte <= 0x7A) or data[at + 1] == 0x2F:
            for end in range(at + 2, min(high, at + TAG)):
                if data[end] == 0x3E:
                    return end + 1
                if data[end] == 0x3C or data[end] == 0x0A:
                    return at
    elif data[at] == 0x26 and at + 2 < high:  # &
        for end in range(at + 1, min(high, at + REFERENCE)):
            byte = np.int64(data[end])
            if byte == 0x3B and end > at + 1:
                return end + 1
            lower = byte | 0x20
            if not ((0x61 <= lower <= 0x7A) or (0x30 <= byte <= 0x39) or byte == 0x23):
                return at
    return at


@kernel("u8[:], i64, i64, u16[:], i32[:], out u64[:], out i32[:], out i32[:], i64 -> i64")
def words(data, low, high, index, pages, hashes, begins, ends, first):  # type: ignore[no-untyped-def]
    """Write the words of ``data[low:high]``: hashes, and the bytes where each begins and ends.

    Args:
        index, pages: The table of characters.
        hashes: uint64, begins, ends: int32; relative to `low`. Each has room for ``high - low`` words more.
        first: Index of the first word in these.

    Returns:
        The index behind the last word.
    """
    count, at = first, low
    base = np.int64(index[0]) << 8
    value, inside, start = _SEED, False, low
    while at < high:
        byte = np.int64(data[at])
        here = at
        if byte < 0x80:
            entry = np.int64(pages[base + byte])
            code = byte
            at += 1
            if byte == 0x3C or byte == 0x26:
                at = max(at, _skipped(data, here, high))
        else:
            code, size = _code_at(data, at)
            entry = np.int64(pages[(np.int64(index[code >> 8]) << 8) + (code & 255)])
            at += size
        kind = entry & 3
        if kind == LETTER:
            if not inside:
                start = here
                inside = True
            value = (value ^ np.uint64(code + (entry >> 2))) * _STEP
        elif kind != IGNORED:
            if inside:
                hashes[count], begins[count], ends[count] = _mix(value), start - low, here - low
                count += 1
                value, inside = _SEED, False
            if kind == WORD:
                hashes[count] = _mix((_SEED ^ np.uint64(code + (entry >> 2))) * _STEP)
                begins[count], ends[count] = here - low, at - low
                count += 1
    if inside:
        hashes[count], begins[count], ends[count] = _mix(value), start - low, high - low
        count += 1
    return count


@kernel("u64[:], i64, i64, out u64[:] -> i64")
def grams(hashes, count, width, values):  # type: ignore[no-untyped-def]
    """Write the hash of each `width` consecutive words to `values`. Return their number."""
    if count < width:
        return 0
    power, rolled = _1, _0
    for i in range(width):
        power *= _POWER
        rolled = rolled * _POWER + hashes[i]
    values[0] = _mix(rolled)
    for i in range(1, count - width + 1):
        rolled = rolled * _POWER + hashes[i + width - 1] - hashes[i - 1] * power
        values[i] = _mix(rolled)
    return count - width + 1


@kernel("out u64[:], u64[:]")
def fill(bits, values):  # type: ignore[no-untyped-def]
    """Set two bits of one word of `bits`, uint64[power of two], for each value."""
    mask = np.uint64(len(bits) - 1)
    for i in range(len(values)):
        value = values[i]
        bits[(value >> _32) & mask] |= (_1 << (value & _63)) | (_1 << ((value >> _6) & _63))


@kernel(
    "u8[:], i64[:], u16[:], i32[:], i64, u64[:], out u64[:], out i32[:], out i32[:], out i64[:], "
    "out i32[:], out i32[:], out u64[:] -> i64"
)
def scan(data, offsets, index, pages, width, bits, hashes, begins, ends, counts, texts, places, values):  # type: ignore[no-untyped-def]
    """Find the n-grams of texts whose bits are set, and write all words.

    Args:
        data, offsets: The texts ``data[offsets[i]:offsets[i + 1]]``, valid UTF-8.
        width: Words of an n-gram.
        bits: See `fill`.
        hashes, begins, ends: See `words`; with room for all texts, which are written one behind the other.
        counts: int64[n + 1], receives the first word of each text.
        texts: int32, places: int32, values: uint64: receive the text, the word in it and the hash of each n-gram. Each
            has room for as many as there are bytes.

    Returns:
        The number of n-grams.
    """
    mask, found, first = np.uint64(len(bits) - 1), 0, 0
    high_power = _1
    for _ in range(width):
        high_power *= _POWER
    for text in range(len(offsets) - 1):
        counts[text] = first
        low, high = offsets[text], offsets[text + 1]
        size = words(data, low, high, index, pages, hashes, begins, ends, first) - first
        rolled = _0
        for i in range(size):
            rolled = rolled * _POWER + hashes[first + i]
            if i >= width:
                rolled -= hashes[first + i - width] * high_power
            if i >= width - 1:
                value = _mix(rolled)
                set_ = (_1 << (value & _63)) | (_1 << ((value >> _6) & _63))
                if bits[(value >> _32) & mask] & set_ == set_:
                    texts[found], places[found], values[found] = text, i - width + 1, value
                    found += 1
        first += size
    counts[len(offsets) - 1] = first
    return found


@kernel("u64[:], u64[:], out i32[:] -> i64")
def in_order(a, b, row):  # type: ignore[no-untyped-def]
    """Return the length of the longest common subsequence of two sequences of hashes; `row` is int32[len(b) + 1]."""
    for j in range(len(b) + 1):
        row[j] = 0
    for i in range(len(a)):
        diagonal = np.int32(0)
        for j in range(len(b)):
            above = row[j + 1]
            if a[i] == b[j]:
                row[j + 1] = diagonal + 1
            elif row[j] > above:
                row[j + 1] = row[j]
            diagonal = above
    return np.int64(row[len(b)])


def room_for(count: int) -> int:
    """Return the words of `bits` for this number of n-grams: 16 to 32 bits each, at least 32 KiB."""
    return max(1 << 12, 1 << (max(1, count) * 16 // 64).bit_length())
