"""Energon's `WorkerConfig`: the rank of this process and its workers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feedmill.compat.energon.closed import signed
from feedmill.compat.energon.errors import log_exception, reraise_exception, without_effect
from feedmill.loading.layout import given_or_found
from feedmill.loading.typed import current

__all__ = ["WorkerConfig"]


@dataclass(slots=True, eq=False)
class WorkerConfig:
    """The rank of this process in the data-parallel group, and its workers.

    Attributes:
        rank, world_size: rank and size of the data-parallel group; ranks that share one copy of the model have the
            same rank.
        num_workers: number of workers of this rank.
        data_parallel_group: group over which states are gathered; the world if None.
        seed_offset: seed of the order and of random numbers.
        worker_debug_path, worker_log_level: no effect, with a warning: `feedmill trace` shows what each step saw.
        global_error_handler: called with (exception, key, sources) for a failed sample. If it raises, the iteration
            ends; otherwise a substitute replaces the sample.
        restore_error_handler: no effect, with a warning; a resume does not encode samples again.
    """

    rank: int
    world_size: int
    num_workers: int
    data_parallel_group: Any = None
    seed_offset: int = 0
    worker_debug_path: str | None = None
    worker_log_level: int = 0
    global_error_handler: Callable[..., None] = log_exception
    restore_error_handler: Callable[..., None] = reraise_exception

    def __post_init__(self) -> None:
        for name in ("worker_debug_path", "worker_log_level"):
            if getattr(self, name):
                without_effect(name, "no logs are written: feedmill trace shows what each step saw", level=5)
        if self.restore_error_handler is not reraise_exception:
            without_effect("restore_error_handler", "a resume does not encode samples again", level=5)

    def global_rank(self) -> int:
        """Return the rank of this process in the world."""
        if self.data_parallel_group is None:
            return self.rank
        import torch.distributed as distributed

        return int(distributed.get_global_rank(self.data_parallel_group, self.rank))

    def rank_worker_id(self) -> int:
        """Return the number of this worker of the rank: 0, because hooks do not depend on the worker that runs them."""
        return 0

    def assert_worker(self) -> None:
        """Do nothing: datasets can be iterated in any process."""

    def global_worker_id(self, override_local_worker_id: int | None = None) -> int:
        """Return the number of a worker over all ranks.

        Args:
            override_local_worker_id: number of the worker of this rank; None for `rank_worker_id`.
        """
        local = self.rank_worker_id() if override_local_worker_id is None else override_local_worker_id
        return self.rank * self.num_workers + local

    def worker_seed(self, override_local_worker_id: int | None = None) -> int:
        """Return Energon's seed of a worker, which depends on the rank, the worker and `seed_offset`.

        Feedmill's order and generators do not use it: they depend on the position of a sample, not on its worker.
        """
        worker = self.global_worker_id(override_local_worker_id) if self.num_workers else self.rank
        digest = hashlib.sha1(f"{worker},{self.seed_offset}".encode(), usedforsecurity=False).digest()
        return int.from_bytes(digest[-4:], "big")

    def config(self) -> dict[str, Any]:
        """Return the ranks and workers as plain data; a data-parallel group by its size."""
        group = self.data_parallel_group
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "num_workers": self.num_workers,
            "data_parallel_group": None if group is None else group.size(),
        }

    @property
    def active_worker_sample_index(self) -> int:
        """Return the position of the current sample in the plan, while a hook runs."""
        return current("position", "sample")

    @property
    def active_worker_batch_index(self) -> int:
        """Return the number of this rank's current batch, while a hook runs."""
        return current("step", "batch")

    def should_log(self, level: int) -> bool:
        """Return whether messages of a level are written."""
        return level <= self.worker_log_level

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkerConfig):
            return NotImplemented
        own = (self.rank, self.world_size, self.num_workers)
        return own == (other.rank, other.world_size, other.num_workers)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    @signed
    def default_worker_config(cls, num_workers: int = 4, data_parallel_group: Any = None) -> WorkerConfig:
        """Return the configuration of this process, from torch.distributed or the launcher's environment variables."""
        if data_parallel_group is not None:
            import torch.distributed as distributed

            size = distributed.get_world_size(data_parallel_group)
            return cls(distributed.get_rank(data_parallel_group), size, num_workers, data_parallel_group)
        ranks = given_or_found(None, None)
        return cls(ranks.rank, ranks.world_size, num_workers)


WorkerConfig.__init__ = signed(WorkerConfig.__init__)  # type: ignore[method-assign]
