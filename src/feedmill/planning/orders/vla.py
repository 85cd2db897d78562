"""VLA Foundry's selection of shards for one checkpoint window, and the state from which the next window continues.

Each dataset is a manifest of shards. Its rows are permuted by ``numpy.random.default_rng(seed)``; a window takes rows
from a cursor on until it has the dataset's share of the window's samples and at least one row for each worker, runs
into further epochs (seeds ``seed + 1``, ...) where that is allowed, and gives back the last rows until their number is
a multiple of the workers. The share of dataset ``d`` is ``ceil(weight_d * samples / sum of weights)`` in float64.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.vla.manifest import read_rows
from feedmill.planning.nodes.base import IntArray
from feedmill.planning.orders.whole import countable
from feedmill.storage import open_store, split_url

DEFAULT_SEED = 42
"""VLA Foundry's `hparams.seed`, with which every dataset begins."""

MOST_ROWS = 2**31
"""Most rows that one dataset may have in a window; more is a mistake in the budget."""


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """The shards of one dataset.

    Attributes:
        shards: the shards' names as the manifest has them.
        samples: samples in each, int64[shards].
        file: where it was read from, for messages.

    Raises:
        ConfigError: no samples at all, a negative number, or not one number per shard.
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
                kind="bad-manifest",
                fix="Write its lines again from the shards.",
            )


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a dataset was read when a window ended; VLA Foundry stores it in its checkpoint.

    Attributes:
        row: the next row of the permuted manifest (`curr_shard_idx_per_dataset`).
        seed: of the permutation (`shard_shuffle_seed_per_dataset`); None for the manifest's own order.
    """

    row: int = 0
    seed: int | None = DEFAULT_SEED


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """What one window reads.

    Attributes:
        rows: per dataset the rows of its manifest in the order chosen, int64[rows] each. A dataset without rows is
            left out of the window by VLA Foundry, which shifts the modalities and shares of those behind it.
        samples: per dataset the samples in these rows; also its share in the random mix of the window.
        after: per dataset the cursor of the next window.
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
        cursors: one per dataset; `Window.after` of the window before, or fresh ones.
        samples: the window's budget over all datasets; 0 or less takes every row that is left of the epoch.
        workers: ranks times loader workers per rank. With 0 nothing is given back.
        weights: VLA Foundry's `dataset_weighting`; None for equal parts.
        repeat: its `allow_multiple_epochs`.

    Raises:
        ConfigError: lists of different lengths, bad weights, a cursor outside its manifest, or an epoch that ends
            within the window and may not be repeated.
    """
    given = [1.0] * len(manifests) if weights is None else _checked_weights(weights)
    if not len(manifests) == len(cursors) == len(given):
        raise ConfigError(
            f"{len(manifests)} manifests, {len(cursors)} cursors and {len(given)} weights",
            kind="bad-weight",
            fix="Give one of each per dataset: 'dataset_manifest' and 'dataset_weighting' have the same length.",
        )
    if not manifests:
        raise ConfigError("a window over no dataset", kind="empty-source", fix="Give at least one manifest.")
    if workers < 0:
        raise ConfigError(f"a window for {workers} workers", kind="bad-workers", fix="Give ranks times workers.")
    if samples >= 2**63:
        raise ConfigError("the samples of a window do not fit 64 bits", kind="bad-window", fix="Ask for fewer.")
    if samples <= 0 and repeat:
        raise ConfigError(
            "a window that takes all that is left cannot also repeat",
            kind="bad-window",
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
    """Rows of one dataset from its cursor on, before any are given back."""
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
            kind="epoch-ends",
            fix="Allow several epochs (repeat, allow_multiple_epochs), or ask for fewer samples.",
        )
    chosen, seed = [rest], cursor.seed
    epochs = _whole_epochs(manifest, need - have, workers - len(rest))
    if epochs * len(manifest.shards) > MOST_ROWS:
        raise ConfigError(
            f"the window would read dataset {number} {epochs:,} times: {need:,} samples on {workers:,} workers",
            file=manifest.file,
            kind="bad-window",
            fix="Ask for fewer samples.",
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
    """Return how many rows hold `need` samples and serve all workers, at least one; None if all are too few."""
    reached = int(np.searchsorted(np.cumsum(samples), need)) + 1
    rows = max(reached, workers, 1)
    return rows if rows <= len(samples) else None


def _whole_epochs(manifest: Manifest, need: int, rows: int) -> int:
    """Epochs to add as a whole: as many as fit into the samples needed, or as many as give every worker a row."""
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
    """The sum as Python's `sum` gives it from 3.12 on, which VLA Foundry needs: with Neumaier's compensation (1974).

    Its last bit decides where a share is rounded up, and must not depend on the Python that Feedmill runs on.
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
        f"the weights {str(list(weights))[:80]} are not all finite and 0 or more, with one above 0",
        kind="bad-weight",
        fix="Give plain numbers such as 0.7, written as in the run to be continued.",
    )


def _checked_cursor(cursor: Cursor, manifest: Manifest) -> Cursor:
    if not 0 <= cursor.row < len(manifest.shards) or (cursor.seed is not None and cursor.seed < 0):
        raise ConfigError(
            f"the cursor (row {cursor.row}, seed {cursor.seed}) is not in a manifest of {len(manifest.shards)} shards",
            file=manifest.file,
            kind="bad-cursor",
            fix="Take cursor and manifest from the same run.",
        )
    return cursor


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """A `manifest.jsonl`: ``{"shard": name, "num_sequences": samples}`` on each line; further keys are left alone.

    Args:
        path: path or URL.

    Raises:
        NotFound: there is no such file.
        ConfigError: a line is not such an object; the message names it.
    """
    url = os.fspath(path)
    folder, name = split_url(url if "://" in url else os.path.abspath(url))
    rows = read_rows(open_store(folder), name)
    return Manifest(tuple(row.shard for row in rows), np.array([row.samples for row in rows], np.int64), url)
