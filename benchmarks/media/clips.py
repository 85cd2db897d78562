"""Time the clips of Feedmill or a peer: ``clips FOLDER CORES``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECONDS, COUNT = 1.0, 5
Clips = Iterator[tuple[Any, list[Any]]]


def timed(decode: Callable[[Path, int], Clips], path: str, cores: str) -> dict[str, float]:
    """Return videos per second, processor time, and frames and a sum of pixels that must be equal for all.

    Args:
        decode: decodes the clips of a folder of videos on a number of cores.
        path: the folder.
        cores: the number of cores.
    """
    used = sorted(os.sched_getaffinity(0))[: int(cores)]
    os.sched_setaffinity(0, used)
    stream = decode(Path(path), len(used))
    next(stream)  # not counted: imports and the first file
    videos, frames, total, begin, cpu = 0, 0, 0, time.perf_counter(), time.process_time()
    for _, clips in stream:
        videos += 1
        frames += sum(len(clip) for clip in clips)
        total += sum(int(clip[::7, 1, ::16, ::16].sum()) for clip in clips)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return {"per_s": videos / seconds, "cpu": cpu, "frames": frames, "sum": total}
