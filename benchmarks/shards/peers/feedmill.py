"""Measure Feedmill: ``plain FOLDER WORKERS threads|processes``, ``mds FOLDER ORDER``."""

from __future__ import annotations

from typing import Any

from benchmarks.lib.side import answer
from benchmarks.shards.measured import BATCH, measured, order_of, values


def plain(folder: str, workers: str, kind: str) -> dict[str, float]:
    import feedmill as fm

    dataset = fm.open(folder, decode=None)
    plan = fm.Plan.over(dataset, shuffle="none")
    how: Any = fm.Workers(int(workers), processes=True) if kind == "processes" else int(workers)
    if kind == "processes":  # sent between processes as dicts of bytes, as the peer does
        loader = fm.Loader(plan, BATCH, workers=how, collate=as_bytes)
    else:
        loader = fm.Loader(plan, BATCH, workers=how, output="samples")
    steps = iter(loader)
    return measured((next(steps) for _ in range(len(dataset) // BATCH)), len(dataset))


def as_bytes(samples: list[Any]) -> list[dict[str, bytes]]:
    return [{part: sample.raw(part) for part in sample} for sample in samples]


def mds(folder: str, order: str) -> dict[str, float]:
    import feedmill as fm

    dataset = fm.open(folder)
    wanted = order_of(len(dataset), order)
    return values((dataset.read(wanted[at : at + BATCH]) for at in range(0, len(wanted), BATCH)), len(wanted))


if __name__ == "__main__":
    answer(globals())
