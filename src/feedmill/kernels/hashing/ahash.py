"""The fallback hash of aHash 0.8 (https://github.com/tkaitchuck/aHash), used by Dolma's Bloom filters.

A key is a list of strings. A hash is seeded with four 64-bit numbers; a filter has k such quadruples, so k hashes per
key. This is plain Python, the test oracle of `feedmill.kernels.hashing.ahash_compiled`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

CONSTANTS = (0x452821E638D01377, 0xBE5466CF34E90C6C, 0xC0AC29B7C97C50DD, 0x3F84D5B5B5470917)
MULTIPLE = 6364136223846793005
ROTATE = 23
_MASK = (1 << 64) - 1


def hash_key(parts: Sequence[bytes], seeds: Sequence[int]) -> int:
    """Return the hash of one key under one quadruple of seeds."""
    k0, k1, k2, k3 = (int(seed) ^ constant for seed, constant in zip(seeds, CONSTANTS, strict=True))
    state = _State(k1, k0, k2, k3)
    state.update(len(parts))
    for part in parts:
        state.write(part)
        state.update(0xFF)
    return _rotl(_fold(state.buffer, k0), state.buffer % 64)


def positions(keys: Sequence[Sequence[bytes]], seeds: npt.NDArray[np.uint64], words: int) -> npt.NDArray[np.uint64]:
    """Return the bit of each hash in a filter of `words` 32-bit words, uint64[keys, k]."""
    found = np.zeros((len(keys), len(seeds)), np.uint64)
    for i, key in enumerate(keys):
        for j, four in enumerate(seeds.tolist()):
            value = hash_key(key, four)
            found[i, j] = value // 32 % words * 32 + value % 32
    return found


def write_bytes(data: bytes, seeds: Sequence[int]) -> int:
    """Return the hash of a string as Rust hashes a ``str``: its bytes and 0xFF, without a count of strings."""
    k0, k1, k2, k3 = (int(seed) ^ constant for seed, constant in zip(seeds, CONSTANTS, strict=True))
    state = _State(k1, k0, k2, k3)
    state.write(data)
    state.update(0xFF)
    return _rotl(_fold(state.buffer, k0), state.buffer % 64)


class _State:
    def __init__(self, buffer: int, pad: int, extra0: int, extra1: int) -> None:
        self.buffer, self.pad, self.extra = buffer, pad, (extra0, extra1)

    def update(self, value: int) -> None:
        self.buffer = _fold(value ^ self.buffer, MULTIPLE)

    def large(self, a: int, b: int) -> None:
        combined = _fold(a ^ self.extra[0], b ^ self.extra[1])
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


def _fold(a: int, b: int) -> int:
    full = a * b
    return (full & _MASK) ^ (full >> 64)


def _rotl(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK
