"""LeRobot datasets: `dataset.py`, ``meta/`` (`meta.py`), episodes (`episode.py`) and depth maps (`depth.py`)."""

from feedmill.formats.format import Format, TargetFormat

LEROBOT = Format(
    "lerobot",
    "LeRobot dataset",
    "episodes",
    open="feedmill.formats.lerobot.dataset:open_found",
    marks=("meta/info.json",),
    is_folder="feedmill.formats.lerobot.dataset:mark",
    splits=True,
    data=("Parquet", "media", "JSON lines"),
    beside=(".json",),
    targets=(
        TargetFormat(
            "lerobot",
            "a LeRobot dataset of version 3, with images or videos",
            "splits, bytes that are not images, lists of different lengths, quantiles of statistics",
            "episodes",
            ("episodes",),
            shards="data/chunk-000/file-%03d.parquet",
            options=("fps", "videos"),
        ),
    ),
)
FORMATS = (LEROBOT,)
