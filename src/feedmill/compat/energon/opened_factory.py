"""Factories of datasets that are open, which Energon's functions return beside a dataset or instead of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self

from feedmill.compat.energon.base import SavableDataset
from feedmill.compat.energon.datasets import EnergonDataset, get_val_dataset, trusts
from feedmill.compat.energon.epathlib import EPath
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset
from feedmill.formats.sample import Sample
from feedmill.loading.typed import TypedTaskEncoder
from feedmill.planning.plan import Plan
from feedmill.planning.split_by_source import apart
from feedmill.samples.crude import CrudeSample
from feedmill.samples.decode import SampleDecoder
from feedmill.samples.open import open as open_dataset
from feedmill.samples.stores import FileStore, open_file_store


class BaseCoreDatasetFactory:
    """Description of one dataset, which `build` turns into a dataset of single samples.

    Attributes:
        paths: paths of the data.
        subflavors: data attached to every sample.
        training: whether the samples are shuffled.
        worker_config: the rank and its workers.
    """

    __sample_type__: ClassVar[type[Any]]
    paths: list[EPath]
    subflavors: dict[str, Any]
    training: bool
    worker_config: WorkerConfig

    def __class_getitem__(cls, _: Any) -> type[Self]:
        return cls

    def open(self) -> Dataset:
        """Return the dataset, whose samples are what the factory makes."""
        raise NotImplementedError

    def build(self, worker_rotation_offset: int = 0) -> SavableDataset:  # noqa: ARG002
        """Return the samples as a dataset: shuffled for training, else in stored order. A loop is one pass."""
        shuffle: Any = "block" if self.training else "none"
        plan = Plan.over(self.open(), shuffle=shuffle, seed=self.worker_config.seed_offset, epochs=1)
        encoder = TypedTaskEncoder()
        keep, again = not self.training, self.training
        return EnergonDataset(plan, encoder, self.worker_config, None, False, None, None, keep, cycle=again)

    def as_file_store(self) -> FileStore[Any]:
        """Return the parts of the dataset by name."""
        return open_file_store(str(self.paths[0]))

    def __len__(self) -> int:
        """Return the number of samples over all ranks."""
        return len(self.open())


class OpenedFactory(BaseCoreDatasetFactory):
    """Factory of a dataset that is open: see `get_dataset_from_config`.

    Args:
        dataset: the dataset.
        training: whether to shuffle.
        worker_config: the rank and its workers.
    """

    def __init__(self, dataset: Dataset, *, training: bool, worker_config: WorkerConfig) -> None:
        self.dataset, self.training, self.worker_config = dataset, training, worker_config
        self.paths = [EPath(dataset.url)]
        self.subflavors = dict(dataset.subflavors or {})

    def open(self) -> Dataset:
        return self.dataset

    @property
    def url(self) -> str:
        """Return the path or URL of the dataset."""
        return self.dataset.url


def get_dataset_from_config(
    path: str | os.PathLike[str],
    *,
    dataset_config: str | None = None,
    split_config: str | None = None,
    split_part: str | None = None,
    training: bool = True,
    subflavors: Mapping[str, Any] | None = None,
    worker_config: WorkerConfig,
    sample_type: type[Any] | None = None,
    trust: bool | None = None,
    **options: Any,  # noqa: ARG001
) -> OpenedFactory:
    """Return the factory of a prepared folder or JSONL file, as its dataset.yaml describes it.

    Args:
        path: the folder or file.
        dataset_config, split_config: names of other configuration files.
        split_part: name of the split; ``train`` by default.
        training: whether to shuffle.
        subflavors: data attached to every sample, beside that of dataset.yaml.
        worker_config: the rank and its workers.
        sample_type: expected type of the samples; None for any.
        trust: whether code that the data names may run; see `get_train_dataset`.
        options: options of Energon for the order, which have no effect.

    Raises:
        ConfigError: the samples have another type.
        NotFound, TrustError: as `feedmill.open`.
    """
    split = None if os.fspath(path).endswith(".jsonl") else split_part or "train"
    code = trusts(trust)
    dataset = open_dataset(
        os.fspath(path),
        split=split,
        dataset_config=dataset_config,
        split_config=split_config,
        decode=SampleDecoder(trust=code),
        trust=code,
    )
    if subflavors is not None:
        dataset = dataset.opened_as(subflavors={**(dataset.subflavors or {}), **subflavors})
    if sample_type is not None and len(dataset) and not isinstance(_first(dataset), sample_type):
        raise ConfigError(
            f"the samples are no {sample_type.__name__}: {dataset.about}", file=dataset.url, fix="Check dataset.yaml."
        )
    return OpenedFactory(dataset, training=training, worker_config=worker_config)


def get_val_datasets(
    path: str | os.PathLike[str] | Mapping[str, Any], **arguments: Any
) -> list[tuple[EnergonDataset, Any]]:
    """Return a pair per dataset of a metadataset: its `get_val_dataset`, and its factory (`OpenedFactory`)."""
    whole = get_val_dataset(path, **arguments)
    opened = partial(OpenedFactory, training=False, worker_config=whole.worker_config)
    return [
        (dataclasses.replace(whole, plan=plan), opened(whole.plan.sources[number]))
        for plan, number in apart(whole.plan)
    ]


def _first(dataset: Dataset) -> Any:
    sample = dataset[0]
    return CrudeSample(sample) if isinstance(sample, Sample) else sample
