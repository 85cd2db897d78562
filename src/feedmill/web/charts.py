"""Coordinates of drawings: histograms, lines, stacked shares. All are SVG in fixed boxes, without styles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

BINS = 24
_LONG_TAIL = 50  # a largest value of more than N medians is drawn on a log scale
_PITCH, _BAR, _HEIGHT = 100 / BINS, 100 / BINS * 0.834, 32.0

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]


def histogram(values: Numbers) -> dict[str, Any]:
    """Return a histogram as plain data: the range, whether its scale is logarithmic, and bars with their place.

    Args:
        values: [n], at least one.
    """
    low, high = float(values.min()), float(values.max())
    if low == high:
        return {"low": _rounded(low), "high": _rounded(high), "log": False, "bars": [], "samples": len(values)}
    log = low >= 0 and high > _LONG_TAIL * max(float(np.median(values)), 1e-9) and high > 1
    edges = _edges(low, high, log, np.issubdtype(values.dtype, np.integer))
    counts = np.histogram(values, edges)[0]
    top, bars = max(int(counts.max()), 1), []
    width = 100 / len(counts)
    for number, count in enumerate(counts.tolist()):
        first, last = edges[number], edges[number + 1]
        tall = _HEIGHT * count / top
        tall = max(tall, 1.0) if count else 0.0
        bars.append(
            {
                "x": round(number * width + width * 0.083, 2),
                "y": round(33 - tall, 1),
                "width": round(width * 0.834, 2),
                "height": round(tall, 1),
                "low": _rounded(first),
                "high": _rounded(last),
                "count": count,
                "chosen": False,
            }
        )
    return {"low": _rounded(low), "high": _rounded(high), "log": log, "bars": bars, "samples": len(values)}


def with_chosen(drawing: dict[str, Any], low: float | None, high: float | None) -> dict[str, Any]:
    """Return a histogram with the bars marked that have values from `low` to `high`; None where the range is open."""
    if low is None and high is None:
        return drawing
    bars = [
        {**bar, "chosen": (low is None or bar["high"] > low) and (high is None or bar["low"] <= high)}
        for bar in drawing["bars"]
    ]
    return {**drawing, "bars": bars}


def _edges(low: float, high: float, log: bool, whole: bool) -> npt.NDArray[np.float64]:
    if log:
        return np.concatenate(([low], np.geomspace(max(low, high / 10**6, 1.0), high, BINS)[1:]))
    count = min(BINS, int(high - low) + 1) if whole else BINS
    return np.linspace(low, high, count + 1)


def _rounded(value: Any) -> float | int:
    number = float(value)
    return int(number) if number.is_integer() else float(f"{number:.6g}")


def path(points: Sequence[tuple[float, float]]) -> str:
    """Return the ``d`` of a line through points."""
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else ""


def stacked(shares: npt.NDArray[np.float64], width: float, height: float) -> list[str]:
    """Return the polygon of each row of shares, float64[sources, windows], stacked to the whole height."""
    windows = shares.shape[1]
    tops = np.vstack([np.zeros(windows), np.cumsum(shares, axis=0)])
    tops = height - tops * height
    x = (np.arange(windows) + 0.5) * width / windows
    x = np.concatenate(([0.0], x, [width]))
    found = []
    for lower, upper in pairwise(tops):
        rows = [np.concatenate((row[:1], row, row[-1:])) for row in (upper, lower)]
        there = zip(x, rows[0], strict=True)
        back = zip(x[::-1], rows[1][::-1], strict=True)
        found.append(" ".join(f"{a:.1f},{b:.1f}" for a, b in [*there, *back]))
    return found


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round values between two bounds, about `count` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]
