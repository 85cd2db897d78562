"""Write `v3` and `expected.json` with LeRobot: ``python record.py``. Version 0.4.4 wrote those that are here."""

import json
import shutil
from pathlib import Path

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

HERE = Path(__file__).parent
LENGTHS, TASKS = [9, 5, 12], ["pick", "place"]
IMAGE = {"names": ["height", "width", "channels"]}
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
    "observation.images.top": {"dtype": "video", "shape": (48, 64, 3), **IMAGE},
    "observation.images.wrist": {"dtype": "image", "shape": (16, 16, 3), **IMAGE},
}


def main() -> None:
    shutil.rmtree(HERE / "v3", ignore_errors=True)
    made = LeRobotDataset.create("feedmill/golden", 10, FEATURES, root=HERE / "v3", robot_type="arm", use_videos=True)
    number = 0
    for episode, length in enumerate(LENGTHS):
        for _ in range(length):
            made.add_frame(
                {
                    "observation.state": np.array([number, number + 0.5, episode], np.float32),
                    "action": np.array([number, -number], np.float32),
                    "observation.images.top": np.full((48, 64, 3), 40 + 6 * number, np.uint8),
                    "observation.images.wrist": np.full((16, 16, 3), number, np.uint8),
                    "task": TASKS[episode % 2],
                }
            )
            number += 1
        made.save_episode()
    made.finalize()
    read = LeRobotDataset("feedmill/golden", root=HERE / "v3")
    words = {int(row.task_index): task for task, row in read.meta.tasks.iterrows()}
    frames = []
    for row in read.hf_dataset:
        plain = {name: value.tolist() for name, value in row.items() if name != "observation.images.wrist"}
        plain["task"] = words[plain["task_index"]]
        plain["observation.images.wrist"] = float(row["observation.images.wrist"].mean() * 255)
        frames.append(plain)
    (HERE / "expected.json").write_text("[\n" + ",\n".join(json.dumps(frame) for frame in frames) + "\n]\n")


if __name__ == "__main__":
    main()
