"""Time windows of robot videos, ``windows FOLDER WORKERS``: batches of 32, images float32 in [0, 1], channels first.

This module needs only Python and numpy: peers import it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

EPISODES, FRAMES, RATE = 6, 100, 30
CAMERAS = ("observation.images.top", "observation.images.wrist")
SECONDS = {
    CAMERAS[0]: [-0.1, 0.0], CAMERAS[1]: [0.0], "observation.state": [-0.1, 0.0],
    "action": [number / RATE for number in range(16)],
}  # fmt: skip
"""The windows: three images, two states and 16 actions a sample."""
BATCHES, FEW = 18, 4
"""Batches that are measured: those of an epoch, or few of a side that would take minutes."""


def timed_windows(start: Callable[[], Iterator[Mapping[str, Any]]], number: int = BATCHES) -> dict[str, float]:
    """Return windows per second of processor time, workers included, and per second of wall time.

    Args:
        start: returns the batches of an epoch. What was done before, such as imports and opening, is not counted.
    """
    began, cpu, count = time.perf_counter(), _busy(), 0
    batches = start()
    for _ in range(number):
        batch = next(batches)
        count += len(batch["action"])
        assert tuple(batch["action"].shape[1:]) == (16, 6)
        assert tuple(batch[CAMERAS[0]].shape[1:]) == (2, 3, 480, 640) and "float32" in str(batch[CAMERAS[0]].dtype)
    wall = time.perf_counter() - began
    del batches, batch  # ends the workers, whose time counts then
    return {"windows": count, "per_cpu_s": count / (_busy() - cpu), "per_s": count / wall}


def _busy() -> float:
    return sum(part.ru_utime + part.ru_stime for part in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))
