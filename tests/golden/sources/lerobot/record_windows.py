"""Write `windows` and `windows_expected.json` with LeRobot: ``python record_windows.py``.

Those here are of version 0.6.1.
"""

import hashlib
import json
import shutil
from pathlib import Path

import lerobot
import numpy as np
import torch
from lerobot.datasets import LeRobotDataset

HERE = Path(__file__).parent
WIDTH, HEIGHT, FPS = 96, 64, 10
PICTURE = {"dtype": "video", "shape": (HEIGHT, WIDTH, 3), "names": ["height", "width", "channels"]}
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
    "gripper_open": {"dtype": "bool", "shape": (1,), "names": None},
    "observation.images.top": PICTURE,
    "observation.images.wrist": PICTURE,
}
DELTAS = {
    "observation.images.top": [-0.2, 0.0],
    "observation.state": [-0.2, -0.1, 0.0],
    "action": [k / FPS for k in range(8)],
    "gripper_open": [-0.1, 0.0],
}


def make() -> None:
    shutil.rmtree(HERE / "windows", ignore_errors=True)
    made = LeRobotDataset.create("golden/tiny", FPS, FEATURES, root=HERE / "windows", robot_type="arm", use_videos=True)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    for episode, length in enumerate((7, 12, 5)):
        for i in range(length):
            top = [(x * 2 + i * 9) % 256, (y * 3 + episode * 60) % 256, (x + y + i * 5) % 256]
            wrist = [(y * 4 + i * 20) % 256, (x + episode * 80) % 256, np.full_like(x, 20 * i)]
            made.add_frame(
                {
                    "observation.state": np.array([episode, i, episode + i / 10], np.float32),
                    "action": np.array([10 * episode + i, -i], np.float32),
                    "gripper_open": np.array([i % 3 == 0]),
                    "observation.images.top": np.stack(top, -1).astype(np.uint8),
                    "observation.images.wrist": np.stack(wrist, -1).astype(np.uint8),
                    "task": ["pick up", "put down", "pick up"][episode],
                }
            )
        made.save_episode()
    made.finalize()


def plain(value: object) -> dict[str, object]:
    if not isinstance(value, torch.Tensor):
        return {"type": type(value).__name__, "value": value}
    out = {"dtype": str(value.dtype), "shape": list(value.shape)}
    if value.ndim < 3:
        return out | {"values": value.tolist()}
    return out | {"sha256": hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()}


def main() -> None:
    make()
    windows = {}

    def window(tag: str, index: int, **options: object) -> None:
        item = LeRobotDataset("golden/tiny", root=HERE / "windows", **options)[index]
        windows[tag] = {"index": index, "options": options, "item": {name: plain(value) for name, value in item.items()}}

    shared = {"delta_timestamps": DELTAS, "return_uint8": True}
    for backend, indices in (("pyav", (0, 1, 6, 7, 8, 13, 18, 19, 21, 23)), ("torchcodec", (0, 6, 23))):
        for index in indices:
            window(f"{backend}-{index}", index, **shared, video_backend=backend)
    window("float-6", 6, delta_timestamps=DELTAS, video_backend="pyav")
    window("no-deltas-6", 6, video_backend="pyav", return_uint8=True)
    window("episode-1-at-0", 0, **shared, episodes=[1], video_backend="pyav")
    found = {"lerobot": lerobot.__version__, "delta_timestamps": DELTAS, "windows": windows}
    (HERE / "windows_expected.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
