"""The common settings of all measured loaders: batch size and duration, and checks that the data is in the batches."""

from __future__ import annotations

import tarfile
from pathlib import Path

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
