"""Factories of datasets that are open, which Energon's functions return beside a dataset or instead of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Self, Unpack

from feedmill.compat.energon.base import SavableDataset
from feedmill.compat.energon.closed import closed
from feedmill.compat.energon.datasets import EnergonDataset, Validation, get_val_dataset
from feedmill.compat.energon.epathlib import EPath
from feedmill.compat.energon.errors import without_effect
from feedmill.compat.energon.opening import (
    Opening,
    PartFilter,
    absolute,
    check_subset,
    refuse_configs,
    trusts,
)
from feedmill.compat.energon.reading import DatasetSubset, Reading
from feedmill.compat.energon.settings import OPENING, VALIDATION
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.formats.base import Dataset
from feedmill.formats.sample import Decode
from feedmill.loading.typed import TypedTaskEncoder
from feedmill.planning.nodes import Concat, Node, Repeat, Subset
from feedmill.planning.plan import split_by_source
from feedmill.samples.decode import SampleDecoder
from feedmill.samples.stores import FileStore, open_file_store


class BaseCoreDatasetFactory:
    """Description of one dataset, which `build` turns into a dataset of single samples.

    Attributes:
        paths: paths of the data.
        subflavors: data attached to every sample.
        training: whether the samples are shuffled.
        worker_config: the rank and its workers.
        subset: the samples that are read; None for all.
    """

    __sample_type__: ClassVar[type[Any]]
    paths: list[EPath]
    subflavors: dict[str, Any]
    training: bool
    worker_config: WorkerConfig
    subset: DatasetSubset | None = None
    reading: Reading = Reading()

    def __class_getitem__(cls, _: Any) -> type[Self]:
        return cls

    def open(self) -> Dataset:
        """Return the dataset, whose samples are what the factory makes."""
        raise NotImplementedError

    def build(self, worker_rotation_offset: int = 0) -> SavableDataset:  # noqa: ARG002
        """Return the samples as a dataset: in stored order, or for training with shuffled shards.

        Raises:
            ConfigError: there are no samples.
        """
        dataset = self.open()
        plan = self._read(dataset).plan(dataset, training=self.training, seed=self.worker_config.seed_offset)
        if self.training and plan.length is None:
            without_effect("shuffle_over_epochs=-1", "each epoch is a permutation, and a loop never ends", level=3)
        keep, again = not self.training, self.training
        return EnergonDataset(plan, TypedTaskEncoder(), self.worker_config, None, False, None, None, keep, cycle=again)

    def as_file_store(self) -> FileStore[Any]:
        """Return the parts of the dataset by name."""
        return open_file_store(str(self.paths[0]))

    def __len__(self) -> int:
        """Return the number of different samples over all ranks: those of the subset, if there is one."""
        dataset = self.open()
        return self._read(dataset).count(dataset)

    def config(self) -> dict[str, Any]:
        """Return a description as plain data."""
        return {
            "type": type(self).__qualname__,
            "training": self.training,
            "paths": list(map(str, self.paths)),
            "subset": None if self.subset is None else self.subset.config(),
        }

    def _read(self, dataset: Dataset) -> Reading:
        if self.subset is None:
            return self.reading
        return dataclasses.replace(self.reading, bounds=self.subset.bounds(dataset))


class OpenedFactory(BaseCoreDatasetFactory):
    """Factory of a dataset that is open: see `get_dataset_from_config`.

    Args:
        dataset: the dataset.
        training: whether to shuffle.
        worker_config: the rank and its workers.
        reading: which samples are read for training, and in which order.
        subset: the samples that are read, instead of the bounds of `reading`.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        training: bool,
        worker_config: WorkerConfig,
        reading: Reading = Reading(),
        subset: DatasetSubset | None = None,
    ) -> None:
        check_subset(subset)
        self.dataset, self.training, self.worker_config = dataset, training, worker_config
        self.reading, self.subset = reading, subset
        self.paths = [EPath(dataset.url)]
        self.subflavors = dict(dataset.subflavors or {})
        self._read(dataset)  # a wrong subset is an error here

    def open(self) -> Dataset:
        return self.dataset

    @property
    def url(self) -> str:
        """Return the path or URL of the dataset."""
        return self.dataset.url


@closed(OPENING, "trust")
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
    shuffle_over_epochs: int | None = 1,
    parallel_shard_iters: int | None = None,
    max_samples_per_sequence: int | None = None,
    subset: DatasetSubset | None = None,
    part_filter: PartFilter | None = None,
    decoder: Decode | None = SampleDecoder(),
    trust: bool | None = None,
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
        shuffle_over_epochs: passes of a loop for training, each a permutation; None for the stored order, -1 for a loop
            without end. dataset.yaml overrides this and the next two.
        parallel_shard_iters: shards that are read side by side; 16 by default.
        max_samples_per_sequence: samples of the sequences that shards are cut into; None for whole shards.
        subset: the samples that are read.
        part_filter: names of the parts of crude samples that are read, or a function of a name; None for all.
        decoder: decodes the parts; None for bytes.
        trust: whether code that the data names may run; see `get_train_dataset`.

    Raises:
        ConfigError: the samples have another type, or an argument is invalid or unsupported for them.
        NotFound, TrustError: as `feedmill.open`.
        TypeError: an argument is unknown.
    """
    url, code = absolute(path), trusts(trust)
    configs = {"dataset_config": dataset_config, "split_config": split_config}
    jsonl = url.endswith(".jsonl")
    if jsonl:
        refuse_configs(url, configs)
    if code and isinstance(decoder, SampleDecoder) and decoder == SampleDecoder():
        decoder = SampleDecoder(trust=True)
    dataset = Opening(decoder, code, part_filter, sample_type)(
        url,
        split=None if jsonl else split_part or "train",
        **{name: given for name, given in configs.items() if given is not None},
    )
    if subflavors is not None:
        dataset = dataset.opened_as(subflavors={**(dataset.subflavors or {}), **subflavors})
    reading = Reading(
        shuffle_over_epochs=shuffle_over_epochs,
        parallel_shard_iters=parallel_shard_iters,
        max_samples_per_sequence=max_samples_per_sequence,
    )
    return OpenedFactory(dataset, training=training, worker_config=worker_config, reading=reading, subset=subset)


@closed(VALIDATION, "trust")
def get_val_datasets(
    path: str | os.PathLike[str] | Mapping[str, Any], **options: Unpack[Validation]
) -> list[tuple[EnergonDataset, OpenedFactory]]:
    """Return a pair per dataset of a metadataset: its `get_val_dataset`, and its factory.

    Args:
        path: prepared folder, JSONL file or metadataset, or the content of a metadataset.
        options: keywords of `get_val_dataset`.
    """
    whole = get_val_dataset(path, **options)
    bounds = dict(_bounds(whole.plan.node))
    return [
        (
            dataclasses.replace(whole, plan=plan),
            OpenedFactory(
                whole.plan.sources[number],
                training=False,
                worker_config=whole.worker_config,
                reading=Reading(bounds=bounds.get(number)),
            ),
        )
        for plan, number in split_by_source(whole.plan)
    ]


def _bounds(node: Node) -> list[tuple[int, tuple[int, int]]]:
    """Return first and end of the subset of each source of a validation plan that has one."""
    if isinstance(node, Subset):
        return [(node.leaves[0], (node.start, node.stop))]
    return [found for child in node.children for found in _bounds(child)] if isinstance(node, Concat | Repeat) else []
