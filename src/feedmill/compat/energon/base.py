"""The base class of the datasets of this package, and the options with which a loader opens them.

A dataset describes which samples come in which order; `get_savable_loader` iterates it. `EnergonDataset` is a plan with
the arguments of a loader, and the wrappers (`feedmill.compat.energon.views`) are views of other datasets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from feedmill.compat.energon.streams import Stream
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.errors import ConfigError, MissingExtra
from feedmill.loading.cachepool import CachePool

try:
    from torch.utils.data import IterableDataset
except ImportError:
    raise MissingExtra("the datasets of Energon need torch", extra="torch") from None

__all__ = ["LoaderOptions", "SavableDataset"]


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """Options of a loader that concern how it loads: see `get_savable_loader`."""

    prefetch_factor: int = 2
    cache_pool: CachePool | None = None
    watchdog_timeout_seconds: float | None = 60
    processes: bool | None = None


class SavableDataset(IterableDataset[Any], ABC):  # type: ignore[misc]
    """A dataset of one rank.

    Attributes:
        worker_config: the rank and its workers.
    """

    worker_config: WorkerConfig

    @abstractmethod
    def stream(self, options: LoaderOptions) -> Stream:
        """Return an iterable over the items of this rank, with a state; each iteration is one loop."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items of this rank in one loop; of one pass over the data if they repeat.

        An upper bound if hooks skip, pack or yield.
        """

    def len_rank(self) -> int:
        """Return `len`, with Energon's name."""
        return len(self)

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of items of a worker: those of this rank, divided evenly."""
        count = max(self.worker_config.num_workers, 1)
        index = self.worker_config.rank_worker_id() if worker_idx is None else worker_idx
        return len(self) // count + (index < len(self) % count)

    def __iter__(self) -> Iterator[Any]:
        """Iterate the items in this thread, once. Use a loader to prefetch and to resume."""
        return iter(self.stream(LoaderOptions()))

    @abstractmethod
    def can_restore_sample(self) -> bool:
        """Return whether a loader of this dataset has `restore_sample`."""

    def assert_can_restore(self) -> None:
        """Raise `ConfigError` if a loader of this dataset has no `restore_sample`."""
        if not self.can_restore_sample():
            raise ConfigError(
                f"the batches of {type(self).__name__} cannot be restored by their keys",
                kind="unsupported",
                fix="Read the samples with plan.read(positions), or use `feedmill trace`.",
            )

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return a description as plain data."""
