"""The number of available cores."""

from __future__ import annotations

import contextlib
import os


def available_cores() -> int:
    """Return the cores that this process may use: its affinity, and its container's quota (cgroup v2 ``cpu.max``)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/cpu.max") as f:
            quota, period = f.read().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores
