"""One measurement of reading samples as they are stored, in one process, printed as a line of JSON.

Runs under Feedmill's Python and under the peers'.

python benchmarks/plain_side.py feedmill FOLDER WORKERS KIND        KIND: threads, processes
python benchmarks/plain_side.py webdataset FOLDER WORKERS BATCH
python benchmarks/plain_side.py feedmill-mds FOLDER ORDER
python benchmarks/plain_side.py streaming FOLDER ORDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

BATCH = 64
WARM = 5


def measured(batches: Iterable[list[Any]], count: int) -> dict[str, float]:
    """Samples per second after the first batches; every part's bytes are looked at."""
    taken = size = 0
    begin = time.perf_counter()
    for number, batch in enumerate(batches):
        if number == WARM:
            taken, begin = 0, time.perf_counter()
        taken += len(batch)
        size += sum(used(sample) for sample in batch)
    seconds = time.perf_counter() - begin
    return {"per_s": taken / seconds, "samples": count, "bytes": size}


def used(sample: Any) -> int:
    return sum(len(sample[part]) for part in sample if not part.startswith("__"))


def feedmill(folder: str, workers: str, kind: str) -> dict[str, float]:
    import feedmill as fm

    dataset = fm.open(folder, decode=None)
    plan = fm.Plan.over(dataset, shuffle="none")
    how: Any = fm.Workers(int(workers), processes=True) if kind == "processes" else int(workers)
    if kind == "processes":  # samples are sent as dicts of bytes, as the peer sends its own
        loader = fm.Loader(plan, BATCH, workers=how, collate=as_bytes)
    else:
        loader = fm.Loader(plan, BATCH, workers=how, output="samples")
    steps = iter(loader)
    return measured((next(steps) for _ in range(len(dataset) // BATCH)), len(dataset))


def as_bytes(samples: list[Any]) -> list[dict[str, bytes]]:
    return [{part: sample.raw(part) for part in sample} for sample in samples]


def webdataset(folder: str, workers: str, batch: str) -> dict[str, float]:
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


def order_of(count: int, order: str) -> list[int]:
    import numpy as np

    return list(range(count)) if order == "in-order" else np.random.default_rng(0).permutation(count).tolist()


def feedmill_mds(folder: str, order: str) -> dict[str, float]:
    import feedmill as fm

    dataset = fm.open(folder)
    wanted = order_of(len(dataset), order)
    return _values((dataset.read(wanted[at : at + BATCH]) for at in range(0, len(wanted), BATCH)), len(wanted))


def streaming(folder: str, order: str) -> dict[str, float]:
    """Its own reader of shards, without its dataset's downloads and shared memory."""
    from streaming.base.format import reader_from_json
    from streaming.base.spanner import Spanner

    index = json.loads(Path(folder, "index.json").read_text())
    shards = [reader_from_json(folder, None, item) for item in index["shards"]]
    spanner = Spanner(__import__("numpy").asarray([len(shard) for shard in shards]))
    wanted = order_of(sum(map(len, shards)), order)

    def batches() -> Iterator[list[Any]]:
        for at in range(0, len(wanted), BATCH):
            places = [spanner[number] for number in wanted[at : at + BATCH]]
            yield [shards[shard][local] for shard, local in places]

    return _values(batches(), len(wanted))


def _values(batches: Iterable[list[Any]], count: int) -> dict[str, float]:
    """The same where samples are values."""
    begin, total = time.perf_counter(), 0
    for batch in batches:
        total += sum(sample["n"] + len(sample["text"]) + sample["ids"].size for sample in batch)
    return {"per_s": count / (time.perf_counter() - begin), "samples": count, "bytes": total}


SIDES = {
    "feedmill": feedmill, "webdataset": webdataset, "feedmill-mds": feedmill_mds, "streaming": streaming,
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(SIDES[sys.argv[1]](*sys.argv[2:])))
