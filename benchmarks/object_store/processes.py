"""Measure eight processes that share one cache: the bytes they fetch, their memory, and the disk space of the cache."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.lib.measure import Row, child
from benchmarks.object_store import data
from benchmarks.object_store.sides import TIMEOUT, cold, server

PROCESSES, BUDGET = 8, 256 << 20
"""Number of processes, and the default memory of each for reading ahead."""


def processes(repeat: int) -> Iterable[Row]:
    """Measure eight ranks of one run; eight runs that each read everything; and both with a cache of half the data."""
    path = data.samples()
    size = data.size(path)
    kinds = (
        ("eight ranks on one cache", True, 2 * size),
        ("eight runs on one cache", False, 2 * size),
        ("eight ranks, a cache of half the data", True, max(size // 2, 64 << 20)),
    )
    for what, ranks, limit in kinds:
        found = [_together(path, ranks, limit) for _ in range(repeat)]
        numbers = {name: [one[name] for one in found] for name in found[0]}
        rate = sum(numbers["rate"]) / len(found)
        note = f"{numbers['requests'][0]:.0f} requests; {rate:,.0f} samples/s together"
        fits = limit >= size
        share = [mb * 1e6 / size for mb in numbers["mb"]]
        part = "bucket-processes"
        yield Row(
            part, f"{what}: bytes fetched / bytes of the data", "x", share, bound=1.02 if fits else None, note=note
        )
        if fits:
            yield Row(
                part, "  bytes of objects fetched again", "MB", numbers["again_mb"], bound=round(size * 0.001 / 1e6, 1)
            )
        yield Row(part, "  growth of the largest process", "MB", numbers["memory"], bound=round(BUDGET / 1e6))
        yield Row(part, "  disk", "MB", numbers["disk"], bound=limit / 1e6, note="the most there was, by blocks")


def _together(path: Path, ranks: bool, limit: int) -> dict[str, Any]:
    """Return one measurement of all processes, at 20 ms."""
    with cold(20) as (folder, variables):
        variables["FEEDMILL_CACHE_SIZE"] = str(limit)
        environment = {**os.environ, **variables}
        mark = server().mark()

        def one(number: int) -> dict[str, Any]:
            words = (data.url(path), number, PROCESSES) if ranks else (data.url(path), 0, 1)
            module = "object_store.peers.feedmill"
            return child(sys.executable, module, "rank", *words, env=environment, timeout=TIMEOUT)

        disk = 0
        with ThreadPoolExecutor(PROCESSES) as pool:
            running = [pool.submit(one, number) for number in range(PROCESSES)]
            while not all(each.done() for each in running):
                disk = max(disk, _allocated(folder / "cache"))
                time.sleep(0.1)
        found = [each.result() for each in running]
        disk = max(disk, _allocated(folder / "cache"))
        traffic = server().since(mark)
    expected = data.SAMPLES * (1 if ranks else PROCESSES)
    assert sum(each["samples"] for each in found) == expected, "the processes did not get every sample once"
    return {
        "requests": traffic.requests,
        "mb": traffic.bytes / 1e6,
        "again_mb": traffic.again / 1e6,
        "memory": max(each["memory"] for each in found),
        "disk": disk / 1e6,
        "rate": sum(each["rate"] for each in found),
    }


def _allocated(folder: Path) -> int:
    """Return the bytes of the disk blocks of the files in a folder."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
