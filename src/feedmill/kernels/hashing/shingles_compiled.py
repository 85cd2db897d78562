"""The compiled form of `feedmill.kernels.hashing.shingles`, over many texts at once."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.hashing import shingles as plain
from feedmill.kernels.hashing.shingles import IGNORED, LETTER, WORD
from feedmill.kernels.native import njit

_SEED, _STEP, _POWER = np.uint64(plain.SEED), np.uint64(plain.STEP), np.uint64(plain.POWER)
_F1, _F2 = np.uint64(plain.F1), np.uint64(plain.F2)
_0, _1 = np.uint64(0), np.uint64(1)
_32 = np.uint64(32)


@njit()
def _mix(value):  # type: ignore[no-untyped-def]
    value = (value ^ (value >> np.uint64(30))) * _F1
    value = (value ^ (value >> np.uint64(27))) * _F2
    return value ^ (value >> np.uint64(31))


@njit()
def _code_at(data, at):  # type: ignore[no-untyped-def]
    """Return the non-ASCII character at byte `at` and its length in bytes. The bytes must be valid UTF-8."""
    first = np.int64(data[at])
    if first < 0xE0:
        return ((first & 31) << 6) | np.int64(data[at + 1] & 63), 2
    if first < 0xF0:
        return ((first & 15) << 12) | (np.int64(data[at + 1] & 63) << 6) | np.int64(data[at + 2] & 63), 3
    code = ((first & 7) << 18) | (np.int64(data[at + 1] & 63) << 12) | (np.int64(data[at + 2] & 63) << 6)
    return code | np.int64(data[at + 3] & 63), 4


@njit()
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


@njit()
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


@njit()
def _least(values, low, high, a, b, least):  # type: ignore[no-untyped-def]
    """Write the MinHash signature of a set to `least`, uint32[p]."""
    least[:] = np.uint32(0xFFFFFFFF)
    for i in range(low, high):
        x = np.uint32(values[i] >> _32)
        for p in range(len(a)):
            value = np.uint32(a[p] * x + b[p])
            least[p] = min(least[p], value)


@njit()
def sketch(data, offsets, width, index, pages, a, b, keys, sets, ends, digests, lengths):  # type: ignore[no-untyped-def]
    """Compute the sets of shingles, keys and digests of the texts ``data[offsets[i]:offsets[i + 1]]``.

    Args:
        a, b: uint32[bands * rows], the MinHash functions.
        keys: uint64[bands, n], filled: keys of the bands, 0 for a text without words.
        sets: uint64, filled: the concatenated sets; its size must be at least half the number of bytes plus one.
        ends: int64[n], filled: the end of each set.
        digests: uint64[n], filled.
        lengths: int64[n], filled: number of characters of each text.
    """
    rows = len(a) // len(keys)
    longest = 0
    for i in range(len(ends)):
        longest = max(longest, offsets[i + 1] - offsets[i])
    hashes = np.empty(longest // 2 + 1, np.uint64)
    places = 2
    while places < longest + 2:
        places *= 2
    table = np.empty(places, np.uint64)
    least = np.empty(len(a), np.uint32)
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
