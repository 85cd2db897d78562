"""Energon's `WorkerConfig`: the rank of this process and its workers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feedmill.compat.energon.errors import log_exception, reraise_exception
from feedmill.loading.ranks import given_or_found

__all__ = ["WorkerConfig", "without_effect"]


def without_effect(option: str, why: str) -> None:
    """Warn that an option of Energon has no effect.

    Args:
        option: the option, or several of them.
        why: the reason, or what to use instead.
    """
    warnings.warn(f"{option} has no effect: {why} (docs/migration/energon.md)", UserWarning, stacklevel=4)


@dataclass(slots=True, eq=False)
class WorkerConfig:
    """The rank of this process in the data-parallel group, and its workers.

    Attributes:
        rank, world_size: rank and size of the data-parallel group; ranks that share one copy of the model have the
            same rank.
        num_workers: number of workers of this rank.
        data_parallel_group: group over which states are gathered; the world if None.
        seed_offset: seed of the order and of random numbers.
        worker_debug_path: path of the debug logs, with ``{worker_id}`` and perhaps ``{pid}``; None for the standard
            output. See `feedmill.compat.energon.debug_log`.
        worker_log_level: 1 to log the keys of batches, 2 or more for the locations of their samples, too; 0 for no log.
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
        if self.restore_error_handler is not reraise_exception:
            without_effect("restore_error_handler", "a resume does not encode samples again")

    def global_rank(self) -> int:
        """Return the rank of this process in the world."""
        if self.data_parallel_group is None:
            return self.rank
        import torch.distributed as distributed

        return int(distributed.get_global_rank(self.data_parallel_group, self.rank))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkerConfig):
            return NotImplemented
        own = (self.rank, self.world_size, self.num_workers)
        return own == (other.rank, other.world_size, other.num_workers)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def default_worker_config(cls, num_workers: int = 4, data_parallel_group: Any = None) -> WorkerConfig:
        """Return the configuration of this process, from torch.distributed or the launcher's environment variables."""
        if data_parallel_group is not None:
            import torch.distributed as distributed

            size = distributed.get_world_size(data_parallel_group)
            return cls(distributed.get_rank(data_parallel_group), size, num_workers, data_parallel_group)
        ranks = given_or_found(None, None)
        return cls(ranks.rank, ranks.world_size, num_workers)
