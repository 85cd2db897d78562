"""Suite of the size for which Feedmill is made: 10^9 documents, 10^5 shards, 1 PB, 4,096 ranks. There is no peer.

FEEDMILL_BENCH_SCALE   a fraction of these numbers, by default 1: minutes to hours, and 4 GB on the disk
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

from benchmarks.lib.measure import Row, child

PEERS = ()
DELAY = 0.02
"""Seconds before each answer of the store."""
UNITS = (("_us", "us"), ("_mb", "MB"), ("_bytes", "bytes"))

MEASURES: dict[str, tuple[tuple[str, ...], ...]] = {
    "scale-plan": (("plans", "blend", "SIZE", "round"), ("plans", "blend", "SIZE", "odd"), ("plans", "costs", "SIZE")),
    "scale-sources": (("plans", "sources", "SIZE"),),
    "scale-packing": (("plans", "packing", "SIZE"),),
    "scale-shards": (("shards", "opened", "SIZE"),),
    "scale-store": (("shards", "listed", "SIZE", str(DELAY)), ("shards", "remote", "SIZE", str(DELAY))),
    "scale-prepare": (("shards", "prepared", "SIZE"), ("shards", "rows", "ROWS")),
    "scale-drivers": (("drivers", "units", "SIZE"), ("drivers", "journal", "SIZE")),
    "scale-ray": (("drivers", "ray", "SIZE"),),
    "scale-video": (("videos", "opened", "SIZE"),),
    "scale-files": (("drivers", "tagged", "SIZE"), ("drivers", "deduped", "SIZE"), ("drivers", "pipeline", "SIZE")),
}
"""Part -> measurements: module of `peers/`, its function, and arguments."""


def size() -> float:
    """Return the fraction of the full size to measure."""
    return float(os.environ.get("FEEDMILL_BENCH_SCALE", "1"))


def measure(part: str, repeat: int) -> list[Row]:
    """Run the measurements of a part, at most three times. A number without a unit in its name is in seconds."""
    rows: list[Row] = []
    values = {"SIZE": size(), "ROWS": max(1000, round(1e6 * size()))}
    for module, function, *words in MEASURES[part]:
        arguments = [values.get(word, word) for word in words]
        runs = [child(sys.executable, f"scale.peers.{module}", function, *arguments) for _ in range(min(repeat, 3))]
        for name in runs[0]:
            if name != "wall":
                what = " ".join((function, *(word for word in words if word == "odd"), name))
                rows.append(Row(part, what, unit_of(name), [run[name] for run in runs]))
    return rows


def unit_of(name: str) -> str:
    """Return the unit of a number by the end of its name."""
    for end, unit in UNITS:
        if name.endswith(end):
            return unit
    return "" if name.rpartition("_")[2] in ("list", "head", "get", "files", "open", "requests") else "s"


PARTS: dict[str, Callable[[int], list[Row]]] = {part: partial(measure, part) for part in MEASURES}
