"""LeRobot datasets: `dataset.py`, ``meta/`` (`meta.py`), episodes (`episode.py`), windows of frames (`windows.py`) and
depth maps (`depth.py`).
"""

from feedmill.formats.format import Format

LEROBOT = Format(
    "lerobot",
    "LeRobot dataset",
    "samples",
    open="feedmill.formats.lerobot.dataset:open_found",
    marks=("meta/info.json",),
    is_folder="feedmill.formats.lerobot.dataset:mark",
    splits=True,
    data=("Parquet", "media", "JSON lines"),
    beside=(".json",),
)
FORMATS = (LEROBOT,)
