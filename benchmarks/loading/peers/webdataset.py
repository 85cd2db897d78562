"""Measure webdataset with shuffled shards and a sample buffer of 1,000: ``raw|jpeg FOLDER WORKERS``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.lib.rates import rate
from benchmarks.lib.side import answer
from benchmarks.loading.batches import BATCH, SECONDS, use_dicts, use_pictures


def _loaded(folder, workers, decode, collation, use):
    import webdataset as wds

    shards = sorted(map(str, Path(folder, "shards").glob("*.tar")))
    stream = wds.WebDataset(shards, resampled=True, shardshuffle=False, nodesplitter=wds.split_by_node).shuffle(1000)
    if decode:
        stream = stream.decode(decode)
    loader = wds.WebLoader(stream.batched(BATCH, collation_fn=collation), batch_size=None, num_workers=int(workers))
    return rate(map(use, loader), SECONDS)


def raw(folder, workers):
    """Measure the parts of samples as bytes."""
    return _loaded(folder, workers, None, as_they_are, use_dicts)


def jpeg(folder, workers):
    """Measure pictures as uint8 arrays, stacked."""
    return _loaded(folder, workers, "rgb8", stacked_jpg, use_pictures)


def as_they_are(samples):
    return samples


def stacked_jpg(samples):
    return np.stack([sample["jpg"] for sample in samples])


if __name__ == "__main__":
    answer(globals())
