"""The common settings of all measured loaders: batch size and duration, and checks that the data is in the batches."""

from __future__ import annotations

import itertools
import tarfile
from pathlib import Path

import numpy as np

BATCH, SECONDS = 64, 4.0


def use_dicts(batch):
    """Check that a batch of raw parts has data, and return the number of its samples."""
    assert sum(len(value) for sample in batch for name, value in sample.items() if not name.startswith("__"))
    return len(batch)


def use_pictures(batch):
    """Check the shape of a batch of decoded pictures, and return the number of its samples."""
    assert tuple(batch.shape[1:]) in ((375, 500, 3), (3, 375, 500))
    return len(batch)


def jpegs(tars):
    """Yield names and bytes of the pictures in a folder of tars."""
    for shard in sorted(Path(tars).glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    yield member.name, tar.extractfile(member).read()


def raw_samples(tars):
    """Yield the samples of a folder of tars: part -> bytes."""
    for shard in sorted(Path(tars).rglob("*.tar")):
        with tarfile.open(shard) as tar:
            key, parts = None, {}
            for member in tar:
                name, _, part = member.name.rpartition("/")[2].partition(".")
                if name != key and parts:
                    yield parts
                    parts = {}
                key, parts[part] = name, tar.extractfile(member).read()
            yield parts


def singles(get, count):
    """Yield 1 for each sample that `get` returns for a random number below `count`; all of its bytes are touched."""
    rng = np.random.default_rng(0)
    while True:
        for number in rng.integers(0, count, 4096).tolist():
            assert sum(map(len, get(number)))
            yield 1


def together(samples):
    """Yield the size of each batch of samples that come one by one."""
    while batch := list(itertools.islice(samples, BATCH)):
        yield len(batch)
