"""Reproduce two shuffles used by other tools, faster or without their libraries.

`randperm` is `torch.randperm` on the CPU without torch: a forward Fisher-Yates shuffle driven by MT19937 with its
classic seeding (Matsumoto and Nishimura 1998). Step ``i`` swaps ``i`` with ``i + word mod (n - i)``. From `LARGE` on
torch uses two words per step, the high one first, and builds the permutation inside out: step ``i`` stores ``i`` at
index ``j = words mod (i + 1)`` and the previous value of that index at index ``i``. The slight bias of remainders is
kept.

`shuffle` is numpy's `RandomState.shuffle`, which numpy has frozen: a backward Fisher-Yates shuffle in which step ``i``
swaps ``i`` with the next word that is at most ``i``, after truncating words to the number of bits of ``i``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import kernel

LARGE = (2**32 - 1) // 20
"""Minimum size for which torch uses its second rule."""

_CHUNK = 2**18


def randperm(n: int, seed: int) -> npt.NDArray[Any]:
    """Return the permutation of ``[0, n)`` that torch returns for a CPU generator with this seed.

    Takes 4 bytes per number (8 from 2^32 on), and about 2 s for 10^8.

    Args:
        n: number of values to permute.
        seed: any integer; the generator uses its lowest 32 bits.

    Returns:
        uint32[n] or uint64[n].
    """
    order = np.arange(n, dtype=np.uint32 if n <= 2**32 else np.uint64)
    generator = np.random.RandomState(seed & 0xFFFFFFFF)
    for first in range(0, n, _CHUNK):
        steps = min(_CHUNK, n - first)
        if n < LARGE:
            _swap_forward(order, first, _words(generator, steps))
        else:
            _swap_inside_out(order, first, _words(generator, 2 * steps).reshape(steps, 2))
    return order


def shuffle(values: npt.NDArray[Any], seed: int) -> None:
    """Shuffle an array in place as ``numpy.random.RandomState(seed).shuffle`` does.

    Args:
        values: one-dimensional array; it is overwritten.
        seed: 0 to 2^32 - 1.
    """
    generator = np.random.RandomState(seed)
    if len(values) > 2**32 or values.itemsize not in (4, 8):  # beyond 2^32 values, numpy draws 64 bits
        generator.shuffle(values)
        return
    bits, step = values.view(f"u{values.itemsize}"), len(values) - 1
    while step > 0:
        step = _swap_back(bits, step, _words(generator, _CHUNK))


def inverse(order: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the inverse of a permutation in the same type, without a second array of its size."""
    places = np.empty_like(order)
    for first in range(0, len(order), _CHUNK):
        part = order[first : first + _CHUNK]
        places[part] = np.arange(first, first + len(part), dtype=order.dtype)
    return places


def _words(generator: np.random.RandomState, count: int) -> npt.NDArray[np.uint32]:
    """Return the next outputs of the generator."""
    return generator.randint(0, 2**32, count, dtype=np.uint32)


@kernel("out u32[:], i64, u32[:]")
def _swap_forward(order, first, words):  # type: ignore[no-untyped-def]
    """Run the steps of the rule for small sizes."""
    # n - i fits in 32 bits here, for which the remainder is cheapest.
    left = np.uint32(len(order) - first)
    for k in range(len(words)):
        step = first + k
        other = step + np.int64(words[k] % left)
        order[step], order[other] = order[other], order[step]
        left -= np.uint32(1)


@kernel("out u32|u64[:], i64, u32[:,:]")
def _swap_inside_out(order, first, words):  # type: ignore[no-untyped-def]
    """Run the steps of the rule for large sizes."""
    for k in range(len(words)):
        step = first + k
        word = (np.uint64(words[k, 0]) << np.uint64(32)) | np.uint64(words[k, 1])
        other = np.int64(word % np.uint64(step + 1))
        order[step] = order[other]
        order[other] = step


@kernel("out u32|u64[:], i64, u32[:] -> i64")
def _swap_back(values, step, words):  # type: ignore[no-untyped-def]
    """Run steps `step` and below of `shuffle` while there are words. Return the next step, or 0 at the end."""
    mask = 1
    while mask < step:
        mask = 2 * mask + 1
    for k in range(len(words)):
        other = np.int64(words[k]) & mask
        if other <= step:
            values[step], values[other] = values[other], values[step]
            step -= 1
            if step == 0:
                break
            if step <= mask >> 1:
                mask >>= 1
    return step
