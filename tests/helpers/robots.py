"""LeRobot datasets of made-up robots: any rate, width, names and cameras, and their numbers beside."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(slots=True)
class Robot:
    """A dataset and its numbers: an array [T, D] for each episode, by column."""

    path: Path
    fps: float
    lengths: list[int]
    columns: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)


def write_robot(
    root: Path,
    *,
    fps: float = 10,
    lengths: Sequence[int] = (7, 12, 5),
    width: int = 3,
    state: int | None = None,
    action: str = "action",
    seed: int = 0,
    scale: float = 1.0,
    dimensions: Sequence[str] | None = None,
    cameras: Mapping[str, tuple[int, int]] | None = None,
    video: bool = False,
    extra: Mapping[str, Sequence[Any]] | None = None,
    episodes: Mapping[str, Sequence[Any]] | None = None,
    language: Sequence[tuple[Any, Any]] | None = None,
    values: Mapping[str, Sequence[npt.NDArray[Any]]] | None = None,
) -> Robot:
    """Write a dataset of version 3 with one data file for every two episodes.

    Args:
        action: name of the column of actions; that of states is ``observation.state``.
        dimensions: names of the actions' dimensions.
        cameras: name -> height and width; pictures in columns, or videos.
        extra: columns with one value a frame.
        episodes: columns of ``meta/episodes``.
        language: for each frame ``language_persistent`` and ``language_events``.
        values: numbers of columns by episode, instead of random ones.
    """
    rng = np.random.default_rng(seed)
    counts, total = list(lengths), sum(lengths)
    robot = Robot(root, fps, counts)
    for name, size in ((action, width), ("observation.state", width if state is None else state)):
        robot.columns[name] = [
            (rng.normal(size=(count, size)) * scale + np.arange(size)).astype(np.float32) for count in counts
        ]
    robot.columns |= {name: list(arrays) for name, arrays in (values or {}).items()}
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    features: dict[str, Any] = {
        name: {"dtype": "float32", "shape": [arrays[0].shape[1]], "names": None}
        for name, arrays in robot.columns.items()
    }
    if dimensions is not None:
        features[action]["names"] = list(dimensions)
    table: dict[str, Any] = {
        name: pa.array([row.tolist() for array in arrays for row in array], pa.list_(pa.float32()))
        for name, arrays in robot.columns.items()
    }
    whole = {"episode_index": np.repeat(np.arange(len(counts)), counts), "index": np.arange(total)}
    whole["frame_index"] = np.concatenate([np.arange(count) for count in counts]) if counts else np.zeros(0, int)
    whole["task_index"] = np.zeros(total, np.int64)
    for name, numbers in whole.items():
        table[name] = pa.array(numbers, pa.int64())
        features[name] = {"dtype": "int64", "shape": [1], "names": None}
    table["timestamp"] = pa.array(whole["frame_index"] / fps, pa.float32())
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    for name, column in (extra or {}).items():
        table[name] = pa.array(list(column))
        kind = {"bool": "bool", "double": "float64", "int64": "int64"}.get(str(table[name].type), "string")
        features[name] = {"dtype": kind, "shape": [1], "names": None}
    if language is not None:
        for name, at in (("language_persistent", 0), ("language_events", 1)):
            table[name] = pa.array([each[at] for each in language])
            features[name] = {"dtype": "language", "shape": [1], "names": None}
    meta: dict[str, Any] = {
        "episode_index": list(range(len(counts))), "length": counts, "tasks": [["move"]] * len(counts),
        "data/chunk_index": [0] * len(counts), "data/file_index": [e // 2 for e in range(len(counts))],
        "dataset_from_index": starts, "dataset_to_index": [a + b for a, b in zip(starts, counts, strict=True)],
        **{name: list(column) for name, column in (episodes or {}).items()},
    }  # fmt: skip
    for name, (height, across) in (cameras or {}).items():
        axes = ["height", "width", "channels"]
        features[name] = {"dtype": "video" if video else "image", "shape": [height, across, 3], "names": axes}
        if not video:
            table[name] = pa.array([{"bytes": picture(n, height, across), "path": None} for n in range(total)])
            continue
        _video(root / f"videos/{name}/chunk-000/file-000.mp4", total, height, across, fps)
        meta[f"videos/{name}/chunk_index"] = meta[f"videos/{name}/file_index"] = [0] * len(counts)
        meta[f"videos/{name}/from_timestamp"] = [start / fps for start in starts]
    info = {
        "codebase_version": "v3.0", "robot_type": root.name, "fps": fps, "total_episodes": len(counts),
        "total_frames": total, "total_tasks": 1, "splits": {"train": f"0:{len(counts)}"}, "features": features,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4", "chunks_size": 1000,
    }  # fmt: skip
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    pq.write_table(pa.table({"task_index": [0], "task": ["move"]}), root / "meta/tasks.parquet")
    pq.write_table(pa.table(meta), root / "meta/episodes/chunk-000/file-000.parquet")
    frames, ends = pa.table(table), np.cumsum([0, *counts])
    for file in range(0, len(counts), 2):
        low, high = int(ends[file]), int(ends[min(file + 2, len(counts))])
        pq.write_table(frames.slice(low, high - low), root / f"data/chunk-000/file-{file // 2:03d}.parquet")
    return robot


def picture(number: int, height: int, width: int) -> bytes:
    """A PNG of one gray."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), number % 256, np.uint8)).save(out, "PNG")
    return out.getvalue()


def _video(path: Path, count: int, height: int, width: int, fps: float) -> None:
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001), options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, "yuv420p", 2
        for number in range(count):
            gray = np.full((height, width, 3), 20 + number * 5 % 200, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(gray, "rgb24")))
        out.mux(stream.encode(None))


def windows_of(
    robot: Robot, column: str, steps: Sequence[int], rate: float | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The windows of every frame of a robot by the plainest rule: [N, k, D], and which steps are padding, [N, k]."""
    rows, pads = [], []
    for array in robot.columns[column]:
        for t in range(len(array)):
            at = [
                _nearest(Fraction(t) + Fraction(step) * Fraction(robot.fps) / Fraction(rate or robot.fps))
                for step in steps
            ]
            rows.append(array[np.clip(at, 0, len(array) - 1)])
            pads.append([not 0 <= one < len(array) for one in at])
    return np.asarray(rows), np.asarray(pads)


def _nearest(value: Fraction) -> int:
    return int((value + Fraction(1, 2)).__floor__())
