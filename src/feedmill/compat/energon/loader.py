"""Energon's loaders, implemented with `feedmill.Loader`.

They have Energon's methods, and Feedmill's order and state. Scripts create them with `get_loader` and
`get_savable_loader`, which are the same here.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict, Unpack

from torch.utils.data import DataLoader

from feedmill.compat.energon.base import LoaderOptions, SavableDataset
from feedmill.compat.energon.closed import closed
from feedmill.compat.energon.settings import LOADERS
from feedmill.compat.energon.streams import Combined
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.errors import ConfigError
from feedmill.loading.cachepool import CachePool
from feedmill.loading.checkpoint import gather, scatter
from feedmill.loading.epochs import EpochLoader
from feedmill.loading.loader import Loader
from feedmill.loading.tensors import pinned
from feedmill.loading.transfer import has_accelerator
from feedmill.loading.typed import packs_of, positions_of

__all__ = ["BasicDataLoader", "SavableDataLoader", "get_loader", "get_savable_loader"]

_log = logging.getLogger("feedmill.energon")
_PAUSE = 10
"""Seconds that a process has to end itself before it is ended."""


class Options(TypedDict, total=False):
    """Keywords of `SavableDataLoader`."""

    worker_config: WorkerConfig | None
    checkpoint_every_sec: float
    checkpoint_every_min_n_samples: int | None
    n_checkpoints: int | None
    gc_collect_every_n_steps: int
    gc_freeze_at_start: bool
    prefetch_factor: int
    cache_pool: CachePool | None
    watchdog_timeout_seconds: float | None
    watchdog_initial_timeout_seconds: float | None
    fail_on_timeout: bool
    processes: bool | None


class SavableDataLoader(DataLoader[Any]):  # type: ignore[misc]
    """Loader of the items of one rank. Its state can be resumed with any number of ranks and workers.

    It is a `DataLoader` for code that checks this, but none of torch's workers or samplers run.

    Args:
        dataset: the dataset to load.
        worker_config: deprecated; must equal that of the dataset.
        checkpoint_every_sec, checkpoint_every_min_n_samples, n_checkpoints, gc_collect_every_n_steps: no effect, with a
            warning.
        gc_freeze_at_start: no effect.
        prefetch_factor: number of batches per worker to prefetch.
        cache_pool: passed to cookers with ``need_cache``.
        watchdog_timeout_seconds: log batches that take longer; None for never.
        watchdog_initial_timeout_seconds: the limit for the first item of a loop, with `fail_on_timeout`.
        fail_on_timeout: end this process if an item takes longer than `watchdog_timeout_seconds`.
        processes: whether workers are processes rather than threads. By default they are processes if the task encoder
            overrides hooks and can be pickled, which requires that nothing in it is defined in the main program.
            Threads suffice for reading and decoding.

    Attributes:
        dataset: the dataset that it loads.
        worker_config: this rank and its workers.
        stream: yields the items of one loop after another, and has the state.

    Raises:
        ConfigError: `worker_config` differs from that of the dataset.
        TypeError: an argument is unknown.
    """

    dataset: SavableDataset

    @closed(LOADERS, "processes")
    def __init__(
        self,
        dataset: SavableDataset,
        *,
        worker_config: WorkerConfig | None = None,
        prefetch_factor: int = 2,
        cache_pool: CachePool | None = None,
        watchdog_timeout_seconds: float | None = 60,
        watchdog_initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool = False,
        processes: bool | None = None,
    ) -> None:
        if worker_config is not None:
            if worker_config != dataset.worker_config:
                raise ConfigError(
                    "worker_config differs from that of the dataset, which is used", fix="Omit worker_config here."
                )
            warnings.warn(
                "worker_config is deprecated here: that of the dataset is used. Omit it.",
                DeprecationWarning,
                stacklevel=3,
            )
        super().__init__(dataset, batch_size=None)
        self.worker_config = dataset.worker_config
        self.num_workers = self.worker_config.num_workers
        self.stream = dataset.stream(LoaderOptions(prefetch_factor, cache_pool, watchdog_timeout_seconds, processes))
        self._limit = watchdog_timeout_seconds if fail_on_timeout else None
        self._first_limit = watchdog_initial_timeout_seconds

    @property
    def loader(self) -> Loader:
        """Return the loader of the plan. Raises ConfigError if the dataset combines several."""
        stream: Any = self.stream
        while isinstance(stream, EpochLoader | Combined):
            if isinstance(stream, Combined) and len(stream.inner) > 1:
                break
            stream = stream.inner[0] if isinstance(stream, Combined) else stream.loader
        if not isinstance(stream, Loader):
            raise ConfigError("this dataset has no single loader", fix="Use `stream`.")
        return stream

    def __iter__(self) -> Any:
        """Return an iterator over one loop. Iterating again resumes; validation begins again at the first sample."""
        items = iter(self.stream)
        if not self.num_workers and has_accelerator():
            items = map(pinned, items)
        return items if self._limit is None else _watched(items, self._limit, self._first_limit)

    def __len__(self) -> int:
        """Return the number of items per loop; of one pass over the data if they repeat without end."""
        return len(self.dataset)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last item that was yielded, as plain data."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Any, **options: bool) -> None:
        """Resume from a state, or from the list of those of all ranks; see `Loader.load_state_dict`.

        Raises:
            ConfigError: the state is invalid, or it belongs to other data or another order.
        """
        self.stream.load_state_dict(state, **options)

    def close(self) -> None:
        """End the running iteration and its threads or processes."""
        self.stream.close()

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
        """Return whether `restore_sample` is supported: not with groups, hooks that yield batches, or blends."""
        return self.dataset.can_restore_sample()

    def restore_sample(self, restore_key: Any) -> Any:
        """Load the batch (or the sample, if batching is disabled) of a ``__restore_key__`` again.

        Args:
            restore_key: key of a batch or sample from a loader of this data with any number of ranks, a position of the
                plan, or a list of positions. The key of one sample returns a batch of one.

        Raises:
            ConfigError: it is not supported, or the key is invalid.
        """
        self.dataset.assert_can_restore()
        packs = packs_of(restore_key)
        return self.loader.again(positions_of(restore_key)) if packs is None else self.loader.again_packs(packs)

    def config(self) -> dict[str, Any]:
        """Return a description of the dataset as plain data."""
        return self.dataset.config()


BasicDataLoader = SavableDataLoader


def _watched(items: Iterator[Any], seconds: float, first_seconds: float | None) -> Iterator[Any]:
    """Yield the items. If the loop waits longer than `seconds` for one of them, end this process.

    Args:
        items: the items of one loop.
        seconds: seconds after which an item is late.
        first_seconds: the same for the first item; None for `seconds`.
    """
    with _Watch(seconds) as watch:
        watch.due = time.monotonic() + (seconds if first_seconds is None else first_seconds)
        for item in items:
            watch.due = None
            yield item
            watch.due = time.monotonic() + seconds


class _Watch:
    """A thread that ends this process when `due` (a time of `time.monotonic`) has passed; None for nothing due."""

    def __init__(self, seconds: float) -> None:
        self.due: float | None = None
        self._seconds, self._done = seconds, threading.Event()

    def __enter__(self) -> _Watch:
        threading.Thread(target=self._run, name="feedmill-timeout", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def _run(self) -> None:
        while not self._done.wait(min(max(self._seconds / 4, 0.01), 1.0)):
            due = self.due
            if due is not None and time.monotonic() > due:
                self.due = None
                self._end_process()

    def _end_process(self) -> None:
        _log.critical("an item took longer than %s s: this process ends (fail_on_timeout)", self._seconds)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_PAUSE)
        os._exit(1)


@closed(LOADERS, "processes")
def get_savable_loader(dataset: SavableDataset, **options: Unpack[Options]) -> SavableDataLoader:
    """Return a loader whose state can be saved.

    The state can be saved at any time and resumes without replay. On a machine with an accelerator, the tensors of
    batches are in page-locked memory, as in Energon.

    Args:
        dataset: the dataset to load.
        options: keywords of `SavableDataLoader`.
    """
    return SavableDataLoader(dataset, **options)  # type: ignore[misc]  # the table has dropped some


@closed(LOADERS, "processes")
def get_loader(dataset: SavableDataset, **options: Unpack[Options]) -> SavableDataLoader:
    """Return the result of `get_savable_loader`: the state of every Feedmill loader can be saved.

    Args:
        dataset: the dataset to load.
        options: keywords of `SavableDataLoader`.
    """
    return SavableDataLoader(dataset, **options)  # type: ignore[misc]  # the table has dropped some
