"""Energon's wrappers that limit, repeat, concatenate or blend datasets.

They run in the process of the training loop, on what the loaders of the inner datasets yield.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from feedmill.compat.energon.base import LoaderOptions, SavableDataset
from feedmill.compat.energon.closed import signed
from feedmill.compat.energon.datasets import EnergonDataset
from feedmill.compat.energon.errors import without_effect
from feedmill.compat.energon.sample_views import BatchDataset
from feedmill.compat.energon.streams import Blended, Concatenated, Repeated, Stream
from feedmill.compat.energon.view_base import BaseWrapperDataset, plain_of
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.loading.epochs import EpochLoader


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
