"""Measure webdataset's ShardWriter, which writes tars only: ``write MODE SAMPLES PER_SHARD FOLDER``."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.lib.side import answer
from benchmarks.writing.fields import timed


def write(mode: str, samples: str, per_shard: str, folder: str) -> dict[str, float]:
    """Measure writing, see `timed`."""
    return timed(_write, mode, samples, per_shard, folder)


def _write(folder: str, samples: int, per_shard: int, parts: dict[str, Any]) -> None:
    """Write with webdataset's ShardWriter."""
    import webdataset as wds

    os.makedirs(folder)
    with wds.ShardWriter(f"{folder}/s-%06d.tar", maxcount=per_shard, verbose=0) as writer:
        for i in range(samples):
            writer.write({"__key__": f"sample_{i:08d}", **parts})


if __name__ == "__main__":
    answer(globals())
