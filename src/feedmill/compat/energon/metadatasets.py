"""Energon's view of a metadataset: its datasets with their weights or repetitions (`load_dataset`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Any

from feedmill.compat.energon.datasets import trusts
from feedmill.compat.energon.opened_factory import OpenedFactory
from feedmill.compat.energon.parsed import Split, splits_of
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.errors import ConfigError
from feedmill.indexing.prepare_joins import prepare_joins
from feedmill.planning.nodes import Blend, Leaf, Node, Repeat
from feedmill.planning.nodes.epochized import EpochizedBlend
from feedmill.planning.recipes.simple import recipe_for
from feedmill.planning.traverse import TraversedDatasetReference, traverse_metadataset
from feedmill.samples.decode import SampleDecoder
from feedmill.samples.open import open as open_dataset


class DatasetBlendMode(Enum):
    """Whether the numbers of datasets are weights or repetitions."""

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


@dataclass(kw_only=True)
class LoadedDataset:
    """One dataset of a blend.

    Attributes:
        dataset: its factory.
        weight: its share of the samples, in a blend by weight.
        repetitions: passes over it per epoch, in a blend by repetitions.
        aux: name -> URL of auxiliary data.
    """

    dataset: OpenedFactory
    weight: float | None = None
    repetitions: float | None = None
    aux: Mapping[str, str] | None = None


@dataclass(kw_only=True)
class LoadedDatasetList:
    """The datasets of a split, and what their numbers mean."""

    datasets: list[LoadedDataset] = field(default_factory=list)
    blend_mode: DatasetBlendMode = DatasetBlendMode.NONE


class DatasetLoader:
    """A dataset or metadataset that has not been opened; see `load_dataset`.

    Args:
        path: prepared folder, JSONL file or metadataset, or the content of a metadataset.
        trust: whether code that the data names may run; see `get_train_dataset`.
    """

    def __init__(self, path: str | os.PathLike[str] | Mapping[str, Any], *, trust: bool | None = None) -> None:
        self.path, self._trust = path, trusts(trust)

    @property
    def splits(self) -> dict[str, Split]:
        """Return what the metadataset says about its splits, by name; see `feedmill.compat.energon.parsed`.

        Raises:
            NotFound, ConfigError: as `get_train_dataset`; it is no metadataset that is a file.
        """
        if isinstance(self.path, Mapping):
            raise ConfigError("content of a metadataset has no 'splits' here", fix="Write it to a file.")
        return splits_of(os.fspath(self.path))

    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        **options: Any,  # noqa: ARG002
    ) -> LoadedDatasetList:
        """Open the datasets of a split.

        Args:
            training: whether the factories shuffle.
            split_part: name of the split.
            worker_config: the rank and its workers.
            subflavors: data attached to every sample, beside that of the datasets.
            options: options of Energon for the order, which have no effect.

        Raises:
            NotFound, ConfigError, TrustError: as `get_train_dataset`.
        """
        opened = partial(open_dataset, decode=SampleDecoder(trust=self._trust), trust=self._trust)
        plan = recipe_for(self.path, split=split_part).plan(opened, trust=self._trust)
        found = LoadedDatasetList()
        numbers = dict(_numbers(plan.node, Fraction(1)))
        kinds = {type(node) for node in _all(plan.node)}
        repeats = EpochizedBlend in kinds
        if kinds & {Blend, EpochizedBlend}:
            found.blend_mode = DatasetBlendMode.SAMPLE_REPETITIONS if repeats else DatasetBlendMode.DATASET_WEIGHT
        for number, dataset in enumerate(plan.sources):
            if subflavors:
                dataset = dataset.opened_as(subflavors={**(dataset.subflavors or {}), **subflavors})
            factory = OpenedFactory(dataset, training=training, worker_config=worker_config)
            loaded = LoadedDataset(dataset=factory, aux=dataset.aux or None)
            if found.blend_mode is not DatasetBlendMode.NONE:
                setattr(loaded, "repetitions" if repeats else "weight", float(numbers[number]))
            found.datasets.append(loaded)
        return found

    def traverse(self, *, split_part: str) -> list[TraversedDatasetReference]:
        """Return the datasets of a split without opening them."""
        assert not isinstance(self.path, Mapping)
        return traverse_metadataset(self.path, split_part=split_part)

    def prepare(self, split_part: str | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Prepare the joins of all splits."""
        assert not isinstance(self.path, Mapping)
        prepare_joins(os.fspath(self.path))
        return ()

    def post_initialize(self, mds_path: Any = None) -> None:
        """Do nothing: `get_datasets` reads the files."""


DatasetLoaderInterface = Metadataset = MetadatasetV2 = DatasetLoader


def load_dataset(path: str | os.PathLike[str] | Mapping[str, Any], **options: Any) -> DatasetLoader:
    """Return a dataset or metadataset, of which `get_datasets` opens a split.

    Args:
        path: prepared folder, JSONL file or metadataset, or the content of a metadataset.
        options: options of `DatasetLoader`.
    """
    return DatasetLoader(path, **options)


def _all(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _all(child)


def _numbers(node: Node, share: Fraction) -> Iterator[tuple[int, Fraction]]:
    """Yield each leaf with its share of the samples, or its repetitions."""
    if isinstance(node, Leaf):
        yield node.number, share
        return
    shares = [Fraction(1)] * len(node.children)
    if isinstance(node, Blend):
        shares = list(node.shares(None)[0])
    elif isinstance(node, EpochizedBlend):
        shares = list(node.repetitions)
    elif isinstance(node, Repeat) and node.times is not None:
        shares = [node.times]
    for child, part in zip(node.children, shares, strict=True):
        yield from _numbers(child, share * part)
