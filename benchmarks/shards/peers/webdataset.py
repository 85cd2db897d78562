"""Measure webdataset over plain tars: ``plain FOLDER WORKERS BATCH``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.lib.side import answer
from benchmarks.shards.measured import measured


def plain(folder: str, workers: str, batch: str) -> dict[str, float]:
    import webdataset as wds

    dataset = wds.WebDataset(sorted(map(str, Path(folder).glob("*.tar"))), shardshuffle=False)
    size = int(batch)
    if size:
        dataset = dataset.batched(size, collation_fn=None)
    source: Any = wds.WebLoader(dataset, batch_size=None, num_workers=int(workers)) if int(workers) else dataset
    return measured(source if size else _lists(source), 0)


def _lists(samples: Iterable[Any]) -> Iterator[list[Any]]:
    for sample in samples:
        yield [sample]


if __name__ == "__main__":
    answer(globals())
