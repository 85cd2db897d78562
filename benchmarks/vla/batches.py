"""The samples and batches that Feedmill and the peer must produce, and how they are timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

SECONDS, FIRST = 6.0, 4
ACTIONS, STATE, OTHERS = ("action_xyz", "action_rot"), ("actual_xyz", "actual_rot", "actual_grip"), 7
PAST, FUTURE = 2, 13
IMAGES = ("left_t-1", "wrist_t-1", "left_t0", "wrist_t0")


def rate(batches: Iterator[Any], size: int, check: Any) -> dict[str, float]:
    """Return samples per second after the first batches."""
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
    """Check that a batch has its tensors."""
    ids = batch["input_ids.pth"] if isinstance(batch, dict) else [one["input_ids.pth"] for one in batch]
    assert len(ids) == 64 and len(ids[0]) == 512


def check_robotics(batch: Any) -> None:
    """Check that a batch has all of its fields."""
    assert batch["actions"].shape == (32, PAST + FUTURE + 1, 9) and batch["proprioception"].shape == (32, PAST + 1, 10)
    assert batch["pixel_values"].shape[:2] == (32, len(IMAGES))
