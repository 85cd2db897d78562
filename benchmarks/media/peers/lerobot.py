"""Measure LeRobot's own data sets over windows of robot videos, and make the data set that all sides read."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np

from benchmarks.lib.side import answer
from benchmarks.media.windows import CAMERAS, EPISODES, FRAMES, RATE, SECONDS, WARM, timed_windows

NAME = "local/robots"


def make(path: str) -> dict[str, float]:
    """Record a data set with LeRobot's own settings: AV1, groups of two frames."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    shutil.rmtree(path, ignore_errors=True)
    camera = {"dtype": "video", "shape": (480, 640, 3), "names": ["height", "width", "channels"]}
    numbers = {"dtype": "float32", "shape": (6,), "names": None}
    features = {**dict.fromkeys(CAMERAS, camera), "observation.state": numbers, "action": numbers}
    data = LeRobotDataset.create(NAME, fps=RATE, features=features, root=path, video_backend="pyav")
    rng = np.random.default_rng(0)
    scene = np.kron(rng.integers(0, 255, (76, 96, 3), np.uint8), np.ones((16, 16, 1), np.uint8))
    noise = rng.integers(0, 8, (8, 480, 640, 3), np.uint8)
    for episode in range(EPISODES):
        for at in range(FRAMES):
            down, right = (at + 31 * episode) % 700, 2 * at
            seen = [scene[down : down + 480, right + 90 * n :][:, :640] // 2 + noise[at % 8] for n in range(2)]
            state, action = rng.random((2, 6), np.float32)
            row = {"observation.state": state, "action": action, "task": "Stack."}
            data.add_frame({**dict(zip(CAMERAS, seen, strict=True)), **row})
        data.save_episode()
    data.finalize()
    return {}


def whole(path: str, workers: str, backend: str) -> dict[str, float]:
    """Measure its data set at random, over files on this machine."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    data = LeRobotDataset(NAME, root=path, delta_timestamps=SECONDS, video_backend=backend)
    return timed_windows(lambda: _batches(data, int(workers), shuffle=True), WARM)


def streaming(path: str, workers: str) -> dict[str, float]:
    """Measure its streaming data set, which shuffles in a buffer."""
    from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset

    data = StreamingLeRobotDataset(NAME, root=path, delta_timestamps=SECONDS)
    return timed_windows(lambda: _batches(data, int(workers)), 0)


def _batches(data: Any, workers: int, **options: Any) -> Any:
    from torch.utils.data import DataLoader

    return iter(DataLoader(data, batch_size=32, num_workers=workers, **options))


if __name__ == "__main__":
    answer(globals())
