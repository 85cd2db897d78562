"""How fast an iterator gives, for both sides of a comparison: needs nothing but Python and Linux."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

WARM = 8
"""Batches before the clock starts."""


def rate(batches: Iterator[float], seconds: float) -> dict[str, float]:
    """Per second of wall time, and per second of processor time of this process and all below it.

    Args:
        batches: what each batch counts for.
        seconds: how long to go on.
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
    # Below zero where processes that had worked are gone by now: then it is not known.
    return {"rate": done / taken, "cpu_rate": done / spent if spent > 0 else math.nan}


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """One pass after another."""
    while True:
        yield from loader


def below(process: int) -> list[int]:
    """The processes that a process has started, and so on."""
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *below(child)]
    return found


def processor_seconds() -> float:
    """Of this process and all below it; those that have ended are left out."""
    ticks = 0
    for process in [os.getpid(), *below(os.getpid())]:
        try:
            words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb() -> float:
    """MB that this process and all below it have for themselves, shared memory included, mapped files not."""
    total = 0
    for process in [os.getpid(), *below(os.getpid())]:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return total / 1e3
