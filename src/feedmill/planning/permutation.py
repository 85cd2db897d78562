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

from feedmill.kernels.order.feistel import images as images_of

ORDER_VERSION = 1

_U64 = np.uint64
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB

Keys = int | npt.NDArray[np.uint64]
"""One key for all elements, or one per element: uint64."""
Sizes = int | npt.NDArray[np.int64]
"""One size of the range for all elements, or one per element: int64."""


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
    from _blake2 import blake2b  # that of `hashlib`, which loads OpenSSL: 2 ms of every start

    return int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "little")


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


def permute(positions: npt.NDArray[np.int64], n: Sizes, key: Keys) -> npt.NDArray[np.int64]:
    """Return the image of each position under the permutation of ``[0, n)``.

    Args:
        positions: int64[m], each in ``[0, n)``.
        n: size of the range, at most 2^63; or int64[m], one for each position.
        key: one key, or uint64[m].

    Returns:
        int64[m], each in ``[0, n)``.

    Raises:
        ValueError: a position is outside the range.
    """
    return _walk(positions, n, key, back=False)


def unpermute(images: npt.NDArray[np.int64], n: Sizes, key: Keys) -> npt.NDArray[np.int64]:
    """Return the inverse of `permute`; shapes are the same."""
    return _walk(images, n, key, back=True)


def _walk(values: npt.NDArray[np.int64], n: Sizes, key: Keys, *, back: bool) -> npt.NDArray[np.int64]:
    """Apply the network, and again to numbers that land outside the range."""
    source = np.ascontiguousarray(values).view(_U64)
    # As unsigned numbers, negative ones are out of range; cycle walking would not terminate for them.
    if isinstance(n, int):
        if len(source) and int(source.max()) >= n:
            raise ValueError(f"positions must be in [0, {n})")
        ranges = np.array([[n, *_radixes(n)]], _U64)
    else:
        sizes = n.view(_U64)
        if (source >= sizes).any():
            raise ValueError("positions must be in the range of their permutation")
        ranges = np.stack([sizes, *_radixes_of(sizes)], axis=1)
    keys = np.array([key], _U64) if isinstance(key, int) else key
    return images_of(source, ranges, keys, back=back).view(np.int64)


def _radixes(n: int) -> tuple[int, int]:
    """Return the radixes of the digits of numbers below `n`."""
    a = isqrt(max(n, 1) - 1) + 1
    a += a % 2  # with two odd radixes every round is an even permutation, and half of all orders would never occur
    return a, -(-n // a)


def _radixes_of(sizes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return `_radixes` of each size from 1 on, uint64[n] each."""
    last = sizes - _U64(1)
    root = np.sqrt(last.astype(np.float64)).astype(_U64)  # the rounded root is at most one away
    root -= root * root > last
    root += (root + _U64(1)) * (root + _U64(1)) <= last
    a = root + _U64(1)
    a += a & _U64(1)
    return a, (last // a) + _U64(1)
