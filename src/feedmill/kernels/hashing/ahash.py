"""The fallback hash of aHash 0.8 (https://github.com/tkaitchuck/aHash), used by Dolma's Bloom filters.

A key is a list of strings. A hash is seeded with four 64-bit numbers; a filter has k such quadruples, so k hashes per
key. `positions` computes all hashes of many keys: each part of a key is hashed for all seeds before the next part. The
hashes of different seeds are independent, so the processor computes several in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedmill.kernels.machine import load16, load32, load64, product
from feedmill.kernels.native import Array, kernel

CONSTANTS = (0x452821E638D01377, 0xBE5466CF34E90C6C, 0xC0AC29B7C97C50DD, 0x3F84D5B5B5470917)
MULTIPLE = 6364136223846793005
ROTATE = 23
_MASK = (1 << 64) - 1


def write_bytes(data: bytes, seeds: Sequence[int]) -> int:
    """Return the hash of a string as Rust hashes a ``str``: its bytes and 0xFF, without a count of strings."""
    k0, k1, k2, k3 = (int(seed) ^ constant for seed, constant in zip(seeds, CONSTANTS, strict=True))
    state = _State(k1, k0, k2, k3)
    state.write(data)
    state.update(0xFF)
    return _rotl(_folded(state.buffer, k0), state.buffer % 64)


class _State:
    def __init__(self, buffer: int, pad: int, extra0: int, extra1: int) -> None:
        self.buffer, self.pad, self.extra = buffer, pad, (extra0, extra1)

    def update(self, value: int) -> None:
        self.buffer = _folded(value ^ self.buffer, MULTIPLE)

    def large(self, a: int, b: int) -> None:
        combined = _folded(a ^ self.extra[0], b ^ self.extra[1])
        self.buffer = _rotl(((self.buffer + self.pad) & _MASK) ^ combined, ROTATE)

    def write(self, data: bytes) -> None:
        size = len(data)
        self.buffer = (self.buffer + size) * MULTIPLE & _MASK
        for a, b in blocks(data):
            self.large(a, b)


def blocks(data: bytes) -> list[tuple[int, int]]:
    """Split a string into the pairs of words to hash; if it is longer than 16 bytes, its last 16 come first."""
    size = len(data)
    if size > 16:
        firsts = range(0, size - 16, 16)
        return [_pair(data[-16:], 8), *(_pair(data[i : i + 16], 8) for i in firsts)]
    if size > 8:
        return [(_word(data[:8]), _word(data[-8:]))]
    if size >= 4:
        return [(_word(data[:4]), _word(data[-4:]))]
    if size >= 2:
        return [(_word(data[:2]), data[-1])]
    return [(data[0], data[0])] if size else [(0, 0)]


def _pair(data: bytes, half: int) -> tuple[int, int]:
    return _word(data[:half]), _word(data[half:])


def _word(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _folded(a: int, b: int) -> int:
    full = a * b
    return (full & _MASK) ^ (full >> 64)


def _rotl(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


# --- compiled ---------------------------------------------------------------------------------------------------------

_M = np.uint64(MULTIPLE)
_R, _BACK = np.uint64(ROTATE), np.uint64(64 - ROTATE)
_RING = 64
_64, _63, _FF = np.uint64(64), np.uint64(63), np.uint64(0xFF)


@kernel
def _fold(a, b):  # type: ignore[no-untyped-def]
    low, high = product(a, b)
    return low ^ high


@kernel
def _rotated(value):  # type: ignore[no-untyped-def]
    return (value << _R) | (value >> _BACK)


@kernel
def _short(data, low, high):  # type: ignore[no-untyped-def]
    """Return the one pair of words that a string of up to 16 bytes is hashed as."""
    size = high - low
    if size > 8:
        return load64(data, low), load64(data, high - 8)
    if size >= 4:
        return load32(data, low), load32(data, high - 4)
    if size >= 2:
        return load16(data, low), np.uint64(data[high - 1])
    if size == 1:
        return np.uint64(data[low]), np.uint64(data[low])
    return np.uint64(0), np.uint64(0)


@kernel
def _write(state, keys, data, low, high):  # type: ignore[no-untyped-def]
    length = np.uint64(high - low)
    if high - low <= 16:
        a, b = _short(data, low, high)
        for s in range(len(state)):
            value = (state[s] + length) * _M
            value = _rotated((value + keys[0, s]) ^ _fold(a ^ keys[2, s], b ^ keys[3, s]))
            state[s] = _fold(_FF ^ value, _M)
        return
    _write_long(state, keys, data, low, high)


@kernel
def _write_known(state, keys, folded, length):  # type: ignore[no-untyped-def]
    """Write a string of up to 16 bytes like `_write`; `folded`, uint64[k], is independent of the state."""
    for s in range(len(state)):
        value = _rotated(((state[s] + length) * _M + keys[0, s]) ^ folded[s])
        state[s] = _fold(_FF ^ value, _M)


@kernel
def _step(state, a, b, pad, extra0, extra1):  # type: ignore[no-untyped-def]
    return _rotated((state + pad) ^ _fold(a ^ extra0, b ^ extra1))


@kernel
def _write_long(state, keys, data, low, high):  # type: ignore[no-untyped-def]
    """Write a string of more than 16 bytes like `_write`, for four seeds at a time, whose states stay in registers."""
    length = np.uint64(high - low)
    last, last_b = load64(data, high - 16), load64(data, high - 8)
    s = 0
    while s + 4 <= len(state):
        p0, p1, p2, p3 = keys[0, s], keys[0, s + 1], keys[0, s + 2], keys[0, s + 3]
        e0, e1, e2, e3 = keys[2, s], keys[2, s + 1], keys[2, s + 2], keys[2, s + 3]
        f0, f1, f2, f3 = keys[3, s], keys[3, s + 1], keys[3, s + 2], keys[3, s + 3]
        x0 = _step((state[s] + length) * _M, last, last_b, p0, e0, f0)
        x1 = _step((state[s + 1] + length) * _M, last, last_b, p1, e1, f1)
        x2 = _step((state[s + 2] + length) * _M, last, last_b, p2, e2, f2)
        x3 = _step((state[s + 3] + length) * _M, last, last_b, p3, e3, f3)
        at = low
        while high - at > 16:
            a, b = load64(data, at), load64(data, at + 8)
            x0 = _step(x0, a, b, p0, e0, f0)
            x1 = _step(x1, a, b, p1, e1, f1)
            x2 = _step(x2, a, b, p2, e2, f2)
            x3 = _step(x3, a, b, p3, e3, f3)
            at += 16
        state[s], state[s + 1], state[s + 2], state[s + 3] = x0, x1, x2, x3
        s += 4
    while s < len(state):
        x0 = _step((state[s] + length) * _M, last, last_b, keys[0, s], keys[2, s], keys[3, s])
        at = low
        while high - at > 16:
            x0 = _step(x0, load64(data, at), load64(data, at + 8), keys[0, s], keys[2, s], keys[3, s])
            at += 16
        state[s] = x0
        s += 1
    for s in range(len(state)):
        state[s] = _fold(_FF ^ state[s], _M)


@kernel
def _finish(state, keys, words, out, i, first_hash):  # type: ignore[no-untyped-def]
    mask = words - np.uint64(1)
    power = words & mask == np.uint64(0)
    for s in range(len(state)):
        value = _fold(state[s], keys[0, s])
        by = state[s] & _63
        value = (value << by) | (value >> ((_64 - by) & _63))
        if s == 0:
            first_hash[i] = value
        word = value >> np.uint64(5)
        word = word & mask if power else word % words
        out[i, s] = (word << np.uint64(5)) | (value & np.uint64(31))


def positions(
    data: Array,
    lows: Array,
    highs: Array,
    firsts: Array,
    counts: Array,
    keys: Array,
    words: Any,
    out: Array,
    first_hash: Array,
) -> None:
    """Compute the bits of every key in a filter of `words` words.

    Args:
        data: uint8, the text.
        lows, highs: int64[parts], begin and end of each part in `data`.
        firsts, counts: int64[n], the parts of each key.
        keys: uint64[4, k], the seeds after their constants.
        out: uint64[n, k], filled.
        first_hash: uint64[n], filled: the first hash of each key.
    """
    state = np.empty(keys.shape[1], np.uint64)
    # Keys of several parts overlap (n-grams), so the values that depend only on a part are cached for the next keys.
    ring, kept = np.empty((_RING, len(state)), np.uint64), np.full(_RING, -1, np.int64)
    _positions(data, lows, highs, firsts, counts, keys, words, out, first_hash, state, ring, kept)


@kernel(
    "u8[:], i64[:], i64[:], i64[:], i64[:], u64[:,:], u64, out u64[:,:], out u64[:], out u64[:], "
    "out u64[:,:], out i64[:]"
)
def _positions(data, lows, highs, firsts, counts, keys, words, out, first_hash, state, ring, kept):  # type: ignore[no-untyped-def]
    seeds = len(state)
    for i in range(len(firsts)):
        count, first = np.uint64(counts[i]), firsts[i]
        for s in range(seeds):
            state[s] = _fold(count ^ keys[1, s], _M)
        for part in range(first, first + counts[i]):
            low, high = lows[part], highs[part]
            if high - low > 16 or counts[i] == 1:
                _write(state, keys, data, low, high)
                continue
            at = part & (_RING - 1)
            if kept[at] != part:
                a, b = _short(data, low, high)
                for s in range(seeds):
                    ring[at, s] = _fold(a ^ keys[2, s], b ^ keys[3, s])
                kept[at] = part
            _write_known(state, keys, ring[at], np.uint64(high - low))
        _finish(state, keys, words, out, i, first_hash)


@kernel("out u32[:], u64[:,:], b[:], i64, out b[:]")
def look_up(words, bits, wanted, read_only, found):  # type: ignore[no-untyped-def]
    """Look up keys in order, and set the bits of those that the filter does not have.

    Args:
        words: uint32[W], changed unless `read_only`.
        bits: uint64[n, k].
        wanted: bool[n], true for keys to look up.
        found: bool[n], filled.
    """
    for i in range(len(bits)):
        found[i] = False
        if not wanted[i]:
            continue
        there = True
        for s in range(bits.shape[1]):
            bit = bits[i, s]
            if not (words[bit >> np.uint64(5)] >> np.uint32(bit & np.uint64(31))) & np.uint32(1):
                there = False
                break
        found[i] = there
        if not there and not read_only:
            for s in range(bits.shape[1]):
                bit = bits[i, s]
                words[bit >> np.uint64(5)] |= np.uint32(1) << np.uint32(bit & np.uint64(31))
