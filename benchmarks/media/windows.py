"""Time windows of robot videos, ``windows FOLDER WORKERS``: batches of 32, images float32 in [0, 1], channels first.

This module needs only Python and numpy: peers import it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

EPISODES, FRAMES, RATE = 6, 100, 30
CAMERAS = ("observation.images.top", "observation.images.wrist")
SECONDS = {
    CAMERAS[0]: [-0.1, 0.0], CAMERAS[1]: [0.0], "observation.state": [-0.1, 0.0],
    "action": [number / RATE for number in range(16)],
}  # fmt: skip
"""The windows: three images, two states and 16 actions a sample."""
WARM, BATCHES = 4, 18
"""Batches of an epoch that may be left out, since they pay for new memory and workers; and all of them."""


def timed_windows(start: Callable[[], Iterator[Mapping[str, Any]]], warm: int) -> dict[str, float]:
    """Return windows per second of processor time, workers included, and per second of wall time.

    Args:
        start: returns the batches of an epoch. What was done before, such as imports and opening, is not counted.
        warm: first batches that are not counted; 0 for a side that fills a buffer first.
    """
    began, cpu, count, batches = time.perf_counter(), _busy(), 0, start()
    for _ in range(warm):
        next(batches)
    if warm:
        began, cpu = time.perf_counter(), _busy()
    for _ in range(BATCHES - warm):
        batch = next(batches)
        count += len(batch["action"])
        assert tuple(batch["action"].shape[1:]) == (16, 6)
        assert tuple(batch[CAMERAS[0]].shape[1:]) == (2, 3, 480, 640) and "float32" in str(batch[CAMERAS[0]].dtype)
    wall = time.perf_counter() - began
    return {"windows": count, "per_cpu_s": count / (_busy() - cpu), "per_s": count / wall}


def _busy() -> float:
    """Return the processor time of this process and its children, which /proc knows while they run."""
    found = sum(part.ru_utime + part.ru_stime for part in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))
    children = [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    for pid in children:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found
