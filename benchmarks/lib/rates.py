"""Measure how fast an iterator yields batches, for Feedmill and its peers. Needs only Python and Linux."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

WARM = 8
"""Number of batches before the clock starts."""


def rate(batches: Iterator[float], seconds: float) -> dict[str, float]:
    """Return the rate per second of wall time, and per second of processor time of this process and its descendants.

    Args:
        batches: yields the count of each batch.
        seconds: duration of the measurement.
    """
    for _ in range(WARM):
        next(batches)
    done, begun, busy = 0.0, time.perf_counter(), processor_seconds()
    taken = 0.0
    for count in batches:
        done += count
        taken = time.perf_counter() - begun
        if taken > seconds:
            break
    spent = processor_seconds() - busy
    # The difference is negative if processes have exited meanwhile: the time is then unknown.
    return {"rate": done / taken, "cpu_rate": done / spent if spent > 0 else math.nan}


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Iterate a loader again and again."""
    while True:
        yield from loader


def below(process: int) -> list[int]:
    """Return the numbers of all descendants of a process."""
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *below(child)]
    return found


def processor_seconds() -> float:
    """Return the processor time of this process and its running descendants."""
    ticks = 0
    for process in [os.getpid(), *below(os.getpid())]:
        try:
            words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb() -> float:
    """Return the MB of anonymous and shared memory of this process and its descendants, without mapped files."""
    total = 0
    for process in [os.getpid(), *below(os.getpid())]:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return total / 1e3
