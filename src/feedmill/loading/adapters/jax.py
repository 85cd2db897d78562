"""Batches as global arrays of JAX, and positions in the checkpoints of Orbax and Grain.

`GlobalBatches` yields arrays that are divided over all processes. It has `get_state` and `set_state` as Grain's
iterators do, so that ``grain.checkpoint.CheckpointSave`` of Orbax saves it. The state is the same in every process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from feedmill.loading.adapters.tracked import TrackedBatches
from feedmill.loading.loader import Loader


class GlobalBatches:
    """The batches of a loader as global arrays: each process gives its rows, and all have the whole batch.

        batches = GlobalBatches(fm.Loader(plan, 8), NamedSharding(mesh, PartitionSpec("data")))

    Args:
        loader: the loader of this process; its rank is JAX's process, which `find_ranks` finds.
        sharding: of the arrays; their first axis is that of the samples. None: arrays stay on this process.

    Attributes:
        used: number of batches that count as used in the state. Loops that take batches ahead of training set it to the
            number of batches they have trained on; None for all that were taken.
    """

    def __init__(self, loader: Loader, sharding: jax.sharding.Sharding | None = None) -> None:
        self._taken, self._sharding = TrackedBatches(loader), sharding
        self.used: int | None = None
        self._iterator: Iterator[Any] | None = None

    def __iter__(self) -> GlobalBatches:
        return self

    def __next__(self) -> Any:
        """Return the next batch; fields that are no arrays of numbers are those of this process."""
        if self._iterator is None:
            self._iterator = iter(self._taken)
        batch = next(self._iterator)
        return {name: self._shared(value) for name, value in batch.items()} if isinstance(batch, dict) else batch

    def get_state(self) -> bytes:
        """Return the position after the used batches as JSON text, the same in every process."""
        return json.dumps(self._taken.checkpoint(self.used)).encode()

    def set_state(self, state: bytes) -> None:
        """Resume from a state, with any number of processes and any batch size."""
        self._iterator = None
        self._taken.load(json.loads(state))
        self.used = None

    def start_prefetch(self) -> None:
        """Do nothing: the loader prefetches when it is iterated. Grain's checkpoints call this after a restore."""

    def _shared(self, value: Any) -> Any:
        if self._sharding is None or not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            return value
        return jax.make_array_from_process_local_data(self._sharding, value)
