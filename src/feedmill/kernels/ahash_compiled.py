"""The compiled form of `feedmill.kernels.ahash`: all hashes of many keys, and the bits of a Bloom filter.

For each key its parts are taken in turn, each part for all seeds: the chains of the seeds do not depend on each other,
so the processor works on several at once.
"""

from __future__ import annotations

import numba
import numpy as np

from feedmill.kernels.ahash import MULTIPLE, ROTATE
from feedmill.kernels.machine import load16, load32, load64, product

_M = np.uint64(MULTIPLE)
_R, _BACK = np.uint64(ROTATE), np.uint64(64 - ROTATE)
_64, _63, _FF = np.uint64(64), np.uint64(63), np.uint64(0xFF)


@numba.njit(nogil=True)
def _fold(a, b):  # type: ignore[no-untyped-def]
    low, high = product(a, b)
    return low ^ high


@numba.njit(nogil=True)
def _large(state, keys, a, b):  # type: ignore[no-untyped-def]
    for s in range(len(state)):
        value = (state[s] + keys[0, s]) ^ _fold(a ^ keys[2, s], b ^ keys[3, s])
        state[s] = (value << _R) | (value >> _BACK)


@numba.njit(nogil=True)
def _write(state, keys, data, low, high):  # type: ignore[no-untyped-def]
    size = high - low
    length = np.uint64(size)
    for s in range(len(state)):
        state[s] = (state[s] + length) * _M
    if size > 16:
        _large(state, keys, load64(data, high - 16), load64(data, high - 8))
        at = low
        while high - at > 16:
            _large(state, keys, load64(data, at), load64(data, at + 8))
            at += 16
    elif size > 8:
        _large(state, keys, load64(data, low), load64(data, high - 8))
    elif size >= 4:
        _large(state, keys, load32(data, low), load32(data, high - 4))
    elif size >= 2:
        _large(state, keys, load16(data, low), np.uint64(data[high - 1]))
    elif size == 1:
        _large(state, keys, np.uint64(data[low]), np.uint64(data[low]))
    else:
        _large(state, keys, np.uint64(0), np.uint64(0))
    for s in range(len(state)):
        state[s] = _fold(_FF ^ state[s], _M)


@numba.njit(cache=True, nogil=True)
def positions(data, lows, highs, firsts, counts, keys, words, out, first_hash):  # type: ignore[no-untyped-def]
    """The bits of every key in a filter of so many `words`.

    Args:
        data: uint8, the text; lows, highs: int64[parts], where each part lies in it.
        firsts, counts: int64[n], the parts of each key.
        keys: uint64[4, k], the seeds after their constants.
        out: uint64[n, k], filled. first_hash: uint64[n], the first hash itself, filled.
    """
    state = np.empty(keys.shape[1], np.uint64)
    mask = words - np.uint64(1)
    power = words & mask == np.uint64(0)
    for i in range(len(firsts)):
        count = np.uint64(counts[i])
        for s in range(len(state)):
            state[s] = _fold(count ^ keys[1, s], _M)
        for part in range(firsts[i], firsts[i] + counts[i]):
            _write(state, keys, data, lows[part], highs[part])
        for s in range(len(state)):
            value = _fold(state[s], keys[0, s])
            by = state[s] & _63
            value = (value << by) | (value >> ((_64 - by) & _63))
            if s == 0:
                first_hash[i] = value
            word = value >> np.uint64(5)
            word = word & mask if power else word % words
            out[i, s] = (word << np.uint64(5)) | (value & np.uint64(31))


@numba.njit(cache=True, nogil=True)
def look_up(words, bits, wanted, read_only, found):  # type: ignore[no-untyped-def]
    """Keys in turn: whether the filter has each, and its bits set where it has not.

    Args:
        words: uint32[W], changed unless `read_only`.
        bits: uint64[n, k]. wanted: bool[n], keys that are looked up at all. found: bool[n], filled.
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
