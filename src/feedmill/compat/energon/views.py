"""Energon's wrappers: map, filter, batch, group and pack one dataset; limit, repeat, concatenate and blend several.

Over the samples of an `EnergonDataset` that is not batched, the first become hooks of its task encoder, so that workers
run them. Over any other dataset, and the others always, the functions run in the process of the training loop, on what
its loader yields.
"""

from __future__ import annotations

import dataclasses
import inspect
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from feedmill.compat.energon.base import LoaderOptions, SavableDataset
from feedmill.compat.energon.closed import signed
from feedmill.compat.energon.datasets import EnergonDataset
from feedmill.compat.energon.errors import without_effect
from feedmill.compat.energon.streams import Batched, Blended, Concatenated, Iterated, Mapped, Repeated, Stream
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.errors import ConfigError
from feedmill.loading.encoder import TaskEncoder, drawn
from feedmill.loading.epochs import EpochLoader
from feedmill.loading.failures import SkipSample
from feedmill.loading.typed import AugmentTaskEncoder

_NOT_CALLED = ("__iter__", "save_state", "restore_state", "reset_state_own", "restore_sample", "worker_has_samples")
"""Methods of Energon's datasets that subclasses of a wrapper may override there."""


class BaseWrapperDataset(SavableDataset):
    """A view of one or more datasets.

    Args:
        datasets: the dataset or datasets.
        worker_config: must equal that of the datasets.

    Raises:
        ConfigError: it differs, or a subclass overrides a method of Energon that Feedmill does not call.
    """

    def __init__(self, datasets: SavableDataset | Iterable[SavableDataset], *, worker_config: WorkerConfig) -> None:
        for name in _NOT_CALLED:
            if getattr(type(self), name, None) is not getattr(SavableDataset, name, None):
                raise ConfigError(
                    f"{type(self).__name__}.{name} is unsupported: Feedmill does not call it",
                    kind="unsupported",
                    fix="Give a function to MapDataset, FilterDataset or IterMapDataset.",
                )
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


class OfSamples(BaseWrapperDataset):
    """A wrapper of one dataset that is hooks of the task encoder if the dataset is an unbatched plan."""

    def _unbatched(self) -> EnergonDataset | None:
        inner = plain_of(self.dataset)
        return inner if inner is not None and inner.single and inner.buffer is None else None


def plain_of(dataset: SavableDataset) -> EnergonDataset | None:
    """Return a dataset as a plan with hooks; None if it is none."""
    if isinstance(dataset, BaseWrapperDataset):
        return dataset.plain()
    return dataset if isinstance(dataset, EnergonDataset) else None


_BEFORE_PACKING = ("encode_sample", "preencode_sample", "postencode_sample")


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
            kind="unsupported",
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


class _Over(AugmentTaskEncoder):
    """An encoder over another one, whose hooks of single samples it calls as one."""

    _stock = True
    _whole = "encode_sample"
    failure_tolerance: int = 100

    def _encoded(self, sample: Any, rng: np.random.Generator | None) -> Any:
        """Return the sample, or the samples that were yielded, after all hooks of single samples."""
        rng = drawn(rng)
        if self._task_encoder.overrides("encode_sample"):
            return self._hook("encode_sample")(sample, rng)
        before, after = self._hook("preencode_sample"), self._hook("postencode_sample")
        first, second = map(self._task_encoder.yields, ("preencode_sample", "postencode_sample"))
        made = before(sample, rng)
        if not first and not second:
            return after(made, rng)
        return _each(made if first else [made], lambda one: after(one, rng), second)

    def yields(self, hook: str) -> bool:
        if hook == self._whole:
            return any(map(self._task_encoder.yields, _BEFORE_PACKING))
        return False if hook in _BEFORE_PACKING else super().yields(hook)

    def overrides(self, hook: str) -> bool:
        if hook in _BEFORE_PACKING:
            return hook == self._whole
        return super().overrides(hook)


class Mapping(_Over):
    """Calls a function with each encoded sample.

    Args:
        task_encoder: the inner encoder.
        function: maps a sample. It may raise `SkipSample` or yield.
    """

    def __init__(self, task_encoder: TaskEncoder, function: Callable[[Any], Any]) -> None:
        super().__init__(task_encoder)
        self.function = function
        self._yields = inspect.isgeneratorfunction(getattr(function, "__seeded_function__", function))

    def encode_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        made = self._encoded(sample, rng)
        return _each(made, self.function, self._yields) if super().yields("encode_sample") else self.function(made)

    def yields(self, hook: str) -> bool:
        return super().yields(hook) or (hook == "encode_sample" and self._yields)


class Filtering:
    """A function that returns a sample, or skips it.

    Args:
        keep: returns whether to keep a sample.
    """

    def __init__(self, keep: Callable[[Any], bool]) -> None:
        self.keep = keep

    def __call__(self, sample: Any) -> Any:
        if not self.keep(sample):
            raise SkipSample
        return sample


class Batching(AugmentTaskEncoder):
    """Makes batches by a function.

    Args:
        task_encoder: the inner encoder, for single samples.
        batcher: list of samples -> batch.
    """

    failure_tolerance: int = 100

    def __init__(self, task_encoder: TaskEncoder, batcher: Callable[[list[Any]], Any]) -> None:
        super().__init__(task_encoder)
        self.batcher = batcher

    def batch(self, samples: list[Any]) -> Any:
        return self.batcher(samples)

    def encode_batch(self, batch: Any) -> Any:
        return batch

    def yields(self, hook: str) -> bool:
        if hook in ("batch", "encode_batch"):
            return hook == "batch" and inspect.isgeneratorfunction(self.batcher)
        return super().yields(hook)


class Grouping(Batching):
    """Makes batches of samples with equal keys.

    Args:
        task_encoder: the inner encoder, for single samples.
        key_of: sample -> (key, batch size or None).
        size: samples per batch; None for the size that `key_of` returns.
        batcher: list of samples -> batch.
    """

    def __init__(
        self,
        task_encoder: TaskEncoder,
        key_of: Callable[[Any], tuple[Hashable, int | None]],
        size: int | None,
        batcher: Callable[[list[Any]], Any],
    ) -> None:
        super().__init__(task_encoder, batcher)
        self.key_of, self.size = key_of, size

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        key, size = self.key_of(sample)
        return key, size if self.size is None else self.size


class Packing(_Over):
    """Packs encoded samples.

    Args:
        task_encoder: the inner encoder, for single samples.
        select: samples -> list of the samples of each pack.
        pack: samples of a pack -> pack.
        finish: finishes the encoding of a selected sample; None for nothing.
    """

    _whole = "preencode_sample"

    def __init__(
        self,
        task_encoder: TaskEncoder,
        select: Callable[[list[Any]], list[list[Any]]],
        pack: Callable[[list[Any]], Any],
        finish: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(task_encoder)
        self.select, self.pack, self.finish = select, pack, finish

    def preencode_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:
        return self._encoded(sample, rng)

    def postencode_sample(self, sample: Any, rng: np.random.Generator | None = None) -> Any:  # noqa: ARG002
        return sample if self.finish is None else self.finish(sample)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return self.select(samples)

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return self.pack(samples)

    def overrides(self, hook: str) -> bool:
        return self.finish is not None if hook == "postencode_sample" else super().overrides(hook)

    def yields(self, hook: str) -> bool:
        own = {"postencode_sample": self.finish, "pack_selected_samples": self.pack}
        return inspect.isgeneratorfunction(own[hook]) if hook in own else super().yields(hook)


def _each(items: Any, function: Callable[[Any], Any], yields: bool) -> Iterator[Any]:
    """Yield the results of a function, which may skip items or yield several."""
    for item in items:
        try:
            made = function(item)
            yield from made if yields else (made,)
        except SkipSample:
            continue


class LimitDataset(BaseWrapperDataset):
    """The first items of a dataset; each loop begins at its first item.

    Args:
        length: items per loop of this rank.
        reset_after_epoch: ignored: each loop begins again.
    """

    @signed
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

    @signed
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

    @signed
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

    @signed
    def __init__(self, *datasets: SavableDataset, worker_config: WorkerConfig) -> None:
        super().__init__(datasets, worker_config=worker_config)

    def _stream(self, options: LoaderOptions) -> Stream:
        return Concatenated(*(dataset.stream(options) for dataset in self.datasets))


class BlendDataset(BaseWrapperDataset):
    """Items of several datasets, drawn by weight, until all of them have ended.

    Args:
        dataset_weights: pairs of a dataset and its positive weight.
    """

    @signed
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

    @signed
    def __init__(
        self,
        *dataset_weights: tuple[SavableDataset, float],
        batch_size: int,
        batch_mix_fn: Callable[[list[Any]], Any] = list,
        worker_config: WorkerConfig,
    ) -> None:
        blend = BlendDataset(*dataset_weights, worker_config=worker_config)
        super().__init__(blend, batch_size, batch_mix_fn, worker_config=worker_config)


class ShuffleBufferDataset(BaseWrapperDataset):
    """The dataset itself, with a warning: the plan decides the order of samples. `size` has no effect."""

    @signed
    def __init__(self, dataset: SavableDataset, size: int, *, worker_config: WorkerConfig) -> None:
        super().__init__(dataset, worker_config=worker_config)
        without_effect("ShuffleBufferDataset", "the plan decides the order: get_train_dataset shuffles")
        self.size = size

    def plain(self) -> EnergonDataset | None:
        return plain_of(self.dataset)

    def _stream(self, options: LoaderOptions) -> Stream:
        return self.dataset.stream(options)

    def config(self) -> dict[str, Any]:
        return self.dataset.config()


def endless(dataset: SavableDataset) -> bool:
    """Return whether a loop over a dataset never ends."""
    if isinstance(dataset, EnergonDataset):
        return dataset.plan.length is None and dataset.epoch is None
    if isinstance(dataset, RepeatDataset):
        return dataset.repeats is None or endless(dataset.dataset)
    if isinstance(dataset, LimitDataset):
        return False
    return isinstance(dataset, BaseWrapperDataset) and any(map(endless, dataset.datasets))


def concat_pad(batch: list[Any]) -> Any:
    """Return batches as one tensor: concatenated in the first dimension, and padded with zeros in the others.

    Args:
        batch: tensors with the same number of dimensions.
    """
    shape = [max(sizes) for sizes in zip(*(value.shape[1:] for value in batch), strict=True)]
    out = batch[0].new_zeros((sum(len(value) for value in batch), *shape))
    first = 0
    for value in batch:
        out[(slice(first, first + len(value)), *(slice(size) for size in value.shape[1:]))] = value
        first += len(value)
    return out


def generic_concat(batch: list[Any]) -> Any:
    """Return batches as one, by the type of the first one.

    Tensors are concatenated by `concat_pad`; dicts, dataclasses and named tuples field by field. Other values
    become a list.
    """
    first = batch[0]
    if isinstance(first, torch.Tensor):
        return concat_pad(batch)
    if isinstance(first, dict):
        return {name: generic_concat([value[name] for value in batch]) for name in first}
    names = None
    if dataclasses.is_dataclass(first):
        names = [field.name for field in dataclasses.fields(first)]
    elif isinstance(first, tuple) and hasattr(first, "_fields"):
        names = list(first._fields)
    if names is None:
        return batch
    return type(first)(**{name: generic_concat([getattr(value, name) for value in batch]) for name in names})


def homogeneous_concat_mix(samples: list[Any]) -> Any:
    """Return batches of one type as one batch, see `generic_concat`.

    Raises:
        TypeError: the types differ.
    """
    kinds = {type(sample).__name__ for sample in samples}
    if len(kinds) > 1:
        raise TypeError(f"batches of different types cannot be joined: {', '.join(sorted(kinds))}")
    return generic_concat(samples)
