"""Keyed bijections on ``[0, n)``: shuffles that need no memory, with random access in both directions.

A number is split into two digits ``(left, right)`` of the mixed radix ``a x b >= n``, with ``a = ceil(sqrt n)`` made
even and ``b = ceil(n / a)``. An alternating Feistel network adds a keyed hash of one digit to the other, modulo that
digit's radix. The result is a bijection on ``[0, a*b)``. The fewer than ``a`` numbers that land in ``[n, a*b)`` are
permuted again until they fall inside ("cycle walking"), which makes it a bijection on ``[0, n)``. Every step is
invertible, so the inverse costs the same.

Sources: Luby and Rackoff 1988 and Patarin 2010 (rounds), Black and Rogaway 2002 (unbalanced digits, cycle walking),
Lemire 2019 (range reduction by multiply and shift), Steele, Lea and Flood 2014 (splitmix64). This shuffle is for
statistical purposes and is not a cipher.

Any change of the values that these functions return changes the order of every plan. It requires a new `ORDER_VERSION`,
which is part of every plan's fingerprint.
"""

from __future__ import annotations

from math import isqrt
from typing import overload

import numpy as np
import numpy.typing as npt

ORDER_VERSION = 1

_ROUNDS = 8
_ROUNDS_SMALL = 24  # small ranges have few numbers to hash: 8 rounds would visibly favor some permutations
_SMALL = 1024
_CHUNK = 16_384  # 128 KiB per buffer: four buffers fit into the L2 cache
_U64 = np.uint64
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_HALF = _U64(32)

Keys = int | npt.NDArray[np.uint64]
"""One key for all elements, or one per element: uint64."""


def derive(seed: int, *words: int | str) -> int:
    """Return a 64-bit key derived from a seed and words. It is the same on every platform and Python version.

    The key is the 8-byte BLAKE2b digest, read as a little-endian number, of the seed and the words in sequence: an
    integer as ``i<decimal>;``, a string as ``s<length in bytes>:<UTF-8>;``.

    >>> derive(7, "shuffle", "docs") == derive(7, "shuffle", "docs") != derive(8, "shuffle", "docs")
    True
    """
    parts = []
    for word in (seed, *words):
        if isinstance(word, str):
            text = word.encode("utf-8", "surrogatepass")
            parts.append(b"s%d:%s;" % (len(text), text))
        else:
            parts.append(b"i%d;" % word)
    import hashlib

    return int.from_bytes(hashlib.blake2b(b"".join(parts), digest_size=8).digest(), "little")


@overload
def branch(key: int, number: int) -> int: ...


@overload
def branch(key: Keys, number: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]: ...


@overload
def branch(key: Keys, number: int | npt.NDArray[np.int64]) -> Keys: ...


def branch(key: Keys, number: int | npt.NDArray[np.int64]) -> Keys:
    """Return the key's `number`-th child key, e.g. one per epoch or window; an array of either gives uint64[n].

    Output `number` of the splitmix64 generator that starts at `key`.
    """
    if isinstance(key, int) and isinstance(number, int):
        z = (key + (number + 1) * _GOLDEN) & _MASK
        z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
        z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
        return z ^ (z >> 31)
    keys: npt.NDArray[np.uint64]
    if isinstance(number, int):
        keys = np.add(key, _U64((number + 1) * _GOLDEN & _MASK))
    else:
        keys = (number.view(_U64) + _U64(1)) * _U64(_GOLDEN) + (_U64(key) if isinstance(key, int) else key)
    keys = (keys ^ (keys >> _U64(30))) * _U64(_MIX_1)
    keys = (keys ^ (keys >> _U64(27))) * _U64(_MIX_2)
    keys ^= keys >> _U64(31)
    return keys


def permute(positions: npt.NDArray[np.int64], n: int, key: Keys) -> npt.NDArray[np.int64]:
    """Return the image of each position under the permutation of ``[0, n)``.

    Args:
        positions: int64[m], each in ``[0, n)``.
        n: size of the range, at most 2^63.
        key: one key, or uint64[m].

    Returns:
        int64[m], each in ``[0, n)``.

    Raises:
        ValueError: a position is outside the range.
    """
    return _walk(positions, n, key, back=False)


def unpermute(images: npt.NDArray[np.int64], n: int, key: Keys) -> npt.NDArray[np.int64]:
    """Return the inverse of `permute`; shapes are the same."""
    return _walk(images, n, key, back=True)


_FEW = 8
"""Values up to which `_walk` does without arrays."""


def _walk(values: npt.NDArray[np.int64], n: int, key: Keys, *, back: bool) -> npt.NDArray[np.int64]:
    """Apply the network chunk by chunk, and again to whatever lands outside ``[0, n)``."""
    source = np.ascontiguousarray(values).view(_U64)
    # As unsigned numbers, negative ones are out of range; cycle walking would not terminate for them.
    if len(source) and int(source.max()) >= n:
        raise ValueError(f"positions must be in [0, {n})")
    if n <= 1:
        return values.copy()
    a = isqrt(n - 1) + 1
    a += a % 2  # with two odd radixes every round is an even permutation, and half of all orders would never occur
    b = -(-n // a)
    rounds = range(_ROUNDS_SMALL if n < _SMALL else _ROUNDS)
    if len(values) <= _FEW:
        several = [key] * len(values) if isinstance(key, int) else key.tolist()
        pairs = zip(source.tolist(), several, strict=True)
        return np.array([_walk_one(x, n, a, b, one, rounds, back=back) for x, one in pairs], _U64).view(np.int64)
    limit = _U64(n)
    out = np.empty(len(values), _U64)
    for start in range(0, len(values), _CHUNK):
        part = slice(start, start + _CHUNK)
        keys = key if isinstance(key, int) else key[part]
        result = _network(source[part], a, b, keys, rounds, back)
        if a * b > n:
            outside = np.flatnonzero(result >= limit)
            while len(outside):
                again = keys if isinstance(keys, int) else keys[outside]
                moved = _network(result[outside], a, b, again, rounds, back)
                result[outside] = moved
                outside = outside[moved >= limit]
        out[part] = result
    return out.view(np.int64)


def _walk_one(x: int, n: int, a: int, b: int, key: int, rounds: range, *, back: bool) -> int:
    """Return the result of `_walk` for one value: for a few values, Python's numbers are faster than arrays."""
    while True:
        left, right = divmod(x, b)
        for number in reversed(rounds) if back else rounds:
            even = number % 2 == 0
            other, radix = (right, a) if even else (left, b)
            noise = (other + key + (number + 1) * _GOLDEN) * _MIX_1 & _MASK
            noise = ((noise ^ noise >> 32) * _MIX_2 & _MASK) >> 32
            noise = noise * radix >> 32
            digit = ((left if even else right) + (radix - noise if back else noise)) % radix
            left, right = (digit, right) if even else (left, digit)
        x = left * b + right
        if x < n:
            return x


def _network(x: npt.NDArray[np.uint64], a: int, b: int, key: Keys, rounds: range, back: bool) -> npt.NDArray[np.uint64]:
    """Return the images of numbers in ``[0, a * b)``, or with `back` the numbers of images, uint64[n]."""
    radix_a, radix_b = _U64(a), _U64(b)
    left = x // radix_b
    right = x - left * radix_b
    noise, spare = np.empty_like(left), np.empty_like(left)
    for number in reversed(rounds) if back else rounds:
        digit, other, radix = (left, right, radix_a) if number % 2 == 0 else (right, left, radix_b)
        _hash(other, _round_key(key, number), radix, noise, spare)
        # Unsigned numbers wrap around below zero, so the smaller value is the one in range.
        if back:
            digit -= noise
            np.add(digit, radix, out=spare)
        else:
            digit += noise
            np.subtract(digit, radix, out=spare)
        np.minimum(digit, spare, out=digit)
    left *= radix_b
    left += right
    return left


def _round_key(key: Keys, number: int) -> npt.NDArray[np.uint64] | np.uint64:
    step = (number + 1) * _GOLDEN & _MASK
    return _U64((key + step) & _MASK) if isinstance(key, int) else key + _U64(step)


def _hash(
    digit: npt.NDArray[np.uint64],
    key: npt.NDArray[np.uint64] | np.uint64,
    radix: np.uint64,
    out: npt.NDArray[np.uint64],
    spare: npt.NDArray[np.uint64],
) -> None:
    """Hash a digit with a key to a number in ``[0, radix)``, into `out`; the upper 32 bits are scaled down."""
    np.add(digit, key, out=out)
    out *= _U64(_MIX_1)
    np.right_shift(out, _HALF, out=spare)
    out ^= spare
    out *= _U64(_MIX_2)
    out >>= _HALF
    out *= radix
    out >>= _HALF
