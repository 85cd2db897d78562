"""Energon's wrappers that map, filter, batch, group or pack the samples of one dataset.

Over the samples of an `EnergonDataset` that is not batched, they become hooks of its task encoder, so that workers run
them. Over any other dataset, the functions run in the process of the training loop, on what its loader yields.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any

from feedmill.compat.energon.base import LoaderOptions, SavableDataset
from feedmill.compat.energon.closed import signed
from feedmill.compat.energon.datasets import EnergonDataset
from feedmill.compat.energon.hooks import Batching, Filtering, Grouping, Mapping, Packing
from feedmill.compat.energon.streams import Batched, Iterated, Mapped, Stream
from feedmill.compat.energon.view_base import BaseWrapperDataset, OfSamples
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.errors import ConfigError


class MapDataset(OfSamples):
    """The items of a dataset after a function.

    Args:
        map_fn: maps one item. It may raise `SkipSample`, or be a generator function that yields any number of items.
        failure_tolerance: number of failures in a row that end the iteration; 0 for no limit.
        stateless_map_fn, map_fn_config: ignored.
    """

    @signed
    def __init__(
        self,
        dataset: SavableDataset,
        map_fn: Callable[[Any], Any],
        *,
        stateless_map_fn: bool = False,  # noqa: ARG002
        map_fn_config: Any = None,  # noqa: ARG002
        failure_tolerance: int = 100,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.map_fn, self.failure_tolerance = map_fn, failure_tolerance

    def plain(self) -> EnergonDataset | None:
        inner = self._unbatched()
        if inner is None:
            return None
        encoder = Mapping(inner.task_encoder, self.map_fn)
        encoder.failure_tolerance = self.failure_tolerance
        return replace(inner, task_encoder=encoder)

    def _stream(self, options: LoaderOptions) -> Stream:
        handler = self.worker_config.global_error_handler
        return Mapped(self.dataset.stream(options), self.map_fn, handler, self.failure_tolerance)


class FilterDataset(MapDataset):
    """The items of a dataset for which a function returns true.

    Args:
        filter_fn: returns whether to keep an item.
        filter_fn_config: ignored.
    """

    @signed
    def __init__(
        self,
        dataset: SavableDataset,
        *,
        filter_fn: Callable[[Any], bool],
        filter_fn_config: Any = None,  # noqa: ARG002
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, Filtering(filter_fn), worker_config=worker_config)
        self.filter_fn = filter_fn


class IterMapDataset(BaseWrapperDataset):
    """The items that a function of an iterator yields.

    A state is that of the inner dataset: items that the function has taken and not yet yielded are lost in a resume.

    Args:
        iter_map_fn: iterator -> iterator.
        len_map_fn: length of the inner dataset -> length of this one.
        stateless_iter_fn, iter_map_fn_config: ignored.
    """

    @signed
    def __init__(
        self,
        dataset: SavableDataset,
        iter_map_fn: Callable[[Iterator[Any]], Iterator[Any]],
        *,
        len_map_fn: Callable[[int], int] = lambda length: length,
        stateless_iter_fn: bool = False,  # noqa: ARG002
        iter_map_fn_config: Any = None,  # noqa: ARG002
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.iter_map_fn, self.len_map_fn = iter_map_fn, len_map_fn

    def _stream(self, options: LoaderOptions) -> Stream:
        return Iterated(self.dataset.stream(options), self.iter_map_fn, self.len_map_fn)


class BatchDataset(OfSamples):
    """Batches of the items of a dataset.

    Args:
        batch_size: items per batch.
        batcher: list of items -> batch. It may raise `SkipSample`.
        drop_last: whether to drop a smaller last batch.
        failure_tolerance: number of failures in a row that end the iteration; 0 for no limit.
        batcher_stateless, batcher_config: ignored.
    """

    @signed
    def __init__(
        self,
        dataset: SavableDataset,
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,  # noqa: ARG002
        batcher_config: Any = None,  # noqa: ARG002
        drop_last: bool = False,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.batch_size, self.batcher, self.drop_last = batch_size, batcher, drop_last
        self.failure_tolerance = failure_tolerance

    def plain(self) -> EnergonDataset | None:
        inner = self._unbatched()
        if inner is None:
            return None
        encoder = Batching(inner.task_encoder, self.batcher)
        encoder.failure_tolerance = self.failure_tolerance
        return replace(inner, task_encoder=encoder, batch_size=self.batch_size, drop_last=self.drop_last)

    def _stream(self, options: LoaderOptions) -> Stream:
        lists = Batched(self.dataset.stream(options), self.batch_size, drop_last=self.drop_last)
        return Mapped(lists, self.batcher, self.worker_config.global_error_handler, self.failure_tolerance)


class _Selecting(OfSamples):
    """A wrapper that exists as hooks of a task encoder only."""

    def _stream(self, options: LoaderOptions) -> Stream:  # noqa: ARG002
        raise ConfigError(
            f"{type(self).__name__} needs the single samples of a dataset: {self.dataset} is batched or combined",
            kind="not-supported",
            fix="Wrap get_train_dataset(..., batch_size=None), or use the hooks of a task encoder.",
        )


class GroupBatchDataset(_Selecting):
    """Batches of samples with equal keys. As with `batch_group_criterion`, groups are made in windows.

    Args:
        fixed_batch_size: samples per batch; None for the size that `sample_group_key` returns.
        sample_group_key: sample -> (key of its group, batch size of the group or None).
        batcher: list of samples -> batch.
        drop_last: whether to drop smaller batches at the end of a window.
        failure_tolerance: number of failures in a row that end the iteration; 0 for no limit.
        batcher_stateless, batcher_config: ignored.
    """

    @signed
    def __init__(
        self,
        dataset: SavableDataset,
        fixed_batch_size: int | None,
        sample_group_key: Callable[[Any], tuple[Hashable, int | None]],
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,  # noqa: ARG002
        batcher_config: Any = None,  # noqa: ARG002
        drop_last: bool = False,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.fixed_batch_size, self.sample_group_key = fixed_batch_size, sample_group_key
        self.batcher, self.drop_last, self.failure_tolerance = batcher, drop_last, failure_tolerance

    def plain(self) -> EnergonDataset | None:
        inner = self._unbatched()
        if inner is None:
            return None
        encoder = Grouping(inner.task_encoder, self.sample_group_key, self.fixed_batch_size, self.batcher)
        encoder.failure_tolerance = self.failure_tolerance
        return replace(inner, task_encoder=encoder, batch_size=self.fixed_batch_size, drop_last=self.drop_last)


class PackingDataset(_Selecting):
    """Packs of the samples of a dataset.

    Args:
        buffer_size: number of samples from which packs are selected.
        pre_packer: samples -> list of the samples of each pack.
        final_packer: samples of a pack -> pack.
        sample_encoder: finishes the encoding of a selected sample; None for nothing.
        sample_encoder_failure_tolerance: number of failures in a row that end the iteration; 0 for no limit.
        final_packer_stateless, sample_encoder_stateless, packer_config, pre_packer_failure_tolerance,
            final_packer_failure_tolerance: ignored.
    """

    @signed
    def __init__(
        self,
        dataset: SavableDataset,
        buffer_size: int,
        pre_packer: Callable[[list[Any]], list[list[Any]]],
        final_packer: Callable[[list[Any]], Any],
        *,
        final_packer_stateless: bool = False,  # noqa: ARG002
        sample_encoder: Callable[[Any], Any] | None = None,
        sample_encoder_stateless: bool = False,  # noqa: ARG002
        packer_config: Any = None,  # noqa: ARG002
        pre_packer_failure_tolerance: int = 100,  # noqa: ARG002
        final_packer_failure_tolerance: int = 100,  # noqa: ARG002
        sample_encoder_failure_tolerance: int = 100,
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.buffer_size, self.pre_packer, self.final_packer = buffer_size, pre_packer, final_packer
        self.sample_encoder, self.failure_tolerance = sample_encoder, sample_encoder_failure_tolerance

    def plain(self) -> EnergonDataset | None:
        inner = self._unbatched()
        if inner is None:
            return None
        encoder = Packing(inner.task_encoder, self.pre_packer, self.final_packer, self.sample_encoder)
        encoder.failure_tolerance = self.failure_tolerance
        return replace(inner, task_encoder=encoder, buffer=self.buffer_size)
