"""What a sample has, what both sides make of it, and how that is timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

SECONDS, FIRST = 6.0, 4
ACTIONS, STATE, OTHERS = ("action_xyz", "action_rot"), ("actual_xyz", "actual_rot", "actual_grip"), 7
PAST, FUTURE = 2, 13
IMAGES = ("left_t-1", "wrist_t-1", "left_t0", "wrist_t0")


def rate(batches: Iterator[Any], size: int, check: Any) -> dict[str, float]:
    """Samples per second once the first batches are there."""
    for _ in range(FIRST):
        check(next(batches))
    begun, done = time.perf_counter(), 0
    for batch in batches:
        done += size
        check(batch)
        if time.perf_counter() - begun > SECONDS:
            break
    return {"rate": done / (time.perf_counter() - begun)}


def check_pth(batch: Any) -> None:
    """That the tensors are there."""
    ids = batch["input_ids.pth"] if isinstance(batch, dict) else [one["input_ids.pth"] for one in batch]
    assert len(ids) == 64 and len(ids[0]) == 512


def check_robotics(batch: Any) -> None:
    """That all of a batch is there."""
    assert batch["actions"].shape == (32, PAST + FUTURE + 1, 9) and batch["proprioception"].shape == (32, PAST + 1, 10)
    assert batch["pixel_values"].shape[:2] == (32, len(IMAGES))
