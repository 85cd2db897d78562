"""Measure `feedmill.import_data`: ``run photos|texts SOURCE FOLDER``."""

from __future__ import annotations

import json
import time
from pathlib import Path

from benchmarks.importing.files import digest, of_tars
from benchmarks.lib.side import answer


def run(kind: str, source: str, folder: str) -> dict[str, float]:
    """Measure an import on all cores."""
    import feedmill as fm

    began = time.perf_counter()
    report = fm.import_data(source, folder, progress=False)
    seconds = time.perf_counter() - began
    found = digest(of_tars(Path(folder), ".jpg")) if kind == "photos" else digest(_texts(Path(folder)))
    return {"seconds": seconds, "samples": report.samples or 0, "digest": found}


def _texts(folder: Path) -> list[bytes]:
    lines = (line for path in sorted(folder.rglob("*.jsonl")) for line in path.read_bytes().splitlines())
    return [json.loads(line)["text"].encode() for line in lines]


if __name__ == "__main__":
    answer(globals())
