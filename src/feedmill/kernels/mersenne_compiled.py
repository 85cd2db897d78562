"""The compiled steps of `feedmill.kernels.mersenne.randperm`."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def swap_forward(order, first, words):  # type: ignore[no-untyped-def]
    """As `mersenne._swap_forward`."""
    # All of n - i fits 32 bits here, where the remainder is cheapest.
    left = np.uint32(len(order) - first)
    for k in range(len(words)):
        step = first + k
        other = step + np.int64(words[k] % left)
        order[step], order[other] = order[other], order[step]
        left -= np.uint32(1)


@numba.njit(cache=True, nogil=True)
def swap_inside_out(order, first, words):  # type: ignore[no-untyped-def]
    """As `mersenne._swap_inside_out`."""
    for k in range(len(words)):
        step = first + k
        word = (np.uint64(words[k, 0]) << np.uint64(32)) | np.uint64(words[k, 1])
        other = np.int64(word % np.uint64(step + 1))
        order[step] = order[other]
        order[other] = step
