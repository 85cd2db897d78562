"""Greedy blend of Megatron-LM and Nanotron: each draw goes to the source that is furthest behind its weight.

Draw ``t`` goes to the first source with the largest ``w_i * max(t, 1) - drawn_i``, in float64 with one multiplication
and one subtraction. With limits, sources that have been drawn as often as their limit are no longer considered.
Rounding decides ties, so draws must be computed one after another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.native import kernel


def greedy(
    weights: npt.NDArray[np.float64],
    draws: int,
    limits: npt.NDArray[np.int64] | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the source of each draw, and the number of draws of each source.

    Args:
        weights: float64[sources], not normalized.
        draws: number of draws.
        limits: int64[sources], maximum draws of each, at least `draws` together; None for no limits.

    Returns:
        Source numbers [draws], in the smallest unsigned type that can hold them, and counts, int64[sources].
    """
    choice = np.empty(draws, np.min_scalar_type(len(weights) - 1))
    if len(weights) == 1:
        choice[:] = 0
        return choice, np.array([draws], np.int64)
    most = np.full(len(weights), np.inf) if limits is None else limits.astype(np.float64)
    drawn = np.zeros(len(weights))
    _draw(weights, choice, most, drawn)
    return choice, drawn.astype(np.int64)


def ranks(choice: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the number of each draw if draws were sorted by source: all of source 0 in order, then of source 1, ...

    Returns:
        A permutation, uint32[draws], or uint64[draws] for 2^32 draws or more.
    """
    numbers = np.empty(len(choice), np.uint32 if len(choice) <= 2**32 else np.uint64)
    _number(choice.view(f"u{choice.itemsize}"), bounds_of(counts[:-1]), numbers)
    return numbers


@kernel("f64[:], out u8|u16|u32[:], f64[:], out f64[:]")
def _draw(weights, choice, limits, drawn):  # type: ignore[no-untyped-def]
    """Fill in the draws. Counts are float64, which is exact here and avoids conversions."""
    for t in range(len(choice)):
        now = max(np.float64(t), 1.0)
        best, most = 0, weights[0] * now - drawn[0] if drawn[0] < limits[0] else -np.inf
        for i in range(1, len(weights)):
            behind = weights[i] * now - drawn[i] if drawn[i] < limits[i] else -np.inf
            best = i if behind > most else best
            most = behind if behind > most else most
        choice[t] = best
        drawn[best] += 1.0


@kernel("u8|u16|u32[:], out i64[:], out u32|u64[:]")
def _number(choice, next_number, numbers):  # type: ignore[no-untyped-def]
    """Give each draw the next number of its source; `next_number` is overwritten."""
    for t in range(len(choice)):
        source = choice[t]
        numbers[t] = next_number[source]
        next_number[source] += 1
