"""Measure MosaicML Streaming's reader of shards: ``mds FOLDER ORDER``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lib.side import answer
from benchmarks.shards.measured import BATCH, order_of, values


def mds(folder: str, order: str) -> dict[str, float]:
    """Measure the reader of shards, without the dataset's downloads and shared memory."""
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

    return values(batches(), len(wanted))


if __name__ == "__main__":
    answer(globals())
