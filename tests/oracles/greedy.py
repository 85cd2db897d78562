"""Greedy draws in plain Python, see `feedmill.kernels.order.greedy`."""

from __future__ import annotations

from math import inf


def greedy(weights: list[float], draws: int, limits: list[float]) -> tuple[list[int], list[int]]:
    """Return the source of each draw, and the number of draws of each source."""
    choice, drawn = [], [0] * len(weights)
    for t in range(draws):
        now = max(float(t), 1.0)
        behind = [w * now - n if n < most else -inf for w, n, most in zip(weights, drawn, limits, strict=True)]
        choice.append(behind.index(max(behind)))
        drawn[choice[-1]] += 1
    return choice, drawn
