"""The compiled loops of `feedmill.kernels.order.greedy`."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.native import njit


@njit()
def draw(weights, choice, limits):  # type: ignore[no-untyped-def]
    """Fill in the draws like `greedy._draw`. Counts are float64, which is exact here and avoids conversions."""
    drawn = np.zeros(len(weights))
    for t in range(len(choice)):
        now = max(np.float64(t), 1.0)
        best, most = 0, weights[0] * now - drawn[0] if drawn[0] < limits[0] else -np.inf
        for i in range(1, len(weights)):
            behind = weights[i] * now - drawn[i] if drawn[i] < limits[i] else -np.inf
            best = i if behind > most else best
            most = behind if behind > most else most
        choice[t] = best
        drawn[best] += 1.0
    return drawn


@njit()
def number(choice, next_number, numbers):  # type: ignore[no-untyped-def]
    """Give each draw the next number of its source; `next_number` is overwritten."""
    for t in range(len(choice)):
        source = choice[t]
        numbers[t] = next_number[source]
        next_number[source] += 1
