"""Measure a data set of robots of the size of DROID, and print the numbers as JSON. SIZE is a fraction of that.

opened SIZE             open it, and load the first shuffled batches; with the tables of frames in the cache folder

At full size it has 27.6 million frames of three cameras, 82.8 million entries in 6,900 video files, which are links to
one file of 12,000 frames; all tables are made before.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.lib.side import answer
from benchmarks.scale import data
from benchmarks.scale.clock import Clock, now_mb, peak_mb
from feedmill import Loader, Plan
from feedmill import open as open_dataset

BATCH, BATCHES = 32, 20


def opened(size: str) -> dict[str, float]:
    """Measure the data set on the disk."""
    from feedmill.formats.avvideo import Frames
    from feedmill.storage import open_store
    from feedmill.storage.folders import cache_folder

    folder = data.robots(float(size))
    os.environ["FEEDMILL_CACHE_DIR"] = str(folder / "cache")
    numbers = Clock(start_mb=now_mb())
    begin = time.perf_counter()
    with numbers.step("open"):
        dataset = open_dataset(str(folder / "set"), windows={"observation.state": [-1, 0], "action": [0, 15]})
    with numbers.step("first_batch"):
        batches = iter(Loader(Plan.over(dataset, shuffle="global"), batch_size=BATCH, workers=0))
        next(batches)
    numbers["open_and_first_batch"] = time.perf_counter() - begin
    with numbers.step("batches"):
        for _ in range(BATCHES):
            next(batches)
    numbers["loader_mb"] = now_mb() - numbers["start_mb"]
    numbers["peak_mb"] = peak_mb()
    kept = [entry.stat() for entry in os.scandir(cache_folder() / "frames")]
    entries = 3 * len(dataset)
    numbers["kept_files"], numbers["kept_mb"] = len(kept), sum(one.st_size for one in kept) / 1e6
    numbers["entry_bytes"] = sum(one.st_size for one in kept) / entries
    frames = Frames(open_store(str(folder / "set")), 0.02)
    videos = sorted(str(path.relative_to(folder / "set")) for path in Path(folder, "set", "videos").rglob("*.mp4"))
    with numbers.step("hundred_tables"):
        for video in videos[:: max(len(videos) // 100, 1)][:100]:
            assert frames.table(video) is not None
    return numbers


if __name__ == "__main__":
    answer(globals())
