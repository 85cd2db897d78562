"""Measure `datasets`: ``imagefolder`` (no captions) or ``text``, and ``save_to_disk``: ``run KIND SOURCE FOLDER``."""

from __future__ import annotations

import time

from benchmarks.importing.files import digest
from benchmarks.lib.side import answer


def run(kind: str, source: str, folder: str) -> dict[str, float]:
    """Measure loading a folder and saving it."""
    import datasets

    datasets.disable_progress_bars()
    began = time.perf_counter()
    if kind == "photos":
        found = datasets.load_dataset(
            "imagefolder", data_dir=source, split="train", cache_dir=f"{folder}/cache", drop_labels=True
        )
    else:
        files = f"{source}/*/*.txt"
        found = datasets.load_dataset(
            "text", data_files=files, sample_by="document", split="train", cache_dir=f"{folder}/cache"
        )
    found.save_to_disk(f"{folder}/saved")
    seconds = time.perf_counter() - began
    if kind == "photos":
        rows = datasets.load_from_disk(f"{folder}/saved").cast_column("image", datasets.Image(decode=False))
        contents = (row["image"]["bytes"] for row in rows)
    else:
        contents = (row["text"].encode() for row in datasets.load_from_disk(f"{folder}/saved"))
    return {"seconds": seconds, "samples": len(found), "digest": digest(contents)}


if __name__ == "__main__":
    answer(globals())
