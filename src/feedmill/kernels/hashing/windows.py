"""Windows of bytes, by which repeated substrings are found: their anchors, and their hashes.

A text of n bytes has n - L + 1 windows of L bytes. Two windows are compared only if they have the same *anchor*: the
substring of W bytes with the least hash in the window, the last one if several have it (a minimizer, Roberts et al.
2004). Equal windows have equal anchors at the same distance from their starts. Consecutive windows mostly share the
place of their anchor, so there is one place for about (L - W + 2) / 2 windows.

Anchors are compared by hashes of 64 bits, which only suggest. Windows are compared by two hashes of 61 bits, each a
polynomial over the bytes modulo 2^61 - 1 (Karp and Rabin 1987), at fixed points. Different windows have equal hashes by
chance with a probability below (L / 2^61)^2. The hashes do not resist deliberate collisions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.kernels.hashing.murmur import hash_bytes, mix
from feedmill.kernels.machine import product
from feedmill.kernels.native import Array, kernel

PRIME = (1 << 61) - 1
POINTS = (0x0A5B1C3D7E9F2468, 0x13579BDF02468ACE)
"""Where the polynomials of windows are evaluated."""
FACTOR = 0x9E3779B97F4A7C15
"""Factor of the hashes of anchors, modulo 2^64."""
BEGINS, ENDS = 1, 2
"""Bits: a character begins at the first byte of a window; one ends at its last byte."""


def width(length: int) -> int:
    """Return the number of bytes of an anchor, for windows of `length` bytes.

    Longer anchors suggest less that is not repeated, shorter ones are fewer. This took the least time for 1 GB of texts
    with lengths of 50 and 200.
    """
    return length - max(length // 4, min(length // 2, 25))


class _Tables(NamedTuple):
    """What to subtract for the byte that leaves a window, for each value of a byte.

    `first` and `second` are uint64[256], for the two points.
    """

    first: npt.NDArray[np.uint64]
    second: npt.NDArray[np.uint64]


@lru_cache(maxsize=4)
def _tables(length: int) -> _Tables:
    """Return the tables for windows of `length` bytes."""
    powers = [pow(point, length - 1, PRIME) for point in POINTS]
    one, other = (np.array([(PRIME - (b + 1) * p) % PRIME for b in range(256)], np.uint64) for p in powers)
    return _Tables(one, other)


def find_anchors(data: Array, offsets: Array, length: int) -> tuple[Array, Array]:
    """Return the places of anchors in texts, and their hashes.

    Args:
        data: uint8[bytes + 8], the texts as UTF-8.
        offsets: int64[texts + 1], of each text, and of the end of the last one.
        length: Bytes of a window.

    Returns:
        int32[3, n]: the text, and the first and last byte plus one that the windows with this anchor have, in the
        text; and uint64[n, 3]: the hash of the anchor, and the two halves of the hash of these bytes.
    """
    size = width(length)
    room = max(1, len(data))  # pages that are not written to take no memory
    places, hashes = np.empty((3, room), np.int32), np.empty((room, 3), np.uint64)
    ring = np.empty(1 << (length - size + 1).bit_length(), np.uint64)
    leaving = np.uint64(pow(FACTOR, size, 1 << 64))
    count = _anchors(data, offsets, length, size, leaving, ring, places[0], places[1], places[2], hashes)
    return places[:, :count].copy(), hashes[:count].copy()


def hash_windows(data: Array, offsets: Array, places: Array, emitted: Array, length: int) -> tuple[Array, Array, Array]:
    """Return the characters of places of anchors, and the hashes of the windows of those that are emitted.

    Args:
        data, offsets, length: See `find_anchors`.
        places: int32[3, n], in order.
        emitted: bool[n].

    Returns:
        int32[n, 3]: the number of characters that begin before the first byte of the place, that begin before the end
        of its first window, and that are whole before the end of the place; uint64[m, 2]: the hash of each window,
        never (0, 0); and uint8[m]: `BEGINS` and `ENDS` of each window.
    """
    count = int(((places[2] - places[1] - length + 1)[emitted]).sum())
    characters, hashes = np.empty((places.shape[1], 3), np.int32), np.empty((count, 2), np.uint64)
    marks = np.empty(count, np.uint8)
    texts, starts, ends = map(np.ascontiguousarray, places)
    _windows(data, offsets, texts, starts, ends, emitted, length, *_tables(length), characters, hashes, marks)
    return characters, hashes, marks


_FACTOR, _PRIME = np.uint64(FACTOR), np.uint64(PRIME)
_FIRST, _SECOND = (np.uint64(point) for point in POINTS)
_0, _1, _61, _3 = np.uint64(0), np.uint64(1), np.uint64(61), np.uint64(3)


@kernel("u8[:], i64[:], i64, i64, u64, out u64[:], out i32[:], out i32[:], out i32[:], out u64[:,:] -> i64")
def _anchors(data, offsets, length, size, leaving, ring, texts, starts, ends, hashes):  # type: ignore[no-untyped-def]
    """Find the places of anchors; see `find_anchors`.

    Args:
        size: Bytes of an anchor.
        leaving: `FACTOR` to the power of `size`.
        ring: uint64[a power of two, at least the number of anchors in a window], scratch.
    """
    inside, mask, count = length - size + 1, len(ring) - 1, 0
    for text in range(len(offsets) - 1):
        low, high = offsets[text], offsets[text + 1]
        if high - low < length:
            continue
        value = _0
        for at in range(low, low + size - 1):
            value = value * _FACTOR + np.uint64(data[at])
        least, best, last, out = ~_0, low, low - 1, _0
        for end in range(low + size, high + 1):  # of a possible anchor
            at = end - size
            value = value * _FACTOR + np.uint64(data[end - 1]) - out * leaving
            out = np.uint64(data[at])
            found = mix(value)
            ring[at & mask] = found
            if found <= least:
                least, best = found, at
            elif best <= at - inside:
                least, best = found, at
                for other in range(at - 1, at - inside, -1):
                    if ring[other & mask] < least:
                        least, best = ring[other & mask], other
            if at - low >= inside - 1 and best != last:
                first = at - inside + 1  # the first window with this anchor
                if last >= low:
                    ends[count - 1] = first - 1 + length - low
                texts[count], starts[count] = text, first - low
                hashes[count, 0] = mix(least + _1)
                last = best
                count += 1
        ends[count - 1] = high - low
    for n in range(count):
        low = offsets[texts[n]]
        hashes[n, 1], hashes[n, 2] = hash_bytes(data, low + starts[n], low + ends[n])
    return count


@kernel
def _times(a, b):  # type: ignore[no-untyped-def]
    """Return a product modulo 2^61 - 1, up to 2^61; `a` is up to 2^61 + 2^10, `b` below 2^61."""
    low, high = product(a, b)
    full = (low & _PRIME) + ((low >> _61) | (high << _3))
    return (full & _PRIME) + (full >> _61)


@kernel
def _least(a):  # type: ignore[no-untyped-def]
    """Return the least number that equals `a` modulo 2^61 - 1; `a` is below 2^62."""
    a = (a & _PRIME) + (a >> _61)
    return a - _PRIME if a >= _PRIME else a


@kernel
def _begins(data, at, high):  # type: ignore[no-untyped-def]
    """Return 1 if a character, or the end of the text, begins at this byte, and 0 otherwise."""
    return 1 if at >= high or np.int64(data[at]) & 0xC0 != 0x80 else 0


@kernel("u8[:], i64[:], i32[:], i32[:], i32[:], b[:], i64, u64[:], u64[:], out i32[:,:], out u64[:,:], out u8[:]")
def _windows(data, offsets, texts, starts, ends, emitted, length, first, second, characters, hashes, marks):  # type: ignore[no-untyped-def]
    """Hash windows; see `hash_windows`, and `_tables` for `first` and `second`."""
    count, text, behind = 0, -1, -1
    one, other = _0, _0
    at0, at1, at2, c0, c1, c2 = 0, 0, 0, 0, 0, 0
    for n in range(len(texts)):
        if texts[n] != text:
            text, behind = np.int64(texts[n]), -1  # type: ignore[assignment]
            at0, at1, at2, c0, c1, c2 = 0, 0, 0, 0, 0, 0
        low, high = offsets[text], offsets[text + 1]
        start, end = np.int64(starts[n]), np.int64(ends[n])
        while at0 < start:
            c0 += _begins(data, low + at0, high)
            at0 += 1
        while at1 < start + length:
            c1 += _begins(data, low + at1, high)
            at1 += 1
        while at2 < end:
            c2 += _begins(data, low + at2, high)
            at2 += 1
        characters[n, 0], characters[n, 1] = c0, c1
        characters[n, 2] = c2 - 1 + _begins(data, low + end, high)
        if not emitted[n]:
            continue
        if behind != start:
            one, other = _0, _0
            for at in range(low + start, low + start + length - 1):
                byte = np.uint64(data[at]) + _1
                one, other = _times(one, _FIRST) + byte, _times(other, _SECOND) + byte
        for at in range(low + start, low + end - length + 1):
            byte = np.uint64(data[at + length - 1]) + _1
            one, other = _times(one, _FIRST) + byte, _times(other, _SECOND) + byte
            a, b = mix(_least(one)), mix(_least(other) ^ _FACTOR)
            hashes[count, 0], hashes[count, 1] = a, b | _1 if a == _0 else b
            marks[count] = _begins(data, at, high) + 2 * _begins(data, at + length, high)
            leaving = np.int64(data[at])
            one = _least(one + first[leaving])
            other = _least(other + second[leaving])
            count += 1
        behind = end - length + 1
