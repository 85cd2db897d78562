"""What every loader is asked for: the size of a batch, how long it is timed, and that the data was really there."""

from __future__ import annotations

import tarfile
from pathlib import Path

BATCH, SECONDS = 64, 4.0


def use_dicts(batch):
    """Samples of a batch of raw parts."""
    assert sum(len(value) for sample in batch for name, value in sample.items() if not name.startswith("__"))
    return len(batch)


def use_pictures(batch):
    """Samples of a batch of decoded pictures."""
    assert tuple(batch.shape[1:]) in ((375, 500, 3), (3, 375, 500))
    return len(batch)


def jpegs(tars):
    """Names and bytes of the pictures in a folder of tars."""
    for shard in sorted(Path(tars).glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    yield member.name, tar.extractfile(member).read()
