"""Measure a script around webdataset's ShardWriter: ``run photos|texts SOURCE FOLDER``."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.importing.files import digest, of_tars
from benchmarks.lib.side import answer


def run(kind: str, source: str, folder: str) -> dict[str, float]:
    """Measure reading files and writing tars, as its documentation shows it."""
    import webdataset as wds

    os.makedirs(folder)
    began = time.perf_counter()
    count = 0
    with wds.ShardWriter(f"{folder}/%06d.tar", maxcount=5000, verbose=0) as writer:
        for path in sorted(Path(source).rglob("*.jpg" if kind == "photos" else "*.txt")):
            sample = {
                "__key__": str(path.relative_to(source).with_suffix("")),
                "txt": path.with_suffix(".txt").read_bytes(),
            }
            if kind == "photos":
                sample["jpg"] = path.read_bytes()
            writer.write(sample)
            count += 1
    seconds = time.perf_counter() - began
    found = digest(of_tars(Path(folder), ".jpg" if kind == "photos" else ".txt"))
    return {"seconds": seconds, "samples": count, "digest": found}


if __name__ == "__main__":
    answer(globals())
