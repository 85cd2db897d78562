"""Time the reading and rewriting of token files, for Feedmill and its peers."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

BATCH, SECONDS = 64, 3.0
_WARM = 8
Work = Callable[[], object]


def loop(batches: Iterable[tuple[Any, Any]], tokens: int) -> dict[str, float]:
    """Return the rate at which a loop gets batches of inputs and targets, in M tokens per second and processor second.

    Both are used flat, as an embedding and torch's cross entropy use them: views of one batch are copied then.

    Args:
        batches: tensors of inputs and targets; checked and used.
        tokens: targets of a batch.
    """
    import torch

    torch.set_num_threads(1)  # the threads of a busy machine count time in which they only wait for each other
    used, begun, busy = 0, 0.0, 0.0
    for number, (inputs, targets) in enumerate(batches):
        assert inputs.shape == targets.shape and inputs.numel() == tokens
        used += int(inputs.reshape(-1)[0]) + int(targets.reshape(-1)[-1])
        if number == _WARM:
            begun, busy = time.perf_counter(), time.process_time()
        if number > _WARM and time.perf_counter() - begun > SECONDS:
            break
    done = (number - _WARM) * tokens / 1e6
    rates = {"rate": done / (time.perf_counter() - begun), "cpu": done / (time.process_time() - busy)}
    return {**rates, "used": float(used)}


def numbers(count: int) -> np.ndarray:
    """Return the numbers of the windows to read, in random order, int64[4096, batch]."""
    return np.random.default_rng(1).integers(0, count, (4096, BATCH))


def batches(read: Any, rows: np.ndarray, width: int) -> dict[str, float]:
    """Return tokens per second of whole batches."""
    for row in rows[:8]:
        read(row)
    begun, done = time.perf_counter(), 0
    for row in rows[8:]:
        read(row)
        done += BATCH * width
        if time.perf_counter() - begun > SECONDS:
            break
    return {"rate": done / (time.perf_counter() - begun) / 1e6}


def singles(dataset: Any, rows: np.ndarray, width: int) -> dict[str, float]:
    """Return tokens per second of single windows."""
    begun, done = time.perf_counter(), 0
    for number in rows.ravel().tolist():
        dataset[number]
        done += width
        if time.perf_counter() - begun > SECONDS:
            break
    return {"rate": done / (time.perf_counter() - begun) / 1e6}


def rewritten(
    prepare: Callable[[str, Path, Path], Work], what: str, source: str, target: str, runs: str
) -> dict[str, float]:
    """Return MB of tokens read per second: `first` for the first call after the imports, `mb_s` for the best other.

    Args:
        prepare: imports the required modules, and returns the call to time. The output is deleted before each run.
    """
    warnings.filterwarnings("ignore")
    shown = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the peers print progress
    data, output = Path(source), Path(target)
    work = prepare(what, data, output)
    size = sum(path.stat().st_size for path in data.glob("*.ds")) if data.is_dir() else data.stat().st_size
    size *= 2 if what == "merge" else 1
    rates = []
    for _ in range(int(runs)):
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir(parents=True)
        begin = time.perf_counter()
        work()
        rates.append(size / 1e6 / (time.perf_counter() - begin))
    os.dup2(shown, 1)
    return {"first": rates[0], "mb_s": max(rates[1:] or rates)}
