"""The order in which VLA Foundry's loader gives the batches of a checkpoint window: for runs that move half-way.

Facts, for ranks x workers processes: the shards of a dataset's window are permuted by Python's
``random.Random(seed + checkpoint + 1)`` through a buffer, dealt to ranks and then to workers in turn. A worker reads
its shards from front to back, skips what cannot be used, and makes batches of one dataset each; what fills no
batch is lost. It draws the dataset of its next batch with its own generator, by the window's samples per dataset;
one that has no batch left is taken out. A rank takes a batch of each of its workers in turn.

With no workers the original draws from the generator of the training program itself, which nothing can reproduce.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
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
    """Return the order in which the shards of a window are dealt out.

    Args:
        seed: of the run, 0 or more: with a negative one ranks would not agree.
        checkpoint: the window's number.
        buffer, initial: 0 and 0 for a run that does not shuffle.
    """
    if seed < 0:
        raise ConfigError(
            f"the seed {seed} gives each process an order of its own", kind="bad-seed", fix="It is 0 or more."
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
    """The seed of a worker's generator of Python: torch's Mersenne Twister draws it for each pass over a loader."""
    state = np.random.RandomState((seed + checkpoint * ranks + rank) % 2**32)
    words = state.randint(0, 2**32, 2 * (iteration + 1), np.uint64)
    base = (int(words[-2]) << 32 | int(words[-1])) % 2**63
    return (base + worker) % 2**32


def mixed(batches: Sequence[int], shares: Sequence[float], seed: int, *, longest: bool = True) -> list[int]:
    """Return the datasets of a worker's batches, one after another.

    Args:
        batches: how many each dataset has.
        shares: their weights in the draw.
        seed: see `worker_seed`.
        longest: continue when one has ended, until all have.
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
    """Return the batches of a window, for each rank in the order of its loader (which must keep order).

    Args:
        window: of `select_window`, for ``ranks * workers``.
        workers: of each rank, at least one.
        batch: samples of a rank's batch.
        usable: per dataset, bool[samples]: those that are long enough and can be decoded; None for all.

    The original stops at the first step at which some rank has no batch; the lists hold all of them.

    Raises:
        ConfigError: there are no workers, or a dataset has no shard in the window, with which the original fails.
    """
    if workers < 1:
        raise ConfigError(
            "without workers the order depends on the training program", kind="bad-workers", fix="Give 1 or more."
        )
    if any(not len(rows) for rows in window.rows):
        raise ConfigError("a dataset has no shard in this window", kind="empty-source", fix="Take a larger window.")
    orders = [
        np.asarray(rows)[shard_order(len(rows), seed=seed, checkpoint=checkpoint, buffer=buffer, initial=initial)]
        for rows in window.rows
    ]
    starts = [np.concatenate(([0], np.cumsum(manifest.samples))) for manifest in manifests]
    out = []
    for rank in range(ranks):
        streams = []
        for worker in range(workers):
            own = [
                _batches(order[rank::ranks][worker::workers], starts[d], None if usable is None else usable[d], batch)
                for d, order in enumerate(orders)
            ]
            chosen = mixed(
                [len(some) for some in own], window.samples, worker_seed(seed, checkpoint, rank, ranks, worker)
            )
            coming = [iter(some) for some in own]
            streams.append([Batch(d, next(coming[d])) for d in chosen])
        out.append(list(_in_turn(streams)))
    return out


def _batches(shards: IntArray, starts: IntArray, usable: npt.NDArray[np.bool_] | None, size: int) -> list[IntArray]:
    """Whole batches of the samples of some shards, in their order."""
    samples = [np.arange(starts[shard], starts[shard + 1]) for shard in shards.tolist()]
    together = np.concatenate(samples) if samples else np.zeros(0, np.int64)
    if usable is not None:
        together = together[usable[together]]
    whole = len(together) // size * size
    return list(together[:whole].reshape(-1, size))


def _in_turn(streams: Sequence[list[Batch]]) -> Iterator[Batch]:
    """One of each stream, again and again, without those that have ended."""
    for number in range(max(map(len, streams), default=0)):
        for stream in streams:
            if number < len(stream):
                yield stream[number]
