"""MurmurHash3_x64_128 with seed 0 (Appleby, public domain), hashes of keys with several parts, and a table of them.

Exact deduplication compares these hashes. With 128 bits, a billion keys collide by chance with probability 10^-21. The
hash does not resist deliberate collisions.
"""

from __future__ import annotations

import numpy as np

from feedmill.kernels.machine import load64
from feedmill.kernels.native import Array, kernel

_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_F1, _F2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_A, _B, _5 = np.uint64(0x52DCE729), np.uint64(0x38495AB5), np.uint64(5)
_33 = np.uint64(33)
_0 = np.uint64(0)


@kernel
def _rotl(value, by):  # type: ignore[no-untyped-def]
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


@kernel
def _block(h1, h2, k1, k2):  # type: ignore[no-untyped-def]
    h1 ^= _rotl(k1 * _C1, 31) * _C2
    h1 = (_rotl(h1, 27) + h2) * _5 + _A
    h2 ^= _rotl(k2 * _C2, 33) * _C1
    h2 = (_rotl(h2, 31) + h1) * _5 + _B
    return h1, h2


@kernel
def mix(k):  # type: ignore[no-untyped-def]
    k = (k ^ (k >> _33)) * _F1
    k = (k ^ (k >> _33)) * _F2
    return k ^ (k >> _33)


@kernel
def _finish(h1, h2, size):  # type: ignore[no-untyped-def]
    h1 ^= size
    h2 ^= size
    h1 += h2
    h2 += h1
    h1, h2 = mix(h1), mix(h2)
    h1 += h2
    return h1, h2 + h1


@kernel
def _tail(data, low, high):  # type: ignore[no-untyped-def]
    word = load64(data, low)  # mask the bytes after `high`
    size = high - low
    return word if size == 8 else word & ((np.uint64(1) << np.uint64(8 * size)) - np.uint64(1))


@kernel
def hash_bytes(data, low, high):  # type: ignore[no-untyped-def]
    """Return the two halves of the hash of bytes `low` to `high` of a uint8 array with 8 more bytes after them."""
    h1, h2 = _0, _0
    at = low
    while high - at >= 16:
        h1, h2 = _block(h1, h2, load64(data, at), load64(data, at + 8))
        at += 16
    if high - at > 8:
        h2 ^= _rotl(_tail(data, at + 8, high) * _C2, 33) * _C1
        h1 ^= _rotl(load64(data, at) * _C1, 31) * _C2
    elif high > at:
        h1 ^= _rotl(_tail(data, at, high) * _C1, 31) * _C2
    return _finish(h1, h2, np.uint64(high - low))


def hash_keys(data: Array, lows: Array, highs: Array, firsts: Array, counts: Array, out: Array) -> None:
    """Hash keys, with the arguments of `feedmill.kernels.hashing.ahash.positions`; out: uint64[n, 2], filled.

    The hash of a key is that of its parts, folded together half by half, which is cheap, because their hashes are
    already random. It is never (0, 0), which marks an empty slot in tables.
    """
    _hash_keys(data, lows, highs, firsts, counts, np.empty((len(lows), 2), np.uint64), out)


@kernel("u8[:], i64[:], i64[:], i64[:], i64[:], out u64[:,:], out u64[:,:]")
def _hash_keys(data, lows, highs, firsts, counts, parts, out):  # type: ignore[no-untyped-def]
    for i in range(len(lows)):
        parts[i, 0], parts[i, 1] = hash_bytes(data, lows[i], highs[i])
    for i in range(len(firsts)):
        h1, h2 = _0, _0
        for part in range(firsts[i], firsts[i] + counts[i]):
            h1 = _rotl((h1 ^ parts[part, 0]) * _C1, 29)
            h2 = _rotl((h2 ^ parts[part, 1]) * _C2, 31)
        h1, h2 = _finish(h1, h2, np.uint64(counts[i]))
        if h1 == _0 and h2 == _0:
            h2 = np.uint64(1)
        out[i, 0], out[i, 1] = h1, h2


@kernel("u64[:,:], out u64[:,:], i64, out b[:]")
def first_seen(keys, table, insert, found):  # type: ignore[no-untyped-def]
    """Look up keys in order. With `insert`, add those that are not in the table.

    Args:
        keys: uint64[n, 2].
        table: uint64[m, 2], where m is a power of two; empty slots are zeros, and the table is never full.
        found: bool[n], filled.
    """
    mask = np.uint64(len(table) - 1)
    for i in range(len(keys)):
        a, b = keys[i, 0], keys[i, 1]
        at = b & mask
        there = False
        while table[at, 0] != _0 or table[at, 1] != _0:
            if table[at, 0] == a and table[at, 1] == b:
                there = True
                break
            at = (at + np.uint64(1)) & mask
        found[i] = there
        if insert and not there:
            table[at, 0], table[at, 1] = a, b


def partition(keys: Array, shift: int, starts: Array, order: Array) -> None:
    """Compute a stable order of keys by the first bits of their first half.

    Args:
        keys: uint64[n, 2].
        shift: 64 minus the number of those bits.
        starts: int64[2^bits + 1], filled: the start of each part.
        order: uint32[n], filled.
    """
    _partition(keys, shift, starts, np.empty(len(starts) - 1, np.int64), order)


@kernel("u64[:,:], i64, out i64[:], out i64[:], out u32[:]")
def _partition(keys, shift, starts, nexts, order):  # type: ignore[no-untyped-def]
    by = np.uint64(shift)
    starts[:] = 0
    for i in range(len(keys)):
        starts[np.int64(keys[i, 0] >> by) + 1] += 1
    for p in range(1, len(starts)):
        starts[p] += starts[p - 1]
    for p in range(len(nexts)):
        nexts[p] = starts[p]
    for i in range(len(keys)):
        p = np.int64(keys[i, 0] >> by)  # type: ignore[assignment]
        order[nexts[p]] = i
        nexts[p] += 1
