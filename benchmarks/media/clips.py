"""Time the clips of Feedmill or a peer, ``clips FOLDER CORES``, or random frames, ``frames FILE TOGETHER``."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
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


PICKED, RATE, LENGTH = 192, 30, 240
"""Frames that are read, frames a second and frames of a video."""


def timed_frames(read: Callable[[Sequence[int]], Sequence[Any]], together: int) -> dict[str, float]:
    """Return processor time for random frames of one video, and a sum of pixels that must be equal for all.

    Args:
        read: returns frames by their numbers, uint8[H, W, 3] each.
        together: frames in a call.
    """
    dice = random.Random(1)
    picked = [dice.randrange(LENGTH) for _ in range(PICKED)]
    read(picked[:1])  # not counted: imports and opening
    total, cpu = 0, time.process_time()
    for begin in range(0, PICKED, together):
        total += sum(int(frame[::16, ::16].sum()) for frame in read(picked[begin : begin + together]))
    return {"cpu": time.process_time() - cpu, "sum": total}
