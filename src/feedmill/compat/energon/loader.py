"""Energon's loaders, implemented with `feedmill.Loader`.

They have Energon's methods, and Feedmill's order and state. Scripts create them with `get_loader` and
`get_savable_loader`, which are the same here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Literal

from feedmill.compat.energon.datasets import EnergonDataset
from feedmill.compat.energon.debug_log import DebugLog
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

_numbers = count()
_MISTAKES = frozenset(kind.__name__ for kind in MISTAKES)
_TOLERANCE = 100
"""Default number of consecutive failures that end a run, as in Energon."""
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
    """Loader of the batches of one rank. Its state can be resumed with any number of ranks and workers.

    Args:
        dataset: the dataset to load.
        prefetch_factor, cache_pool, watchdog_timeout_seconds, processes: as for `get_savable_loader`.

    Attributes:
        dataset: the dataset that it loads.
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
        chosen = processes is not None
        if processes is None:
            processes = encoder.has_user_code and portable(encoder)
        loader = Loader(
            dataset.plan,
            dataset.batch_size or 1,
            rank=config.rank,
            world_size=config.world_size,
            workers=Workers(
                config.num_workers,
                processes=processes and config.num_workers > 0,
                adapt=None if chosen else True,
            ),
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
        self._log = DebugLog(config, next(_numbers), "val" if dataset.restart else "train")

    def __iter__(self) -> Iterator[Any]:
        return self._log.batches(super().__iter__())

    def save_state_rank(self) -> dict[str, Any]:
        """Return this rank's state, as plain data (JSON)."""
        return self.state_dict()

    def restore_state_rank(self, state: Any) -> None:
        """Resume from a state of `save_state_rank`. None has no effect.

        Raises:
            ConfigError: the state is invalid, or it belongs to other data or another order; the message names the
                change.
        """
        if state is not None:
            self.load_state_dict(state)

    def save_state_global(self, global_dst_rank: int) -> list[Any] | None:
        """Return the states of all ranks on rank `global_dst_rank` of the world, else None. All ranks must call it."""
        return gather(self.state_dict(), global_dst_rank, self.worker_config.data_parallel_group)

    def restore_state_global(self, state: Sequence[Any] | None, *, src_rank: int | None = None) -> None:
        """Resume from a state of `save_state_global`, on any number of ranks.

        Args:
            state: the state; with `src_rank`, only that rank needs it.
            src_rank: rank of the world that sends the state to the others; None if each rank has it.
        """
        states = state if src_rank is None else scatter(state, src_rank, self.worker_config.data_parallel_group)
        if states is not None:
            self.load_state_dict(list(states))

    def save_state(self, dst_rank: int) -> list[Any] | None:
        """Call `save_state_global`, whose deprecated name this is."""
        return self.save_state_global(dst_rank)

    def restore_state(self, state: Sequence[Any] | None) -> None:
        """Call `restore_state_global`, whose deprecated name this is."""
        self.restore_state_global(state)

    def can_restore_sample(self) -> bool:
        """Return whether `restore_sample` is supported: not with packing, groups or hooks that yield."""
        encoder = self.dataset.fitted()
        return not (encoder.packs or encoder.groups)

    def restore_sample(self, restore_key: Any) -> Any:
        """Load the batch (or the sample, if batching is disabled) of a ``__restore_key__`` again.

        Args:
            restore_key: key of a batch or sample from a loader of this data with any number of ranks, a position of the
                plan, or a list of positions. The key of one sample returns a batch of one.

        Raises:
            ConfigError: packing or groups are used, or the key is invalid.
        """
        return self.loader.again(positions_of(restore_key))

    def config(self) -> dict[str, Any]:
        """Return a description of the dataset as plain data."""
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
    """Return a loader whose state can be saved.

    The state can be saved at any time and resumes without replay. Energon's options for checkpoints are accepted
    without effect.

    Args:
        dataset: the dataset to load.
        worker_config: deprecated; must equal that of the dataset.
        prefetch_factor: number of batches per worker to prefetch.
        cache_pool: passed to cookers with ``need_cache``.
        watchdog_timeout_seconds: log batches that take longer; None for never.
        processes: whether workers are processes rather than threads. By default they are processes if the task encoder
            overrides hooks and can be pickled, which requires that nothing in it is defined in the main program.
            Threads suffice for reading and decoding.
    """
    if fail_on_timeout:
        without_effect("fail_on_timeout", "slow batches are logged; feedmill.Workers(timeout=...) ends hung workers")
    if watchdog_initial_timeout_seconds is not None:
        without_effect("watchdog_initial_timeout_seconds", "watchdog_timeout_seconds applies from the first batch")
    if worker_config is not None:
        if worker_config != dataset.worker_config:
            raise ConfigError(
                "worker_config differs from that of the dataset, which is used", fix="Omit worker_config here."
            )
        warnings.warn(
            "worker_config is deprecated here: that of the dataset is used. Omit it.", DeprecationWarning, stacklevel=2
        )
    return SavableDataLoader(
        dataset,
        prefetch_factor=prefetch_factor,
        cache_pool=cache_pool,
        watchdog_timeout_seconds=watchdog_timeout_seconds,
        processes=processes,
    )


def get_loader(dataset: EnergonDataset, **options: Any) -> SavableDataLoader:
    """Return the result of `get_savable_loader`: the state of every Feedmill loader can be saved.

    Args:
        dataset: the dataset to load.
        options: the options of `get_savable_loader`.
    """
    return get_savable_loader(dataset, **options)


def _tolerance(encoder: TaskEncoder) -> int | None:
    """Return the number of consecutive failures that end the run: the smallest tolerance of the hooks and cookers."""
    hooks = [getattr(encoder, name, None) for name in _HOOKS] + [cooker.cook for cooker in encoder.cookers]
    declared = [getattr(hook, TOLERANCE) for hook in hooks if hasattr(hook, TOLERANCE)]
    allowed = declared or [getattr(encoder, "__default_failure_tolerance__", _TOLERANCE)]
    return min((number for number in allowed if number), default=None)


def _on_error(config: WorkerConfig, in_a_row: int | None) -> Literal["raise"] | Substitute:
    """Return the error policy of a loader that calls the handler of `config`."""
    if config.global_error_handler is reraise_exception:
        return "raise"
    handler = config.global_error_handler

    def call_handler(failure: Failure) -> str | None:
        if failure.kind in _MISTAKES:
            return "raise"
        source = Source(
            str(failure.source), failure.file or "", failure.offset or 0, 0, failure.index, failure.key or ""
        )
        error = DataError(failure.error, kind=failure.kind)
        handler(error, failure.key, [source])
        return None

    return Substitute(handler=call_handler, in_a_row=in_a_row)
