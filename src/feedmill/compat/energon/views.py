"""Energon's wrappers of datasets: views that limit, repeat, blend, map, batch, group or pack other datasets.

Over the samples of an `EnergonDataset` that is not batched, `MapDataset`, `FilterDataset`, `BatchDataset`,
`GroupBatchDataset` and `PackingDataset` become hooks of its task encoder, so that workers run them. Over any other
dataset, the functions run in the process of the training loop, on what the loaders of the inner datasets yield.
"""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from feedmill.compat.energon.base import LoaderOptions, SavableDataset
from feedmill.compat.energon.datasets import EnergonDataset
from feedmill.compat.energon.hooks import Batching, Filtering, Grouping, Mapping, Packing
from feedmill.compat.energon.streams import Batched, Blended, Concatenated, Iterated, Mapped, Repeated, Stream
from feedmill.compat.energon.worker import WorkerConfig, without_effect
from feedmill.errors import ConfigError
from feedmill.loading.epochs import EpochLoader


class BaseWrapperDataset(SavableDataset):
    """A view of one or more datasets.

    Args:
        datasets: the dataset or datasets.
        worker_config: must equal that of the datasets.

    Raises:
        ConfigError: it differs.
    """

    def __init__(self, datasets: SavableDataset | Iterable[SavableDataset], *, worker_config: WorkerConfig) -> None:
        given = [datasets] if isinstance(datasets, SavableDataset) else datasets
        self.datasets: tuple[SavableDataset, ...] = tuple(given)
        self.worker_config = worker_config
        for dataset in self.datasets:
            if dataset.worker_config != worker_config:
                raise ConfigError(
                    f"worker_config differs from that of the {type(dataset).__name__}",
                    fix="Give all datasets of a wrapper the same worker_config.",
                )

    @property
    def dataset(self) -> SavableDataset:
        """Return the only inner dataset. Raises ConfigError if there are several."""
        if len(self.datasets) != 1:
            raise ConfigError(f"{type(self).__name__} has {len(self.datasets)} datasets", fix="Use `datasets`.")
        return self.datasets[0]

    def plain(self) -> EnergonDataset | None:
        """Return this view as a plan with other hooks; None if it is none."""
        return None

    def stream(self, options: LoaderOptions) -> Stream:
        plain = self.plain()
        return self._stream(options) if plain is None else plain.stream(options)

    @abstractmethod
    def _stream(self, options: LoaderOptions) -> Stream:
        """Return the stream if there is no plain form."""

    def __len__(self) -> int:
        plain = self.plain()
        return len(self._stream(LoaderOptions())) if plain is None else len(plain)

    def can_restore_sample(self) -> bool:
        plain = self.plain()
        return plain is not None and plain.can_restore_sample()

    def config(self) -> dict[str, Any]:
        return {"type": type(self).__name__, "datasets": [dataset.config() for dataset in self.datasets]}

    def __str__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.datasets))})"


class _OfSamples(BaseWrapperDataset):
    """A wrapper of one dataset that is hooks of the task encoder if the dataset is an unbatched plan."""

    def _unbatched(self) -> EnergonDataset | None:
        inner = plain_of(self.dataset)
        return inner if inner is not None and inner.single and inner.buffer is None else None


def plain_of(dataset: SavableDataset) -> EnergonDataset | None:
    """Return a dataset as a plan with hooks; None if it is none."""
    if isinstance(dataset, BaseWrapperDataset):
        return dataset.plain()
    return dataset if isinstance(dataset, EnergonDataset) else None


class MapDataset(_OfSamples):
    """The items of a dataset after a function.

    Args:
        map_fn: maps one item. It may raise `SkipSample`, or be a generator function that yields any number of items.
        failure_tolerance: number of failures in a row that end the iteration; 0 for no limit.
        stateless_map_fn, map_fn_config: ignored.
    """

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
        return None if inner is None else replace(inner, task_encoder=Mapping(inner.task_encoder, self.map_fn))

    def _stream(self, options: LoaderOptions) -> Stream:
        handler = self.worker_config.global_error_handler
        return Mapped(self.dataset.stream(options), self.map_fn, handler, self.failure_tolerance)


class FilterDataset(MapDataset):
    """The items of a dataset for which a function returns true.

    Args:
        filter_fn: returns whether to keep an item.
        filter_fn_config: ignored.
    """

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


class BatchDataset(_OfSamples):
    """Batches of the items of a dataset.

    Args:
        batch_size: items per batch.
        batcher: list of items -> batch. It may raise `SkipSample`.
        drop_last: whether to drop a smaller last batch.
        failure_tolerance: number of failures in a row that end the iteration; 0 for no limit.
        batcher_stateless, batcher_config: ignored.
    """

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
        return replace(inner, task_encoder=encoder, batch_size=self.batch_size, drop_last=self.drop_last)

    def _stream(self, options: LoaderOptions) -> Stream:
        lists = Batched(self.dataset.stream(options), self.batch_size, drop_last=self.drop_last)
        return Mapped(lists, self.batcher, self.worker_config.global_error_handler, self.failure_tolerance)


class _Selecting(_OfSamples):
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
        batcher_stateless, batcher_config, failure_tolerance: ignored.
    """

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
        failure_tolerance: int = 100,  # noqa: ARG002
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.fixed_batch_size, self.sample_group_key = fixed_batch_size, sample_group_key
        self.batcher, self.drop_last = batcher, drop_last

    def plain(self) -> EnergonDataset | None:
        inner = self._unbatched()
        if inner is None:
            return None
        encoder = Grouping(inner.task_encoder, self.sample_group_key, self.fixed_batch_size, self.batcher)
        return replace(inner, task_encoder=encoder, batch_size=self.fixed_batch_size, drop_last=self.drop_last)


class PackingDataset(_Selecting):
    """Packs of the samples of a dataset.

    Args:
        buffer_size: number of samples from which packs are selected.
        pre_packer: samples -> list of the samples of each pack.
        final_packer: samples of a pack -> pack.
        sample_encoder: finishes the encoding of a selected sample; None for nothing.
        options: other options of Energon, which are ignored.
    """

    def __init__(
        self,
        dataset: SavableDataset,
        buffer_size: int,
        pre_packer: Callable[[list[Any]], list[list[Any]]],
        final_packer: Callable[[list[Any]], Any],
        *,
        sample_encoder: Callable[[Any], Any] | None = None,
        worker_config: WorkerConfig,
        **options: Any,  # noqa: ARG002
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.buffer_size, self.pre_packer, self.final_packer = buffer_size, pre_packer, final_packer
        self.sample_encoder = sample_encoder

    def plain(self) -> EnergonDataset | None:
        inner = self._unbatched()
        if inner is None:
            return None
        encoder = Packing(inner.task_encoder, self.pre_packer, self.final_packer, self.sample_encoder)
        return replace(inner, task_encoder=encoder, buffer=self.buffer_size)


class LimitDataset(BaseWrapperDataset):
    """The first items of a dataset; each loop begins at its first item.

    Args:
        length: items per loop of this rank.
        reset_after_epoch: ignored: each loop begins again.
    """

    def __init__(
        self,
        dataset: SavableDataset,
        length: int,
        *,
        reset_after_epoch: bool = False,  # noqa: ARG002
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.length = length

    def _stream(self, options: LoaderOptions) -> Stream:
        inner = self.dataset.stream(options)
        return EpochLoader(inner, length=self.length, restart=True, expected=len(self.dataset))

    def can_restore_sample(self) -> bool:
        return self.dataset.can_restore_sample()

    def __len__(self) -> int:
        return min(self.length, len(self.dataset)) if not endless(self.dataset) else self.length


class EpochizeDataset(LimitDataset):
    """Loops of a fixed number of items of a dataset; each loop begins where the previous one ended."""

    def __init__(self, dataset: SavableDataset, length: int, worker_config: WorkerConfig) -> None:
        super().__init__(dataset, length, worker_config=worker_config)

    def _stream(self, options: LoaderOptions) -> Stream:
        return EpochLoader(self.dataset.stream(options), length=self.length, expected=len(self.dataset), cycle=True)

    def __len__(self) -> int:
        return self.length


class RepeatDataset(BaseWrapperDataset):
    """The loops of a dataset again and again.

    Args:
        repeats: number of loops, which may be fractional; None for no end.
        restart: ignored: a loop over all repetitions can follow another one.
    """

    def __init__(
        self,
        dataset: SavableDataset,
        *,
        repeats: float | None = None,
        restart: bool = True,  # noqa: ARG002
        worker_config: WorkerConfig,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.repeats = repeats

    def _stream(self, options: LoaderOptions) -> Stream:
        return Repeated(self.dataset.stream(options), self.repeats)

    def can_restore_sample(self) -> bool:
        return self.dataset.can_restore_sample()


class ConcatDataset(BaseWrapperDataset):
    """The loops of several datasets, one after another."""

    def __init__(self, *datasets: SavableDataset, worker_config: WorkerConfig) -> None:
        super().__init__(datasets, worker_config=worker_config)

    def _stream(self, options: LoaderOptions) -> Stream:
        return Concatenated(*(dataset.stream(options) for dataset in self.datasets))


class BlendDataset(BaseWrapperDataset):
    """Items of several datasets, drawn by weight, until all of them have ended.

    Args:
        dataset_weights: pairs of a dataset and its positive weight.
    """

    def __init__(self, *dataset_weights: tuple[SavableDataset, float], worker_config: WorkerConfig) -> None:
        super().__init__([dataset for dataset, _ in dataset_weights], worker_config=worker_config)
        self.dataset_weights = dataset_weights
        self.weights = tuple(weight for _, weight in dataset_weights)

    def _stream(self, options: LoaderOptions) -> Stream:
        return Blended([dataset.stream(options) for dataset in self.datasets], self.weights)


class MixBatchDataset(BatchDataset):
    """Batches of items of several datasets, drawn by weight.

    Args:
        dataset_weights: pairs of a dataset, usually of batches of one sample, and its positive weight.
        batch_size: items per batch.
        batch_mix_fn: list of items -> batch, for example `homogeneous_concat_mix`; the list itself by default.
    """

    def __init__(
        self,
        *dataset_weights: tuple[SavableDataset, float],
        batch_size: int,
        batch_mix_fn: Callable[[list[Any]], Any] = list,
        worker_config: WorkerConfig,
    ) -> None:
        blend = BlendDataset(*dataset_weights, worker_config=worker_config)
        super().__init__(blend, batch_size, batch_mix_fn, worker_config=worker_config)


class Transparent(BaseWrapperDataset):
    """A wrapper that does not change the items."""

    def plain(self) -> EnergonDataset | None:
        return plain_of(self.dataset)

    def _stream(self, options: LoaderOptions) -> Stream:
        return self.dataset.stream(options)

    def config(self) -> dict[str, Any]:
        return self.dataset.config()


class ShuffleBufferDataset(Transparent):
    """The dataset itself, with a warning: the plan decides the order of samples. `size` has no effect."""

    def __init__(self, dataset: SavableDataset, size: int, *, worker_config: WorkerConfig) -> None:
        super().__init__(dataset, worker_config=worker_config)
        without_effect("ShuffleBufferDataset", "the plan decides the order: get_train_dataset shuffles")
        self.size = size


class GcDataset(Transparent):
    """The dataset itself; Python's garbage is collected every `every_n_iter` items.

    Args:
        every_n_iter: items between two collections.
        freeze: ignored.
    """

    def __init__(
        self, dataset: SavableDataset, *, worker_config: WorkerConfig, every_n_iter: int = 10, freeze: bool = True
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.every_n_iter, self.freeze = every_n_iter, freeze
        self._count = 0

    def plain(self) -> EnergonDataset | None:
        return None

    def _stream(self, options: LoaderOptions) -> Stream:
        return Mapped(self.dataset.stream(options), self._collect, self.worker_config.global_error_handler)

    def _collect(self, item: Any) -> Any:
        self._count += 1
        if self._count % self.every_n_iter == 0:
            gc.collect()
        return item


class LogSampleDataset(Transparent):
    """The dataset itself: the ledger (`feedmill trace`) shows what each step saw.

    Args:
        mode: ``train`` or ``val``; ignored.
        get_keys_fn: ignored.
    """

    def __init__(
        self, dataset: SavableDataset, mode: str, worker_config: WorkerConfig, get_keys_fn: Any = None
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.mode, self.get_keys_fn = mode, get_keys_fn


def endless(dataset: SavableDataset) -> bool:
    """Return whether a loop over a dataset never ends."""
    if isinstance(dataset, EnergonDataset):
        return dataset.plan.length is None and dataset.epoch is None
    if isinstance(dataset, RepeatDataset):
        return dataset.repeats is None or endless(dataset.dataset)
    if isinstance(dataset, LimitDataset):
        return False
    return isinstance(dataset, BaseWrapperDataset) and any(map(endless, dataset.datasets))
