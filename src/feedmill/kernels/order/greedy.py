"""Greedy blend of Megatron-LM and Nanotron: each draw goes to the source that is furthest behind its weight.

Draw ``t`` goes to the first source with the largest ``w_i * max(t, 1) - drawn_i``, in float64 with one multiplication
and one subtraction. With limits, sources that have been drawn as often as their limit are no longer considered.
Rounding decides ties, so draws must be computed one after another.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.kernels.bounds import bounds_of

COMPILED_FROM = 500_000
"""Minimum number of draws times sources for which the compiled kernel is worth its loading time."""


def greedy(
    weights: npt.NDArray[np.float64],
    draws: int,
    limits: npt.NDArray[np.int64] | None = None,
    *,
    compiled: bool | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the source of each draw, and the number of draws of each source.

    Args:
        weights: float64[sources], not normalized.
        draws: number of draws.
        limits: int64[sources], maximum draws of each, at least `draws` together; None for no limits.
        compiled: use the numba kernel; by default for many draws.

    Returns:
        Source numbers [draws], in the smallest unsigned type that can hold them, and counts, int64[sources].
    """
    choice = np.empty(draws, np.min_scalar_type(len(weights) - 1))
    if len(weights) == 1:
        choice[:] = 0
        return choice, np.array([draws], np.int64)
    if compiled is None:
        compiled = draws * len(weights) >= COMPILED_FROM
    most = np.full(len(weights), np.inf) if limits is None else limits.astype(np.float64)
    if compiled:
        from feedmill.kernels.order.greedy_compiled import draw

        return choice, draw(weights, choice, most).astype(np.int64)
    return choice, np.array(_draw(weights.tolist(), choice, most.tolist()), np.int64)


def _draw(weights: list[float], choice: npt.NDArray[Any], limits: list[float]) -> list[int]:
    """Fill in the draws in plain Python: the test oracle of the compiled kernel."""
    drawn = [0] * len(weights)
    sources = range(len(weights))
    for t in range(len(choice)):
        now = max(float(t), 1.0)
        behind = [weights[i] * now - drawn[i] if drawn[i] < limits[i] else -inf for i in sources]
        best = behind.index(max(behind))
        choice[t] = best
        drawn[best] += 1
    return drawn


def ranks(choice: npt.NDArray[Any], counts: npt.NDArray[np.int64], *, compiled: bool | None = None) -> npt.NDArray[Any]:
    """Return the number of each draw if draws were sorted by source: all of source 0 in order, then of source 1, ...

    Returns:
        A permutation, uint32[draws], or uint64[draws] for 2^32 draws or more.
    """
    numbers = np.empty(len(choice), np.uint32 if len(choice) <= 2**32 else np.uint64)
    next_number = bounds_of(counts[:-1])
    if compiled is None:
        compiled = len(choice) * len(counts) >= COMPILED_FROM
    if compiled and len(counts) > 1:
        from feedmill.kernels.order.greedy_compiled import number

        number(choice, next_number, numbers)
    else:
        numbers[np.argsort(choice, kind="stable")] = np.arange(len(choice), dtype=numbers.dtype)
    return numbers
