"""One side of the part `cells`: Feedmill, a loop that a user would write, or Feedmill on columns of an index."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np


def feedmill(root: str, quantiles: int = 10, *, fresh: bool = True) -> int:
    """Make the cells by `fm.mixture.cells`; return the number of documents."""
    import feedmill as fm

    if fresh:
        shutil.rmtree(Path(root) / "tokens/.feedmill-cells", ignore_errors=True)
    by = ["source", "metadata.topic", {"column": "quality__score", "quantiles": quantiles}]
    (sidecar,) = fm.mixture.cells(Path(root) / "tokens/x.pbin", by=by, workers=1, progress=False).sidecars
    assert len(sidecar.cells) == 8 * quantiles
    return sidecar.documents


def loop(root: str) -> int:
    """Make the same cells: parse all lines, and count on the order of the token file."""
    import orjson

    names, scores = [], []
    for path in sorted(Path(root).glob("documents/*")):
        beside = Path(root) / "attributes/quality" / path.name
        with path.open("rb") as documents, beside.open("rb") as attributes:
            for line, other in zip(documents, attributes, strict=True):
                document, found = orjson.loads(line), orjson.loads(other)
                assert document["id"] == found["id"]
                names.append((document["source"], document["metadata"]["topic"]))
                scores.append(found["attributes"]["quality__score"][0][2])
    bins = np.searchsorted(np.quantile(scores, np.arange(1, 10) / 10), scores, side="right")
    known: dict[tuple[str, str, int], int] = {}
    codes = [known.setdefault((*name, bin), len(known)) for name, bin in zip(names, bins.tolist(), strict=True)]
    with tempfile.TemporaryFile() as out:
        out.write(np.array(codes, np.uint16).tobytes())
    assert len(known) == 80
    return len(codes)


def index(documents: int) -> int:
    """Make cells of a column of the index of token files, whose bounds are made here."""
    from feedmill.formats.cells import Rule
    from feedmill.formats.tokens.base import TokenDataset, TokenShard
    from feedmill.mixture.options import Cells
    from feedmill.mixture.verbs.cells import SidecarJob
    from feedmill.storage import open_store

    count = documents // 10

    def bounds(number: int) -> np.ndarray:
        path = f"{root}/{number}.npy"
        lengths = np.random.default_rng(number).integers(1, 2000, count)
        np.save(path, np.concatenate(([0], np.cumsum(lengths))))
        return np.load(path, mmap_mode="r")

    with tempfile.TemporaryDirectory() as root:
        shards = [
            TokenShard(f"{n}.npy", np.dtype("<u2"), 0, 1000 * count, count, partial(bounds, n)) for n in range(10)
        ]
        dataset = TokenDataset(open_store(root), shards, name=root, format="pbin")
        dataset.load_bounds(range(10))
        for shard in shards:
            _ = shard.bounds
        begin = time.process_time()
        job = SidecarJob(dataset, Rule(({"column": "tokens", "edges": [100, 500, 1000, 1500]},)))
        job.write(Cells(root, progress=False))
        global begun
        begun = begin
        assert [cell.documents > 0 for cell in job.report.cells] == [True] * 5
    return documents


begun = time.process_time()


def main(mode: str, given: str) -> None:
    """Run one side, and print its rate by processor time, and its peak memory."""
    if mode == "again":
        feedmill(given)
    before = time.process_time()
    if mode == "index":
        count = index(int(given))
        before = begun
    else:
        count = (
            loop(given) if mode == "loop" else feedmill(given, 10 if mode == "feedmill" else 7, fresh=mode != "again")
        )
    seconds = time.process_time() - before
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps({"rate": count / seconds, "memory": memory}))


if __name__ == "__main__":
    main(*sys.argv[1:])
