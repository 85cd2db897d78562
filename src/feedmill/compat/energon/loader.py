"""Energon's loaders, over `feedmill.Loader`: the same calls, Feedmill's order and state."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

from feedmill.compat.energon.datasets import EnergonDataset
from feedmill.compat.energon.errors import reraise_exception
from feedmill.compat.energon.worker import WorkerConfig, without_effect
from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import Source
from feedmill.loading.cachepool import CachePool
from feedmill.loading.encoder import TOLERANCE, TaskEncoder
from feedmill.loading.epochs import EpochLoader
from feedmill.loading.failures import MISTAKES, Failure, Substitute
from feedmill.loading.gathered import gather, scatter
from feedmill.loading.loader import Loader
from feedmill.loading.portable import portable
from feedmill.loading.typed import positions_of
from feedmill.loading.workers import Workers

__all__ = ["BasicDataLoader", "SavableDataLoader", "get_loader", "get_savable_loader"]

_MISTAKES = frozenset(kind.__name__ for kind in MISTAKES)
_TOLERANCE = 100
"""Failures in a row that end a run where the task says nothing, as in Energon."""
_HOOKS = (
    "cook_crude_sample",
    "encode_sample",
    "preencode_sample",
    "postencode_sample",
    "select_samples_to_pack",
    "pack_selected_samples",
    "batch",
    "encode_batch",
)


class SavableDataLoader(EpochLoader):
    """Batches of one rank; its state continues with any number of ranks and workers.

    Attributes:
        dataset: what it loads.
        worker_config: this rank and its workers.
    """

    def __init__(
        self,
        dataset: EnergonDataset,
        *,
        prefetch_factor: int = 2,
        cache_pool: CachePool | None = None,
        watchdog_timeout_seconds: float | None = 60,
        processes: bool | None = None,
    ) -> None:
        config, encoder = dataset.worker_config, dataset.fitted()
        if cache_pool is not None:
            dataset.task_encoder.cache = cache_pool
        if processes is None:
            processes = encoder.has_user_code and portable(encoder)
        loader = Loader(
            dataset.plan,
            dataset.batch_size or 1,
            rank=config.rank,
            world_size=config.world_size,
            workers=Workers(config.num_workers, processes=processes and config.num_workers > 0),
            prefetch=prefetch_factor,
            task_encoder=encoder,
            buffer=encoder.window(dataset.buffer, dataset.batch_size),
            remainder="drop" if dataset.drop_last else "ragged",
            on_error=_on_error(config, _tolerance(dataset.task_encoder)),
            seed=config.seed_offset,
            stall=watchdog_timeout_seconds,
        )
        super().__init__(
            loader, length=dataset.epoch, restart=dataset.restart, expected=dataset.steps, cycle=dataset.cycle
        )
        self.dataset, self.worker_config = dataset, config

    def save_state_rank(self) -> dict[str, Any]:
        """Return this rank's state, as plain data (JSON)."""
        return self.state_dict()

    def restore_state_rank(self, state: Any) -> None:
        """Continue where `save_state_rank` was called; nothing happens for None.

        Raises:
            ConfigError: it is no such state, or that of other data or another order; says what changed.
        """
        if state is not None:
            self.load_state_dict(state)

    def save_state_global(self, global_dst_rank: int) -> list[Any] | None:
        """Return the states of all ranks, on one rank of the world; None on the others. All ranks have to call it."""
        return gather(self.state_dict(), global_dst_rank, self.worker_config.data_parallel_group)

    def restore_state_global(self, state: Sequence[Any] | None, *, src_rank: int | None = None) -> None:
        """Continue where `save_state_global` was called, on any number of ranks.

        Args:
            state: what it gave; with `src_rank` only that rank needs it.
            src_rank: rank of the world that sends it to the others; None if each rank has it.
        """
        states = state if src_rank is None else scatter(state, src_rank, self.worker_config.data_parallel_group)
        if states is not None:
            self.load_state_dict(list(states))

    def save_state(self, dst_rank: int) -> list[Any] | None:
        """Call `save_state_global`, whose old name this is."""
        return self.save_state_global(dst_rank)

    def restore_state(self, state: Sequence[Any] | None) -> None:
        """The old name of `restore_state_global`."""
        self.restore_state_global(state)

    def can_restore_sample(self) -> bool:
        """Return whether `restore_sample` works: everywhere but with packing, groups and hooks that yield."""
        encoder = self.dataset.fitted()
        return not (encoder.packs or encoder.groups)

    def restore_sample(self, restore_key: Any) -> Any:
        """Return the batch (or, without batches, the sample) of a ``__restore_key__``, made again as it was.

        Args:
            restore_key: of a batch or a sample that a loader of this data gave, whatever its ranks; or a position of
                the plan, or a list of them. One sample's key gives a batch of one.

        Raises:
            ConfigError: packs, groups, or no such key.
        """
        return self.loader.again(positions_of(restore_key))

    def config(self) -> dict[str, Any]:
        """Return plain data that says what is loaded."""
        return self.dataset.config()


BasicDataLoader = SavableDataLoader


def get_savable_loader(
    dataset: EnergonDataset,
    *,
    worker_config: WorkerConfig | None = None,
    checkpoint_every_sec: float = 60,  # noqa: ARG001
    checkpoint_every_min_n_samples: int | None = None,  # noqa: ARG001
    n_checkpoints: int | None = None,  # noqa: ARG001
    gc_collect_every_n_steps: int = 0,  # noqa: ARG001
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    watchdog_timeout_seconds: float | None = 60,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool = False,
    processes: bool | None = None,
) -> SavableDataLoader:
    """A loader whose state can be saved. It saves at any time and resumes without replay, so that what Energon asks for
    checkpoints is accepted and not needed.

    Args:
        prefetch_factor: batches per worker that are made ahead.
        cache_pool: given to cookers with ``need_cache``.
        watchdog_timeout_seconds: remark on batches that take longer; None for never.
        processes: worker processes, or threads; None for processes where the task encoder has hooks of its own that can
            be sent to them (nothing in it is defined in the main program), as reading and decoding alone do well with
            threads.
    """
    if fail_on_timeout:
        without_effect("fail_on_timeout", "slow batches are logged; feedmill.Workers(timeout=...) ends hung workers")
    if watchdog_initial_timeout_seconds is not None:
        without_effect("watchdog_initial_timeout_seconds", "watchdog_timeout_seconds holds from the first batch on")
    if worker_config is not None:
        if worker_config != dataset.worker_config:
            raise ConfigError("the loader's worker_config is not the dataset's", fix="Leave it out here.")
        warnings.warn("worker_config is the dataset's; leave it out here", DeprecationWarning, stacklevel=2)
    return SavableDataLoader(
        dataset,
        prefetch_factor=prefetch_factor,
        cache_pool=cache_pool,
        watchdog_timeout_seconds=watchdog_timeout_seconds,
        processes=processes,
    )


def get_loader(dataset: EnergonDataset, **options: Any) -> SavableDataLoader:
    """`get_savable_loader`: every loader of Feedmill can be saved."""
    return get_savable_loader(dataset, **options)


def _tolerance(encoder: TaskEncoder) -> int | None:
    """Return how many failures in a row end the run: the least that a hook or cooker of the task allows."""
    hooks = [getattr(encoder, name, None) for name in _HOOKS] + [cooker.cook for cooker in encoder.cookers]
    found = [getattr(hook, TOLERANCE) for hook in hooks if hasattr(hook, TOLERANCE)]
    allowed = found or [getattr(encoder, "__default_failure_tolerance__", _TOLERANCE)]
    return min((number for number in allowed if number), default=None)


def _on_error(config: WorkerConfig, in_a_row: int | None) -> Literal["raise"] | Substitute:
    if config.global_error_handler is reraise_exception:
        return "raise"
    handler = config.global_error_handler

    def told(failure: Failure) -> str | None:
        if failure.kind in _MISTAKES:
            return "raise"
        source = Source(
            str(failure.source), failure.file or "", failure.offset or 0, 0, failure.index, failure.key or ""
        )
        error = DataError(failure.error, kind=failure.kind)
        handler(error, failure.key, [source])
        return None

    return Substitute(handler=told, in_a_row=in_a_row)
