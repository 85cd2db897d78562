"""The compiled steps of `feedmill.kernels.order.mersenne`."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import njit


@njit()
def swap_forward(order, first, words):  # type: ignore[no-untyped-def]
    """Run the steps like `mersenne._swap_forward`."""
    # n - i fits in 32 bits here, for which the remainder is cheapest.
    left = np.uint32(len(order) - first)
    for k in range(len(words)):
        step = first + k
        other = step + np.int64(words[k] % left)
        order[step], order[other] = order[other], order[step]
        left -= np.uint32(1)


@njit()
def swap_inside_out(order, first, words):  # type: ignore[no-untyped-def]
    """Run the steps like `mersenne._swap_inside_out`."""
    for k in range(len(words)):
        step = first + k
        word = (np.uint64(words[k, 0]) << np.uint64(32)) | np.uint64(words[k, 1])
        other = np.int64(word % np.uint64(step + 1))
        order[step] = order[other]
        order[other] = step


@njit()
def swap_back(values, step, words):  # type: ignore[no-untyped-def]
    """Run steps `step` and below of `mersenne.shuffle` while there are words. Return the next step, or 0 at the end."""
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
