"""Measure Feedmill writing a prepared dataset, including its index: ``write MODE SAMPLES PER_SHARD FOLDER``."""

from __future__ import annotations

from typing import Any

from benchmarks.lib.side import answer
from benchmarks.writing.fields import timed


def write(mode: str, samples: str, per_shard: str, folder: str) -> dict[str, float]:
    """Measure writing, see `timed`."""
    return timed(_write, mode, samples, per_shard, folder)


def _write(folder: str, samples: int, per_shard: int, parts: dict[str, Any]) -> None:
    """Write with Feedmill, including the index."""
    import feedmill as fm

    with fm.writer(folder, max_shard_samples=per_shard) as writer:
        for i in range(samples):
            writer.write({"__key__": f"sample_{i:08d}", **parts})


if __name__ == "__main__":
    answer(globals())
