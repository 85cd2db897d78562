"""Order of batches of VLA Foundry's loader in a checkpoint window, for runs that move to Feedmill midway.

With ranks x workers processes, the shards of a dataset's window are permuted by Python's
``random.Random(seed + checkpoint + 1)`` through a buffer, and dealt round-robin to ranks and then to workers. A worker
reads its shards from front to back, skips unusable samples, and makes batches of one dataset each; incomplete batches
are dropped. It draws the dataset of its next batch with its own generator, weighted by the window's samples per
dataset; a dataset without remaining batches is removed. A rank takes batches from its workers round-robin.

Without workers, the original draws from the generator of the training program itself, which cannot be reproduced.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.kernels.bounds import bounds_of
from feedmill.planning.nodes.base import IntArray
from feedmill.planning.orders.vla import DEFAULT_SEED, Manifest, Window

BUFFER, INITIAL = 2000, 500
"""VLA Foundry's ``shuffle_buffer_size`` and ``shuffle_initial``; they concern shards."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One batch: its dataset's number, and its samples, int64[n], counted over the manifest's shards."""

    dataset: int
    samples: IntArray


def shard_order(
    shards: int, *, seed: int = DEFAULT_SEED, checkpoint: int = 0, buffer: int = BUFFER, initial: int = INITIAL
) -> list[int]:
    """Return the order in which the shards of a window are dealt.

    Args:
        shards: number of shards.
        seed: seed of the run, at least 0: with a negative seed, ranks would not agree.
        checkpoint: the window's number.
        buffer, initial: 0 and 0 for a run without shuffling.
    """
    if seed < 0:
        raise ConfigError(
            f"the negative seed {seed} gives each process a different order",
            kind="bad-seed",
            fix="Give a seed of at least 0.",
        )
    rng = random.Random(seed + checkpoint + 1)
    first = min(initial, buffer)
    held: list[int] = []
    out: list[int] = []

    def pick() -> None:
        at = rng.randint(0, len(held) - 1)
        held[at], held[-1] = held[-1], held[at]
        out.append(held.pop())

    coming = iter(range(shards))
    for shard in coming:
        held.append(shard)
        if len(held) < buffer:
            held.extend([another] if (another := next(coming, None)) is not None else [])
        if len(held) >= first:
            pick()
    while held:
        pick()
    return out


def worker_seed(seed: int, checkpoint: int, rank: int, ranks: int, worker: int, iteration: int = 0) -> int:
    """Return the seed of a worker's Python generator, drawn by torch's Mersenne Twister for each pass over a loader."""
    state = np.random.RandomState((seed + checkpoint * ranks + rank) % 2**32)
    words = state.randint(0, 2**32, 2 * (iteration + 1), np.uint64)
    base = (int(words[-2]) << 32 | int(words[-1])) % 2**63
    return (base + worker) % 2**32


def mixed(batches: Sequence[int], shares: Sequence[float], seed: int, *, longest: bool = True) -> list[int]:
    """Return the datasets of a worker's batches, one after another.

    Args:
        batches: number of batches of each dataset.
        shares: their weights in the draw.
        seed: see `worker_seed`.
        longest: continue until all datasets have ended, not only the first.
    """
    rng = random.Random(seed)
    left, names, weights = list(batches), list(range(len(batches))), [float(share) for share in shares]
    out: list[int] = []
    while left:
        with np.errstate(invalid="ignore"):
            ends = np.cumsum(np.asarray(weights) / np.sum(weights))
        chosen = int(np.searchsorted(ends, rng.random()))
        if left[chosen]:
            left[chosen] -= 1
            out.append(names[chosen])
        elif not longest:
            break
        else:
            del left[chosen], names[chosen], weights[chosen]
    return out


def window_batches(
    manifests: Sequence[Manifest],
    window: Window,
    *,
    ranks: int,
    workers: int,
    batch: int,
    seed: int = DEFAULT_SEED,
    checkpoint: int = 0,
    usable: Sequence[npt.NDArray[np.bool_]] | None = None,
    buffer: int = BUFFER,
    initial: int = INITIAL,
) -> list[list[Batch]]:
    """Return the batches of a window for each rank, in the order of its loader (which must preserve order).

    The original stops at the first step at which a rank has no batch; the lists hold all batches.

    Args:
        window: from `select_window`, for ``ranks * workers``.
        workers: workers of each rank, at least one.
        batch: samples of a rank's batch.
        usable: for each dataset bool[samples], samples that are long enough and can be decoded; None for all.

    Raises:
        ConfigError: there are no workers, or a dataset has no shard in the window, for which the original fails too.
    """
    if workers < 1:
        raise ConfigError(
            "without workers the order depends on the training program", kind="bad-workers", fix="Give at least 1."
        )
    if any(not len(rows) for rows in window.rows):
        raise ConfigError("a dataset has no shard in this window", kind="empty-source", fix="Use a larger window.")
    orders = [
        np.asarray(rows)[shard_order(len(rows), seed=seed, checkpoint=checkpoint, buffer=buffer, initial=initial)]
        for rows in window.rows
    ]
    starts = [bounds_of(manifest.samples) for manifest in manifests]
    out = []
    for rank in range(ranks):
        streams = []
        for worker in range(workers):
            own = [
                _batches(order[rank::ranks][worker::workers], starts[d], None if usable is None else usable[d], batch)
                for d, order in enumerate(orders)
            ]
            chosen = mixed(
                [len(batches) for batches in own], window.samples, worker_seed(seed, checkpoint, rank, ranks, worker)
            )
            coming = [iter(batches) for batches in own]
            streams.append([Batch(d, next(coming[d])) for d in chosen])
        out.append(list(_in_turn(streams)))
    return out


def _batches(shards: IntArray, starts: IntArray, usable: npt.NDArray[np.bool_] | None, size: int) -> list[IntArray]:
    """Return the whole batches of the samples of these shards, in order."""
    samples = [np.arange(starts[shard], starts[shard + 1]) for shard in shards.tolist()]
    together = np.concatenate(samples) if samples else np.zeros(0, np.int64)
    if usable is not None:
        together = together[usable[together]]
    whole = len(together) // size * size
    return list(together[:whole].reshape(-1, size))


def _in_turn(streams: Sequence[list[Batch]]) -> Iterator[Batch]:
    """Yield from the streams round-robin, skipping those that have ended."""
    for number in range(max(map(len, streams), default=0)):
        for stream in streams:
            if number < len(stream):
                yield stream[number]
