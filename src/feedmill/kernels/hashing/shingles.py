"""Sets of word shingles, their MinHash signatures and band keys, by which near-duplicates are found.

A text is split into words. Every n consecutive words are hashed to a shingle of 64 bits, and the distinct shingles are
the text's set. The similarity of two texts is the Jaccard similarity of their sets: shared shingles divided by all
shingles. Words follow these rules:

* Classes of characters are those of the Unicode Character Database (``data/shingles.txt`` states the version;
  unassigned characters count as letters). White space and control characters separate words; format characters
  (soft hyphens, joiners, byte order marks) and variation selectors are ignored.
* Punctuation and symbols separate words too, or are parts of them (`punctuation=False`).
* Letters are converted to lower case one by one, or kept (`lower=False`).
* A character of a script that is written without spaces (Han, kana, Thai, Lao, Khmer, Burmese, Yi) is a word; or every
  character is one (`words=False`).

A text of fewer than n words has one shingle of all its words. A text without words has none.

MinHash (Broder 1997): with ``x`` the upper 32 bits of a shingle, value p of the signature is the minimum of
``(a[p] * x + b[p]) mod 2^32`` over the set, with `a` (odd) and `b` from SplitMix64. Two sets share a value with
a probability of about their Jaccard similarity. The key of a band is made of `rows` consecutive values (Indyk and
Motwani 1998).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import Array, kernel

SEPARATOR, LETTER, WORD, IGNORED = range(4)
SEED, STEP, POWER = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F
F1, F2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_PAGE = 256


class Characters(NamedTuple):
    """Class and replacement of each character c.

    ``pages[(where[c >> 8] << 8) + (c & 255)]`` is ``kind + 4 * (replacement - c)``.

    `where` is uint16[4352], `pages` int32[pages * 256].
    """

    where: npt.NDArray[np.uint16]
    pages: npt.NDArray[np.int32]


@cache
def characters(lower: bool = True, punctuation: bool = True, words: bool = True) -> Characters:
    """Return the table for the given rules.

    Args:
        lower: Letters are converted to lower case.
        punctuation: Punctuation separates words.
        words: Letters that follow one another are a word; otherwise each is one.
    """
    flat = np.full(0x110000, LETTER if words else WORD, np.int32)
    kinds = {"White_Space": SEPARATOR, "Other_Separator": SEPARATOR, "Ignored": IGNORED, "Word": WORD}
    if punctuation:
        kinds["Punctuation"] = SEPARATOR
    for line in files("feedmill.kernels.hashing").joinpath("data/shingles.txt").read_text("ascii").splitlines():
        name, *ranges = line.split()
        if name in kinds:
            for piece in ranges:
                low, _, high = piece.partition("-")
                flat[int(low, 16) : int(high or low, 16) + 1] = kinds[name]
        elif name == "Lower" and lower:
            for piece in ranges:
                where, _, difference = piece.partition(":")
                low, _, rest = where.partition("-")
                high, _, step = rest.partition("/")
                flat[int(low, 16) : int(high, 16) + 1 : int(step)] += 4 * int(difference)
    pages: dict[bytes, int] = {}
    index = [pages.setdefault(page.tobytes(), len(pages)) for page in flat.reshape(-1, _PAGE)]
    return Characters(np.array(index, np.uint16), np.frombuffer(b"".join(pages), np.int32))


def mix(value: int) -> int:
    """Return the finalizer of SplitMix64."""
    value = (value ^ value >> 30) * F1 & _MASK
    value = (value ^ value >> 27) * F2 & _MASK
    return value ^ value >> 31


def splitmix(count: int, state: int = 0) -> list[int]:
    """Return the first numbers of SplitMix64 (Steele, Lea and Flood 2014)."""
    return [mix(state + (i + 1) * SEED & _MASK) for i in range(count)]


def permutations(count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return the parameters of the MinHash functions: `a` (odd) and `b`, uint32[count] each."""
    numbers = splitmix(count)
    return (
        np.array([n >> 32 | 1 for n in numbers], np.uint32),
        np.array([n & 0xFFFFFFFF for n in numbers], np.uint32),
    )


# --- compiled ---------------------------------------------------------------------------------------------------------

_SEED, _STEP, _POWER = np.uint64(SEED), np.uint64(STEP), np.uint64(POWER)
_F1, _F2 = np.uint64(F1), np.uint64(F2)
_0, _1 = np.uint64(0), np.uint64(1)
_32 = np.uint64(32)


@kernel
def _mix(value):  # type: ignore[no-untyped-def]
    value = (value ^ (value >> np.uint64(30))) * _F1
    value = (value ^ (value >> np.uint64(27))) * _F2
    return value ^ (value >> np.uint64(31))


@kernel
def _code_at(data, at):  # type: ignore[no-untyped-def]
    """Return the non-ASCII character at byte `at` and its length in bytes. The bytes must be valid UTF-8."""
    first = np.int64(data[at])
    if first < 0xE0:
        return ((first & 31) << 6) | np.int64(data[at + 1] & 63), 2
    if first < 0xF0:
        return ((first & 15) << 12) | (np.int64(data[at + 1] & 63) << 6) | np.int64(data[at + 2] & 63), 3
    code = ((first & 7) << 18) | (np.int64(data[at + 1] & 63) << 12) | (np.int64(data[at + 2] & 63) << 6)
    return code | np.int64(data[at + 3] & 63), 4


@kernel
def word_hashes(data, low, high, index, pages, out):  # type: ignore[no-untyped-def]
    """Write the hashes of the words of ``data[low:high]`` to `out`. Return the numbers of words and characters."""
    count, at, continued = 0, low, 0
    base = np.int64(index[0]) << 8
    value, inside = _SEED, False
    while at < high:
        byte = np.int64(data[at])
        if byte < 0x80:
            entry = np.int64(pages[base + byte])
            code = byte
            at += 1
        else:
            code, size = _code_at(data, at)
            entry = np.int64(pages[(np.int64(index[code >> 8]) << 8) + (code & 255)])
            at += size
            continued += size - 1
        kind = entry & 3
        if kind == LETTER:
            value = (value ^ np.uint64(code + (entry >> 2))) * _STEP
            inside = True
        elif kind != IGNORED:
            if inside:
                out[count] = _mix(value)
                count += 1
                value, inside = _SEED, False
            if kind == WORD:
                out[count] = _mix((_SEED ^ np.uint64(code + (entry >> 2))) * _STEP)
                count += 1
    if inside:
        out[count] = _mix(value)
        count += 1
    return count, high - low - continued


@kernel
def distinct_shingles(hashes, count, width, table, out, filled):  # type: ignore[no-untyped-def]
    """Write the distinct shingles of `count` words to `out` from index `filled` on, and return the next index.

    Args:
        table: uint64, scratch space whose size is a power of two above the number of words.
    """
    if count == 0:
        return filled
    width = min(width, count)
    places = 2
    while places < 2 * count:
        places *= 2
    mask = np.uint64(places - 1)
    table[:places] = _0
    power, rolled = _1, _0  # POWER ** width, to remove the first word before mixing
    for i in range(width):
        power *= _POWER
        rolled = rolled * _POWER + hashes[i]
    for i in range(count - width + 1):
        if i > 0:
            rolled = rolled * _POWER + hashes[i + width - 1] - hashes[i - 1] * power
        value = _mix(rolled)
        if value == _0:
            value = _1
        at = value & mask
        while table[at] != _0 and table[at] != value:
            at = (at + _1) & mask
        if table[at] == _0:
            table[at] = value
            out[filled] = value
            filled += 1
    return filled


@kernel
def _least(values, low, high, a, b, least):  # type: ignore[no-untyped-def]
    """Write the MinHash signature of a set to `least`, uint32[p]."""
    least[:] = np.uint32(0xFFFFFFFF)
    for i in range(low, high):
        x = np.uint32(values[i] >> _32)
        for p in range(len(a)):
            value = np.uint32(a[p] * x + b[p])
            least[p] = min(least[p], value)


def sketch(
    data: Array,
    offsets: Array,
    width: int,
    index: Array,
    pages: Array,
    a: Array,
    b: Array,
    keys: Array,
    sets: Array,
    ends: Array,
    digests: Array,
    lengths: Array,
) -> None:
    """Compute the sets of shingles, keys and digests of the texts ``data[offsets[i]:offsets[i + 1]]``.

    Args:
        a, b: uint32[bands * rows], the MinHash functions.
        keys: uint64[bands, n], filled: keys of the bands, 0 for a text without words.
        sets: uint64, filled: the concatenated sets; its size must be at least the number of bytes.
        ends: int64[n], filled: the end of each set.
        digests: uint64[n], filled.
        lengths: int64[n], filled: number of characters of each text.
    """
    longest = int(np.diff(offsets).max(initial=0))
    hashes, table = np.empty(longest + 1, np.uint64), np.empty(4 * longest + 4, np.uint64)  # a byte may be a word
    least = np.empty(len(a), np.uint32)
    _sketch(data, offsets, width, index, pages, a, b, keys, sets, ends, digests, lengths, hashes, table, least)


@kernel(
    "u8[:], i64[:], i64, u16[:], i32[:], u32[:], u32[:], out u64[:,:], out u64[:], out i64[:], out u64[:], out i64[:], "
    "out u64[:], out u64[:], out u32[:]"
)
def _sketch(  # type: ignore[no-untyped-def]
    data, offsets, width, index, pages, a, b, keys, sets, ends, digests, lengths, hashes, table, least
):
    rows = len(a) // len(keys)
    filled = 0
    for i in range(len(ends)):
        begin = filled
        count, lengths[i] = word_hashes(data, offsets[i], offsets[i + 1], index, pages, hashes)
        filled = distinct_shingles(hashes, count, width, table, sets, begin)
        ends[i] = filled
        total = np.uint64(filled - begin) * _STEP
        for s in range(begin, filled):
            total += _mix(sets[s] ^ _SEED)
        digests[i] = _mix(total)
        if filled == begin:
            keys[:, i] = _0
            continue
        _least(sets, begin, filled, a, b, least)
        for band in range(len(keys)):
            key = np.uint64(band)
            for p in range(band * rows, (band + 1) * rows):
                key = _mix((key ^ np.uint64(least[p])) + _SEED)
            keys[band, i] = key
