"""Apply keyed permutations of ranges, each value with its own range and key: `planning.permutation` describes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import kernel

_ROUNDS = 8
_ROUNDS_SMALL = 24  # small ranges have few numbers to hash: 8 rounds would visibly favor some permutations
_SMALL = 1024
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)

Uint64s = npt.NDArray[np.uint64]


def images(values: Uint64s, ranges: Uint64s, keys: Uint64s, *, back: bool) -> Uint64s:
    """Return the images of values, or with `back` the values of images, uint64[n].

    Args:
        values: uint64[n], each below its range.
        ranges: uint64[n, 3] or uint64[1, 3] for all: size of the range and its two radixes.
        keys: uint64[n], or uint64[1] for all.
    """
    out = np.empty(len(values), np.uint64)
    _images(values, ranges, keys, back, out)
    return out


@kernel("u64[:], u64[:,:], u64[:], i64, out u64[:]")
def _images(values, ranges, keys, back, out):  # type: ignore[no-untyped-def]
    """See `images`."""
    each_range, each_key = 1 if len(ranges) > 1 else 0, 1 if len(keys) > 1 else 0
    for place in range(len(values)):
        at = place * each_range
        size, a, b = ranges[at, 0], ranges[at, 1], ranges[at, 2]
        key, x = keys[place * each_key], values[place]
        if size > np.uint64(1):
            if back:
                x = _number(x, a, b, key, size)
                while x >= size:
                    x = _number(x, a, b, key, size)
            else:
                x = _image(x, a, b, key, size)
                while x >= size:
                    x = _image(x, a, b, key, size)
        out[place] = x


@kernel
def _image(x, a, b, key, size):  # type: ignore[no-untyped-def]
    """Return the image of a number in ``[0, a * b)``."""
    left = x // b
    right = x - left * b
    for _ in range((_ROUNDS_SMALL if size < np.uint64(_SMALL) else _ROUNDS) // 2):
        key += _GOLDEN
        left += _noise(right, key, a)
        left = left - a if left >= a else left
        key += _GOLDEN
        right += _noise(left, key, b)
        right = right - b if right >= b else right
    return left * b + right


@kernel
def _number(x, a, b, key, size):  # type: ignore[no-untyped-def]
    """Return the number of an image in ``[0, a * b)``."""
    left = x // b
    right = x - left * b
    rounds = _ROUNDS_SMALL if size < np.uint64(_SMALL) else _ROUNDS
    key += np.uint64(rounds) * _GOLDEN
    for _ in range(rounds // 2):
        noise = _noise(left, key, b)
        right = right - noise if right >= noise else right + b - noise
        key -= _GOLDEN
        noise = _noise(right, key, a)
        left = left - noise if left >= noise else left + a - noise
        key -= _GOLDEN
    return left * b + right


@kernel
def _noise(digit, key, radix):  # type: ignore[no-untyped-def]
    """Hash a digit with a key to a number in ``[0, radix)``; the upper 32 bits are scaled down."""
    word = (digit + key) * _MIX_1
    word = (word ^ (word >> _HALF)) * _MIX_2
    return ((word >> _HALF) * radix) >> _HALF
