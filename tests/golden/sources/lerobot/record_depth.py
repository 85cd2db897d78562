"""Write `depth` and `depth_expected.json` with LeRobot: ``python record_depth.py``. Version 0.6.1 wrote those here."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
from lerobot.datasets import LeRobotDataset

HERE = Path(__file__).parent
CAMERA = "observation.images.depth"
FEATURES = {
    CAMERA: {
        "dtype": "video",
        "shape": (64, 96, 1),
        "names": ["height", "width", "channels"],
        "info": {"is_depth_map": True},
    },
    "observation.state": {"dtype": "float32", "shape": (1,), "names": None},
}


def main() -> None:
    shutil.rmtree(HERE / "depth", ignore_errors=True)
    made = LeRobotDataset.create("feedmill/depth", 10, FEATURES, root=HERE / "depth", use_videos=True)
    rows, columns = np.mgrid[:64, :96]
    for number in range(6):
        depth = (500 + columns * 20 + rows * 10 + number * 3).astype(np.uint16)[..., None]
        made.add_frame({CAMERA: depth, "observation.state": np.array([number], np.float32), "task": "t"})
    made.save_episode()
    made.finalize()
    read = LeRobotDataset("feedmill/depth", root=HERE / "depth", video_backend="pyav")
    frames = {number: read[number][CAMERA].numpy() for number in range(6)}  # float32[1, H, W], in mm
    expected = {
        number: {"at_10_20": float(depth[0, 10, 20]), "sha256": hashlib.sha256(depth.tobytes()).hexdigest()}
        for number, depth in frames.items()
    }
    (HERE / "depth_expected.json").write_text(json.dumps(expected, indent=1))


main()
