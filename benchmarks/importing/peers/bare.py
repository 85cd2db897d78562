"""Measure the floor: read all files and write their bytes in blocks to one file: ``run photos|texts SOURCE FOLDER``.

The loop has no names, checks, hashes or index, so no import can take less on one core.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.importing.files import digest
from benchmarks.lib.side import answer

_BLOCK = 512


def run(kind: str, source: str, folder: str) -> dict[str, float]:
    """Measure reading files and writing tar-like blocks of one file."""
    os.makedirs(folder)
    began = time.perf_counter()
    paths = sorted(str(path) for path in Path(source).rglob("*") if path.suffix)
    with open(f"{folder}/all", "wb", buffering=4 << 20) as out:
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            data = os.read(descriptor, 1 << 20)
            os.close(descriptor)
            out.write(bytes(_BLOCK) + data + bytes(-len(data) % _BLOCK))
    seconds = time.perf_counter() - began
    wanted = [path for path in paths if path.endswith(".jpg" if kind == "photos" else ".txt")]
    return {"seconds": seconds, "samples": len(wanted), "digest": digest(Path(path).read_bytes() for path in wanted)}


if __name__ == "__main__":
    answer(globals())
