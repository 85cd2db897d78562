"""VLA Foundry's orders in one checkpoint window: its shards, the state from which the next window continues, and the
batches of its loader.

Each dataset is a manifest of shards. Its rows are permuted by ``numpy.random.default_rng(seed)``. A window takes rows
from a cursor on until it has the dataset's share of the window's samples and at least one row for each worker. If
allowed, it continues into further epochs (seeds ``seed + 1``, ...). It then returns the last rows until their number is
a multiple of the workers. The share of dataset ``d`` is ``ceil(weight_d * samples / sum of weights)`` in float64.

With ranks x workers processes, the shards of a dataset's window are permuted by Python's
``random.Random(seed + checkpoint + 1)`` through a buffer, and dealt round-robin to ranks and then to workers. A worker
reads its shards from front to back, skips unusable samples, and makes batches of one dataset each; incomplete batches
are dropped. It draws the dataset of its next batch with its own generator, weighted by the window's samples per
dataset; a dataset without remaining batches is removed. A rank takes batches from its workers round-robin.

Without workers, the original draws from the generator of the training program itself, which cannot be reproduced.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.vla.manifest import read_rows
from feedmill.kernels.bounds import bounds_of
from feedmill.planning.nodes.base import IntArray
from feedmill.planning.orders import countable
from feedmill.storage import open_store, split_url

DEFAULT_SEED = 42
"""VLA Foundry's `hparams.seed`, with which every dataset begins."""

MOST_ROWS = 2**31
"""Maximum number of rows of one dataset in a window; more is a mistake in the budget."""


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """The shards of one dataset.

    Attributes:
        shards: names of the shards in the manifest.
        samples: samples in each, int64[shards].
        file: path or URL, for messages.

    Raises:
        ConfigError: there are no samples, a number is negative, or there is not one number per shard.
    """

    shards: tuple[str, ...]
    samples: IntArray
    file: str | None = None

    def __post_init__(self) -> None:
        fits = len(self.shards) == len(self.samples) and not (self.samples < 0).any()
        countable(sum(self.samples.tolist()))
        if not fits or not self.samples.any():
            raise ConfigError(
                "the manifest has no samples" if fits else "a manifest needs a number of samples for each shard",
                file=self.file,
                kind="bad-index",
                fix="Recreate its lines from the shards.",
            )


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position in a dataset when a window ended; VLA Foundry stores it in its checkpoint.

    Attributes:
        row: the next row of the permuted manifest (`curr_shard_idx_per_dataset`).
        seed: seed of the permutation (`shard_shuffle_seed_per_dataset`); None for the manifest's own order.
    """

    row: int = 0
    seed: int | None = DEFAULT_SEED


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The data of one window.

    Attributes:
        rows: for each dataset the rows of its manifest in the chosen order, int64[rows] each. VLA Foundry removes a
            dataset without rows from the window, which shifts the modalities and shares of later ones.
        samples: for each dataset the samples in these rows; also its weight in the window's random mixture.
        after: for each dataset the cursor of the next window.
    """

    rows: tuple[IntArray, ...]
    samples: tuple[int, ...]
    after: tuple[Cursor, ...]


def select_window(
    manifests: Sequence[Manifest],
    cursors: Sequence[Cursor],
    samples: int,
    *,
    workers: int,
    weights: Sequence[float] | None = None,
    repeat: bool = False,
) -> Window:
    """Return the shards of one checkpoint window.

    Args:
        manifests: one per dataset.
        cursors: one per dataset; `Window.after` of the previous window, or new ones.
        samples: the window's budget over all datasets; 0 or less takes all remaining rows of the epoch.
        workers: ranks times loader workers per rank. With 0, no rows are returned.
        weights: VLA Foundry's `dataset_weighting`; None for equal parts.
        repeat: its `allow_multiple_epochs`.

    Raises:
        ConfigError: lists have different lengths, weights are invalid, a cursor is outside its manifest, or an epoch
            ends within the window and `repeat` is False.
    """
    given = [1.0] * len(manifests) if weights is None else _checked_weights(weights)
    if not len(manifests) == len(cursors) == len(given):
        raise ConfigError(
            f"{len(manifests)} manifests, {len(cursors)} cursors and {len(given)} weights",
            kind="bad-recipe",
            fix="Give one of each per dataset: 'dataset_manifest' and 'dataset_weighting' have the same length.",
        )
    if not manifests:
        raise ConfigError("a window needs a dataset", kind="empty-source", fix="Give at least one manifest.")
    if workers < 0:
        raise ConfigError(f"{workers} workers are invalid", kind="bad-option", fix="Give ranks times workers.")
    if samples >= 2**63:
        raise ConfigError("the samples of a window exceed 64 bits", kind="bad-recipe", fix="Use fewer samples.")
    if samples <= 0 and repeat:
        raise ConfigError(
            "a window without a number of samples cannot repeat epochs",
            kind="bad-recipe",
            fix="Give a number of samples, or set allow_multiple_epochs to false.",
        )
    total = _sum(given)
    if not isfinite(total * max(samples, 1)):
        raise _bad_weights(given)
    parts = []
    for number, (manifest, cursor, weight) in enumerate(zip(manifests, cursors, given, strict=True)):
        need = ceil(weight * samples / total) if samples > 0 else None
        rows = _take(manifest, _checked_cursor(cursor, manifest), need, workers, repeat, number)
        if workers:
            rows = rows[: len(rows) // workers * workers]
        parts.append((rows, int(manifest.samples[rows].sum()), _advance(cursor, len(rows), len(manifest.shards))))
    rows_of, samples_of, after = zip(*parts, strict=True)
    return Window(rows_of, samples_of, after)


def _take(manifest: Manifest, cursor: Cursor, need: int | None, workers: int, repeat: bool, number: int) -> IntArray:
    """Return the rows of one dataset from its cursor on, before surplus rows are returned."""
    rest = _permuted(len(manifest.shards), cursor.seed)[cursor.row :]
    if need is None:
        return rest
    enough = _enough(manifest.samples[rest], need, workers)
    if enough is not None:
        return rest[:enough]
    have = int(manifest.samples[rest].sum())
    if not repeat:
        raise ConfigError(
            f"the epoch of dataset {number} ends within the window: {need:,} samples on {workers} workers are needed,"
            f" {have:,} samples in {len(rest)} of {len(manifest.shards)} shards are left",
            file=manifest.file,
            kind="too-few-samples",
            fix="Allow several epochs (repeat, allow_multiple_epochs), or use fewer samples.",
        )
    chosen, seed = [rest], cursor.seed
    epochs = _whole_epochs(manifest, need - have, workers - len(rest))
    if epochs * len(manifest.shards) > MOST_ROWS:
        raise ConfigError(
            f"the window would read dataset {number} {epochs:,} times: {need:,} samples on {workers:,} workers",
            file=manifest.file,
            kind="bad-recipe",
            fix="Use fewer samples.",
        )
    for _ in range(epochs):
        seed = None if seed is None else seed + 1
        chosen.append(_permuted(len(manifest.shards), seed))
        have += int(manifest.samples.sum())
    rows = sum(map(len, chosen))
    if have < need or rows < workers:
        last = _permuted(len(manifest.shards), None if seed is None else seed + 1)
        chosen.append(last[: _enough(manifest.samples[last], need - have, workers - rows)])
    return np.concatenate(chosen)


def _enough(samples: IntArray, need: int, workers: int) -> int | None:
    """Return the number of rows for `need` samples and at least one row per worker; None if there are too few."""
    reached = int(np.searchsorted(np.cumsum(samples), need)) + 1
    rows = max(reached, workers, 1)
    return rows if rows <= len(samples) else None


def _whole_epochs(manifest: Manifest, need: int, rows: int) -> int:
    """Return the number of whole epochs to add: as many as fit into `need`, or as needed for one row per worker."""
    fitting = max(0, need // int(manifest.samples.sum()))
    if rows > fitting * len(manifest.shards):
        return max(fitting, -(-rows // len(manifest.shards)))
    return fitting


def _permuted(rows: int, seed: int | None) -> IntArray:
    order = np.arange(rows)
    if seed is not None:
        np.random.default_rng(seed).shuffle(order)
    return order


def _advance(cursor: Cursor, rows: int, size: int) -> Cursor:
    epochs, row = divmod(cursor.row + rows, size)
    return Cursor(row, None if cursor.seed is None else cursor.seed + epochs)


def _sum(weights: Sequence[float]) -> float:
    """Return the sum with Neumaier's compensation (1974), as `sum` does from Python 3.12 on, which VLA Foundry needs.

    Its last bit decides where a share is rounded up, and must not depend on the Python version of Feedmill.
    """
    total = lost = 0.0
    for weight in weights:
        more = total + weight
        lost += (total - more) + weight if abs(total) >= abs(weight) else (weight - more) + total
        total = more
    return total + lost


def _checked_weights(weights: Sequence[Any]) -> list[float]:
    try:
        row = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        row = []
    if len(row) != len(weights) or not all(isfinite(weight) and weight >= 0 for weight in row) or not any(row):
        raise _bad_weights(weights)
    return row


def _bad_weights(weights: Sequence[Any]) -> ConfigError:
    return ConfigError(
        f"the weights {str(list(weights))[:80]} are not all finite and non-negative, with one above 0",
        kind="bad-recipe",
        fix="Give plain numbers such as 0.7, written as in the original run.",
    )


def _checked_cursor(cursor: Cursor, manifest: Manifest) -> Cursor:
    if not 0 <= cursor.row < len(manifest.shards) or (cursor.seed is not None and cursor.seed < 0):
        raise ConfigError(
            f"the cursor (row {cursor.row}, seed {cursor.seed}) is not in a manifest of {len(manifest.shards)} shards",
            file=manifest.file,
            kind="bad-state",
            fix="Use the cursor and the manifest of the same run.",
        )
    return cursor


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read a `manifest.jsonl`: ``{"shard": name, "num_sequences": samples}`` on each line; other keys are ignored.

    Args:
        path: path or URL.

    Raises:
        NotFound: no such file.
        ConfigError: a line is not such an object; the message contains its number.
    """
    url = os.fspath(path)
    folder, name = split_url(url if "://" in url else os.path.abspath(url))
    rows = read_rows(open_store(folder), name)
    return Manifest(tuple(row.shard for row in rows), np.array([row.samples for row in rows], np.int64), url)


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
            kind="bad-option",
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
            "without workers the order depends on the training program", kind="bad-option", fix="Give at least 1."
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
