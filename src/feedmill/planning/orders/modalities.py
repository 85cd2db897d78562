"""The order of Modalities' `resumable_distributed_sampler`, on one rank and over all ranks.

The full order is ``0 ... n-1``, or `torch.randperm(n)` with the seed ``seed + epoch``. Its first `skip` samples are
skipped. The rest is dealt to the ranks one by one: rank ``r`` gets places ``r, r + ranks, ...``. To give all ranks the
same number, the end is either cut (`drop_last`) or padded from the beginning of the full order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.kernels.order.mersenne import inverse, randperm
from feedmill.planning.nodes.base import NOWHERE, Epochs, IntArray, Leaf, Node, Wrapper
from feedmill.planning.orders import countable, made_whole

_KEPT = 2


def dealt(n: int, ranks: int, skip: int = 0, *, drop_last: bool = True) -> int:
    """Return the number of samples of all ranks together, a multiple of `ranks`.

    Raises:
        ConfigError: `ranks` is below 1, or `skip` exceeds the number of samples.
    """
    if ranks < 1:
        raise ConfigError(f"a sampler cannot have {ranks} ranks", kind="bad-recipe", fix="Give at least 1 rank.")
    if not 0 <= skip <= n:
        raise ConfigError(
            f"the sampler cannot skip {skip:,} of {n:,} samples",
            kind="bad-recipe",
            fix="Give the number of samples seen so far in this epoch by all ranks together.",
        )
    left = n - skip
    return (left // ranks if drop_last else -(-left // ranks)) * ranks


class ModalitiesSampler(Wrapper):
    """One pass of Modalities' sampler over its child, for all ranks together.

    Position ``k`` is place ``k`` of the order that is dealt to the ranks. A global batch of a loader with the same
    number of ranks therefore holds the same samples as in Modalities. With `batch_size`, the assignment of samples to
    ranks matches too: positions are laid out so that a rank's slice of the global batch is its batch in Modalities.

    Epoch ``e`` of this node is the sampler with ``epoch + e``. A shuffled pass takes 4 bytes per sample for each cached
    epoch (up to two), and the same again once the inverse is needed. A pass in stored order takes no memory.

    Args:
        child: a finite node; Modalities' own order needs the dataset itself (`Leaf`).
        ranks: Modalities' `num_replicas`.
        shuffle, seed, epoch, drop_last: as in Modalities.
        skip: Modalities' `skip_num_global_samples`.
        batch_size: samples per rank and step.

    Raises:
        ConfigError: no sample remains, or an argument is out of range.
    """

    length: int
    in_slices = True
    scatters = True
    tag = "modalities"
    options: ClassVar[Mapping[str, Any]] = {
        "ranks": None,
        "shuffle": False,
        "seed": 0,
        "epoch": 0,
        "drop_last": True,
        "skip": 0,
        "batch_size": None,
    }

    def __init__(
        self,
        child: Node,
        ranks: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        drop_last: bool = True,
        skip: int = 0,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(child)
        self._size = child.finite("a sampler")
        self.length = dealt(self._size, ranks, skip, drop_last=drop_last)
        if not self.length:
            raise ConfigError(
                f"the sampler has no samples: {self._size - skip:,} samples for {ranks} ranks",
                kind="empty-source",
                fix="Use fewer ranks, skip less, or set drop_last to false.",
            )
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"batch_size {batch_size} is invalid", kind="bad-recipe", fix="Give at least 1.")
        self.ranks, self.shuffle, self.drop_last, self.skip = ranks, shuffle, drop_last, skip
        self.seed, self.epoch, self.batch_size = seed, epoch, batch_size
        # How often a pass begins the full order; more than once if its beginning pads the end.
        self._rounds = -(-countable(skip + self.length) // self._size)
        self._orders = _Orders(self._size, seed + epoch)

    def inward(self, positions: IntArray, epochs: Epochs) -> tuple[IntArray, Epochs]:
        places = self._places(positions) + self.skip
        if self._rounds == 1:
            return self._apply(self._orders.forward, places, epochs), epochs
        rounds, places = np.divmod(places, self._size)
        return self._apply(self._orders.forward, places, epochs), epochs * self._rounds + rounds

    def outward(self, positions: IntArray, epochs: IntArray) -> tuple[IntArray, IntArray]:
        own, rounds = np.divmod(epochs, self._rounds)
        places = self._apply(self._orders.backward, positions, own)
        places = places + rounds * self._size - self.skip
        lost = (places < 0) | (places >= self.length)
        return np.where(lost, NOWHERE, self._positions(np.where(lost, 0, places))), own

    def _apply(self, order: Callable[[int], npt.NDArray[Any]], places: IntArray, epochs: Epochs) -> IntArray:
        """Return the order, or its inverse, of each place's epoch at that place."""
        if not self.shuffle:
            return places
        if isinstance(epochs, int):
            return np.asarray(order(epochs)[places], np.int64)
        moved = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            rows = np.flatnonzero(epochs == epoch)
            moved[rows] = order(epoch)[places[rows]]
        return moved

    def _places(self, positions: IntArray) -> IntArray:
        """Convert positions, which are grouped by rank within each global batch, to places in dealing order."""
        if self.batch_size is None:
            return positions
        first, batch = self._batch(positions)
        rank, number = np.divmod(positions - first, batch)
        return np.asarray(first + number * self.ranks + rank, np.int64)

    def _positions(self, places: IntArray) -> IntArray:
        """Return the inverse of `_places`."""
        if self.batch_size is None:
            return places
        first, batch = self._batch(places)
        number, rank = np.divmod(places - first, self.ranks)
        return np.asarray(first + rank * batch + number, np.int64)

    def _batch(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Return the start of the global batch of each position, and its samples per rank; the last may be smaller."""
        batch = min(self.batch_size or 1, self.length // self.ranks)
        first = positions - positions % (self.ranks * batch)
        return first, np.minimum(batch, (self.length - first) // self.ranks)

    def reach(self, total: int) -> list[int]:
        return [-(-total // self.length) * self._rounds * self._size]

    def describe(self) -> str:
        order = f"shuffle seed {self.seed} epoch {self.epoch}" if self.shuffle else "in order"
        end = "" if self.drop_last else ", filled up"
        skipped = f", without the first {self.skip:,}" if self.skip else ""
        layout = "" if self.batch_size is None else f", batches of {self.batch_size}"
        return f"modalities sampler, {self.ranks} ranks, {order}{end}{skipped}{layout}"


def sampler_indices(
    n: int,
    rank: int,
    ranks: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = True,
    skip: int = 0,
) -> IntArray:
    """Return all samples that Modalities' sampler yields on one rank, int64.

    >>> sampler_indices(10, 0, 1, shuffle=True, skip=5).tolist()
    [9, 0, 8, 6, 2]

    Raises:
        ConfigError: the rank or another argument is out of range.
    """
    total = dealt(n, ranks, skip, drop_last=drop_last)
    if not 0 <= rank < ranks:
        raise ConfigError(
            f"rank {rank} of {ranks} ranks is invalid", kind="bad-recipe", fix=f"Give a rank from 0 to {ranks - 1}."
        )
    if not total:
        return np.empty(0, np.int64)
    node = ModalitiesSampler(Leaf(0, n), ranks, shuffle=shuffle, seed=seed, epoch=epoch, drop_last=drop_last, skip=skip)
    return node.locate(np.arange(rank, total, ranks)).index


class _Orders:
    """Cache of the permutations of recent epochs and their inverses. Thread-safe."""

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._seed = size, seed
        self._lock = Lock()
        self._forward: dict[int, npt.NDArray[Any]] = {}
        self._backward: dict[int, npt.NDArray[Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _Orders, (self._size, self._seed)  # the other process recomputes the permutations

    def forward(self, epoch: int) -> npt.NDArray[Any]:
        """Return the permutation of an epoch."""
        with self._lock:
            return self._kept(self._forward, epoch, self._make)

    def backward(self, epoch: int) -> npt.NDArray[Any]:
        """Return the inverse permutation of an epoch."""
        with self._lock:
            return self._kept(self._backward, epoch, self._invert)

    def _make(self, epoch: int) -> npt.NDArray[Any]:
        with made_whole(self._size):
            return randperm(self._size, self._seed + epoch)

    def _invert(self, epoch: int) -> npt.NDArray[Any]:
        with made_whole(self._size):
            return inverse(self._kept(self._forward, epoch, self._make))

    def _kept(
        self, kept: dict[int, npt.NDArray[Any]], epoch: int, make: Callable[[int], npt.NDArray[Any]]
    ) -> npt.NDArray[Any]:
        """Return a cached array, or make it and evict the least recently used one."""
        found = kept.pop(epoch, None)
        if found is None:
            if len(kept) >= _KEPT:
                del kept[next(iter(kept))]
            found = make(epoch)
        kept[epoch] = found
        return found
