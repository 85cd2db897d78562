"""The orders of wids' samplers over a shard index: `ShardListSampler` and `ChunkedSampler`.

Runs of consecutive samples (the shards, or chunks of one size) are shuffled, by default not in the first epoch. Then
the samples within each run are shuffled. Both use Python's `random.Random(seed + 1289738273 * epoch)`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError

_EPOCH = 1289738273


def wids_order(
    lengths: Sequence[int],
    *,
    seed: int = 0,
    epoch: int = 0,
    chunk: int | None = None,
    shuffle: bool = True,
    shuffle_first: bool = False,
) -> npt.NDArray[np.int64]:
    """Return sample numbers, int64[n], in the order of one epoch.

    Args:
        lengths: samples per shard, as in `Dataset.counts` of a wids index.
        chunk: `ChunkedSampler` with this chunk size, instead of `ShardListSampler`.
        shuffle: whether samples are shuffled; as in `ChunkedSampler`, where False also keeps the runs in order.
        shuffle_first: whether the runs are shuffled in epoch 0 too (`shufflefirst`).

    >>> wids_order([2, 3], seed=1).tolist()
    [1, 0, 3, 2, 4]
    """
    if chunk is not None and chunk < 1:
        raise ConfigError(f"chunks of {chunk} samples are invalid", fix="Give at least 1 sample.")
    total = int(np.sum(np.asarray(lengths, np.int64)))
    sizes = list(lengths) if chunk is None else [min(chunk, total - at) for at in range(0, total, chunk)]
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    runs = list(range(len(sizes)))
    rng = random.Random(seed + _EPOCH * epoch)
    if shuffle and (shuffle_first or epoch > 0):
        rng.shuffle(runs)
    out = np.empty(total, np.int64)
    at = 0
    for run in runs:
        numbers = list(range(ends[run] - sizes[run], ends[run]))
        if shuffle:
            rng.shuffle(numbers)
        out[at : at + len(numbers)] = numbers
        at += len(numbers)
    return out
