"""Measure whether copying batches to an accelerator lengthens a training step. Raises an error without an accelerator.

    python -m benchmarks.loading.transfer [--device cuda] [--step-ms 20] [--megabytes 64] [--steps 200]

A step computes for about `--step-ms` on the device, and two threads make batches of `--megabytes`. The same steps are
timed with a batch that is already on the device, with `device=`, and with a copy in the loop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

import feedmill as fm


class Ready:
    """A plan whose samples are rows of an array in memory, so nothing is read or decoded."""

    length, seed, fingerprint = None, 0, "ready"
    fingerprints: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, size: int) -> None:
        self._row = np.zeros(size, np.uint8)

    def read(self, positions: Any) -> list[Any]:
        """Return the row for each position."""
        return [{"x": self._row} for _ in positions]


def work(device: Any, milliseconds: float) -> Any:
    """Return a function that keeps the device busy for about `milliseconds`."""
    a = torch.randn(4096, 4096, device=device)

    def once(times: int) -> None:
        for _ in range(times):
            torch.mm(a, a)

    once(10)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    once(50)
    torch.cuda.synchronize()
    times = max(1, round(milliseconds / 1e3 / ((time.perf_counter() - begun) / 50)))
    return lambda: once(times)


def timed(batches: Iterable[Any], step: Any, steps: int) -> float:
    """Return the median milliseconds of a step, which ends when the device has finished it."""
    taken, stream = [], iter(batches)
    for _ in range(steps):
        begun = time.perf_counter()
        batch = next(stream)
        batch["x"].view(-1)[:1].add_(1)
        step()
        torch.cuda.synchronize()
        taken.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(taken[10:])


def copied(batches: Iterable[Any], device: Any) -> Iterator[Any]:
    """Yield batches copied to the device in the loop, without prefetching."""
    for batch in batches:
        yield {"x": batch["x"].to(device)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--step-ms", type=float, default=20)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    plan: Any = Ready(options.megabytes << 20 >> 6)
    common: dict[str, Any] = {"workers": 2, "output": "torch", "rank": 0, "world_size": 1}
    loader = fm.Loader(plan, 64, device=options.device, **common)  # raises a clear error if there is no such device
    step = work(options.device, options.step_ms)
    there = {"x": torch.zeros(64, 16, dtype=torch.uint8, device=options.device)}
    found = {
        "step_ms": timed(iter(lambda: there, None), step, options.steps),
        "with_device_ms": timed(loader, step, options.steps),
        "copied_in_the_loop_ms": timed(copied(fm.Loader(plan, 64, **common), options.device), step, options.steps),
        "transfer_ms": 1e3 * loader.metrics.seconds["transfer"] / loader.metrics.batches,
    }
    loader.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
