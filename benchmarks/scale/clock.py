"""Seconds of steps, and the memory of this process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Clock(dict[str, float]):
    """Numbers by name. A block of `step` adds its seconds, of wall time and of the processors."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a block."""
        begin, busy = time.perf_counter(), _busy()
        yield
        self[name] = time.perf_counter() - begin
        self[f"{name}_cpu"] = _busy() - busy


def _busy() -> float:
    """Return the processor seconds of this process and its children that have ended."""
    return sum(os.times()[:4])


def peak_mb() -> float:
    """Return the peak memory of this process in MB, mapped files included.

    `ru_maxrss` may be that of the parent, from before this program was loaded.
    """
    return _status("VmHWM")


def now_mb() -> float:
    """Return the memory of this process in MB without mapped files."""
    return _status("RssAnon")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1e3
