"""Generate trajectories of robots that reach for a point, with camera frames, in VLA Foundry's format, reproducibly."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.errors import MissingExtra
from feedmill.formats.tokens.vla_text import member_header
from feedmill.formats.vla.manifest import Row, manifest_text
from feedmill.storage import Store

PAST, FUTURE, SIDE = 2, 5, 48
CAMERAS, INDICES = ("top", "wrist"), (-1, 0)
ACTION, STATE = "robot__action__xy", "robot__actual__xy"
_STEPS, _BLOCK, _SHARDS = 24, 512, 3


def write_robots(store: Store, folder: str, episodes: int, *, speed: float, seed: int) -> int:
    """Write episodes of a robot that moves toward a target, one sample per third step. Return the number of samples.

    Args:
        speed: fraction of the way to the target that it moves per step.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    rng = np.random.default_rng(seed)
    samples = [sample for number in range(episodes) for sample in _episode(number, rng, speed)]
    rows = []
    for shard, numbers in enumerate(np.array_split(np.arange(len(samples)), _SHARDS)):
        name = f"shards/shard-{shard:06d}.tar"
        with store.write(f"{folder}/{name}") as out:
            for number in numbers.tolist():
                for part, data in samples[number]:
                    out.write(member_header(part, len(data)) + data + bytes(-len(data) % _BLOCK))
            out.write(bytes(2 * _BLOCK))
        rows.append(Row(name, len(numbers)))
    config = f"camera_names: {list(CAMERAS)}\nimage_indices: {list(INDICES)}\npast_lowdim_steps: {PAST}\n"
    store.write_bytes(f"{folder}/preprocessing_config.yaml", config.encode())
    store.write_bytes(f"{folder}/manifest.jsonl", manifest_text(rows))
    return len(samples)


def _episode(number: int, rng: np.random.Generator, speed: float) -> list[list[tuple[str, bytes]]]:
    """Return the samples of one episode, each as (member, bytes)."""
    at, target = rng.uniform(0.1, 0.9, 2), rng.uniform(0.1, 0.9, 2)
    path = [at]
    for _ in range(_STEPS):
        path.append(path[-1] + speed * (target - path[-1]) + rng.normal(0, 0.01, 2))
    points = np.array(path)
    moves = np.diff(points, axis=0)
    return [_sample(f"{number:04d}-{step:03d}", step, points[:-1], moves, target) for step in range(0, _STEPS, 3)]


def _sample(
    key: str, anchor: int, points: npt.NDArray[Any], moves: npt.NDArray[Any], target: npt.NDArray[Any]
) -> list[tuple[str, bytes]]:
    wanted = np.arange(anchor - PAST, anchor + FUTURE + 1)
    there = (wanted >= 0) & (wanted < len(points))
    steps = np.clip(wanted, 0, len(points) - 1)  # steps outside the episode are copies, as the masks show
    past = np.arange(len(wanted)) < PAST
    fields: dict[str, Any] = {
        ACTION: moves[steps],
        STATE: points[steps],
        "past_mask": there & past,
        "future_mask": there & ~past,
    }
    lowdim = io.BytesIO()
    np.savez_compressed(lowdim, **fields)
    parts = []
    for index in INDICES:
        hand = points[max(0, anchor + index)]
        for camera in CAMERAS:
            parts.append((f"{camera}_t{index}.jpg", _frame(hand, target, close=camera == "wrist")))
    parts.append(("lowdim.npz", lowdim.getvalue()))
    parts.append(("metadata.json", orjson.dumps({"anchor_relative_idx": PAST, "camera_names": list(CAMERAS)})))
    parts.append(("language_instructions.json", orjson.dumps({"original": ["reach the red point"]})))
    return [(f"{key}.{name}", data) for name, data in parts]


def _frame(hand: npt.NDArray[Any], target: npt.NDArray[Any], *, close: bool) -> bytes:
    """Return the scene from above, or a close-up of the hand, as JPEG."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("rendering frames needs Pillow", extra="media") from None
    middle, width = (hand, 0.5) if close else (np.array([0.5, 0.5]), 1.0)
    grid = (np.arange(SIDE) + 0.5) / SIDE - 0.5
    x, y = np.meshgrid(middle[0] + width * grid, middle[1] + width * grid)
    frame = np.full((SIDE, SIDE, 3), 235, np.uint8)
    for point, color, radius in ((target, (200, 40, 40), 0.07), (hand, (40, 60, 200), 0.05)):
        frame[(x - point[0]) ** 2 + (y - point[1]) ** 2 < radius**2] = color
    out = io.BytesIO()
    Image.fromarray(frame).save(out, "JPEG", quality=90)
    return out.getvalue()
