"""Energon's view of a metadataset: its datasets with their weights or repetitions (`load_dataset`), and its file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from typing import Any

from feedmill.compat.energon.closed import closed
from feedmill.compat.energon.epathlib import EPath
from feedmill.compat.energon.opened_factory import OpenedFactory, get_dataset_from_config
from feedmill.compat.energon.opening import Opening, absolute, check_subset, trusts
from feedmill.compat.energon.reading import DatasetSubset, Reading
from feedmill.compat.energon.settings import OPENING
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.errors import ConfigError
from feedmill.indexing.prepare_joins import prepare_joins
from feedmill.planning.dialects.energon import Asked, split_names
from feedmill.planning.nodes import Blend, Leaf, Node, Repeat
from feedmill.planning.nodes.blend import EpochizedBlend
from feedmill.planning.recipes import read, simple
from feedmill.planning.recipes.read import is_dataset
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.recipes.simple import TraversedDatasetReference, sources_of
from feedmill.samples.decode import SampleDecoder
from feedmill.samples.stores import FOLDER
from feedmill.storage import join_url, split_url


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
        split_part: name of the split, whichever is asked for.
        subflavors: data attached to every sample, unless `get_datasets` has other values.
        shuffle_over_epochs_multiplier: no effect, as in Energon.
        dataset_config, split_config: names of other configuration files, unless `get_datasets` has others.
        trust: whether code that the data names may run; see `get_train_dataset`.

    Raises:
        ConfigError: a metadataset has one of these settings: they are for single datasets.
        TypeError: an argument is unknown.
    """

    @closed(OPENING, "trust")
    def __init__(
        self,
        path: str | os.PathLike[str] | Mapping[str, Any],
        *,
        split_part: str | None = None,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        dataset_config: str | None = None,
        split_config: str | None = None,
        trust: bool | None = None,
    ) -> None:
        self.path, self.trust = path, trusts(trust)
        self.split_part, self.subflavors = split_part, subflavors
        self.shuffle_over_epochs_multiplier = shuffle_over_epochs_multiplier
        self.dataset_config, self.split_config = dataset_config, split_config
        names = ("split_part", "subflavors", "dataset_config", "split_config")
        given = [name for name in names if getattr(self, name) is not None]
        if given and not self._single:
            raise ConfigError(
                f"{given[0]!r} of load_dataset is for a single dataset",
                file=None if isinstance(path, Mapping) else os.fspath(path),
                fix="Set it in the metadataset, in the entry of the dataset.",
            )

    @property
    def _single(self) -> bool:
        return not isinstance(self.path, Mapping) and is_dataset(absolute(self.path))

    @property
    def splits(self) -> dict[str, Split]:
        """Return what the metadataset says about its splits, by name. Metadatasets that it names are not resolved.

        Raises:
            NotFound, ConfigError: as `get_train_dataset`; it is no metadataset that is a file.
        """
        return splits_of(self._file("splits"))

    @closed(OPENING)
    def get_dataset(
        self,
        *,
        training: bool,
        split_part: str | None = None,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        dataset_config: str | None = None,
        split_config: str | None = None,
        **order: Any,
    ) -> OpenedFactory:
        """Return the factory of a single dataset, with the arguments of `get_dataset_from_config`.

        Raises:
            ConfigError: it is a metadataset, no split is given, or as `get_dataset_from_config`.
            NotFound, TrustError: as there.
        """
        if not self._single:
            raise ConfigError("a metadataset has several datasets", fix="Use get_datasets.")
        split = self.split_part or split_part
        if split is None:
            raise ConfigError("no split is given", fix="Give 'split_part'.")
        own = {**(self.subflavors or {}), **(subflavors or {})}
        return get_dataset_from_config(
            os.fspath(self.path),  # type: ignore[arg-type]
            training=training,
            split_part=split,
            worker_config=worker_config,
            subflavors=own or None,
            dataset_config=dataset_config or self.dataset_config,
            split_config=split_config or self.split_config,
            trust=self.trust,
            **order,
        )

    @closed(OPENING)
    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        subset: DatasetSubset | None = None,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        **words: Any,
    ) -> LoadedDatasetList:
        """Open the datasets of a split.

        Args:
            training: whether the factories shuffle.
            split_part: name of the split.
            worker_config: the rank and its workers.
            subflavors: data attached to every sample, over that of the datasets.
            shuffle_over_epochs_multiplier: multiplies the passes of a loop over each dataset; None for stored order.
            subset: the samples that are read; of a metadataset, shares of each of its datasets.
            parallel_shard_iters, max_samples_per_sequence: as for `get_dataset_from_config`.
            words: `decoder`, `part_filter` and `sample_type`; of a single dataset the other ones of `get_dataset`, too.

        Raises:
            NotFound, ConfigError, TrustError: as `get_train_dataset`.
            TypeError: an argument is unknown.
        """
        order: dict[str, Any] = {
            "parallel_shard_iters": parallel_shard_iters,
            "max_samples_per_sequence": max_samples_per_sequence,
        }
        if self._single:
            factory = self.get_dataset(
                training=training,
                split_part=split_part,
                worker_config=worker_config,
                subflavors=subflavors,
                shuffle_over_epochs=shuffle_over_epochs_multiplier,
                subset=subset,
                **order,
                **words,
            )
            return LoadedDatasetList(datasets=[LoadedDataset(dataset=factory, aux=factory.dataset.aux or None)])
        unknown = sorted(set(words) - {"decoder", "part_filter", "sample_type"})
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is for a single dataset", fix="Set it in the entry of the dataset.")
        check_subset(subset)
        decoder = words.get("decoder", SampleDecoder(trust=self.trust))
        opening = Opening(decoder, self.trust, words.get("part_filter"), words.get("sample_type"))
        ranges = () if subset is None else subset.ranges()
        asked = Asked(ranges, dict(subflavors or {}), shuffle_over_epochs_multiplier, fold=False)
        found = LoadedDatasetList()
        plan, sources = sources_of(self.path, split_part, opening, asked, trust=self.trust)
        numbers, kinds = dict(_numbers(plan.node, Fraction(1))), {type(node) for node in _all(plan.node)}
        repeats = EpochizedBlend in kinds
        if kinds & {Blend, EpochizedBlend}:
            found.blend_mode = DatasetBlendMode.SAMPLE_REPETITIONS if repeats else DatasetBlendMode.DATASET_WEIGHT
        for number, (dataset, (passes, bounds)) in enumerate(zip(plan.sources, sources, strict=True)):
            reading = Reading(shuffle_over_epochs=passes, bounds=bounds, **order)
            factory = OpenedFactory(dataset, training=training, worker_config=worker_config, reading=reading)
            loaded = LoadedDataset(dataset=factory, aux=dataset.aux or None)
            if found.blend_mode is not DatasetBlendMode.NONE:
                setattr(loaded, "repetitions" if repeats else "weight", float(numbers[number]))
            found.datasets.append(loaded)
        return found

    def traverse(self, *, split_part: str) -> list[TraversedDatasetReference]:
        """Return the datasets of a split without opening them."""
        return simple.traverse_metadataset(self._file("traverse"), split_part=split_part)

    def prepare(self, split_part: str | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Prepare the joins of all splits."""
        prepare_joins(self._file("prepare"))
        return ()

    def post_initialize(self, mds_path: Any = None) -> None:
        """Do nothing: `get_datasets` reads the files."""

    def _file(self, what: str) -> str:
        if isinstance(self.path, Mapping):
            raise ConfigError(f"content of a metadataset has no {what!r} here", fix="Write it to a file.")
        return os.fspath(self.path)


DatasetLoaderInterface = Metadataset = MetadatasetV2 = DatasetLoader


@closed(OPENING, "trust")
def load_dataset(path: str | os.PathLike[str] | Mapping[str, Any], **settings: Any) -> DatasetLoader:
    """Return a dataset or metadataset, of which `get_datasets` opens a split.

    Args:
        path: prepared folder, JSONL file or metadataset, or the content of a metadataset.
        settings: those of `DatasetLoader`.
    """
    return DatasetLoader(path, **settings)


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


@dataclass(kw_only=True)
class AuxDatasetReference:
    """Auxiliary data that is a prepared folder or JSONL file, at `path`."""

    path: EPath


@dataclass(kw_only=True)
class AuxFilesystemReference:
    """Auxiliary data that is a plain folder, at `fs_path`."""

    fs_path: EPath


@dataclass(kw_only=True)
class DatasetReference:
    """A dataset or metadataset that a metadataset names. Attributes are None if the file does not set them.

    Attributes:
        path: its path.
        aux: name -> auxiliary data.
        weight, repetitions: its number in a blend by weight, or by repetitions.
        nonmatch: in a join, what to do for a missing partner.
        subset, split_part, subflavors, dataset_config, split_config, shuffle_over_epochs_multiplier: as in the file.
    """

    path: EPath
    aux: Mapping[str, AuxDatasetReference | AuxFilesystemReference] | None = None
    subset: Any = None
    split_part: str | None = None
    subflavor: str | None = None
    subflavors: Mapping[str, Any] | None = None
    dataset_config: str | None = None
    split_config: str | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    weight: float | None = None
    repetitions: float | None = None
    nonmatch: str | None = None


@dataclass(kw_only=True)
class MetadatasetJoin:
    """A join: `join` has its datasets, as a list or by name; the other attributes are as in the file."""

    join: Any
    joiner: Mapping[str, Any] | None = None
    subset: Any = None
    split_part: str | None = None
    subflavors: Mapping[str, Any] | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    weight: float | None = None
    repetitions: float | None = None


@dataclass(kw_only=True)
class MetadatasetBlend:
    """A blend: its members are in `blend` (by weight), `blend_epochized` (by repetitions), or `datasets` (of V1)."""

    blend: list[Any] | None = None
    blend_epochized: list[Any] | None = None
    datasets: list[Any] | None = None
    subset: Any = None


Split = DatasetReference | MetadatasetJoin | MetadatasetBlend


def splits_of(url: str) -> dict[str, Split]:
    """Return the splits of a metadataset by name.

    Raises:
        NotFound, ConfigError: as `feedmill.Recipe.load`, for any of the splits.
    """
    document, folder = read.load_document(url), split_url(url)[0]
    found = {}
    for name in split_names(document):
        Recipe.load(url, split=name, mode="validation")  # raises the errors, with their lines
        found[name] = _entry(document.value["splits"][name], folder)
    return found


def _entry(node: Mapping[str, Any], folder: str) -> Any:
    """Return what an entry describes."""
    given = dict(node)
    if "join" in given:
        parts = given["join"]
        named = isinstance(parts, Mapping)
        made = {name: _entry(parts[name], folder) for name in parts} if named else [_entry(it, folder) for it in parts]
        return MetadatasetJoin(**{**given, "join": made})
    for kind in ("blend", "blend_epochized", "datasets"):
        if kind in given:
            return MetadatasetBlend(**{**given, kind: [_entry(it, folder) for it in given[kind]]})
    if given.get("aux"):
        given["aux"] = {name: _aux(text, folder) for name, text in given["aux"].items()}
    return DatasetReference(**{**given, "path": EPath(join_url(folder, given["path"]))})


def _aux(text: str, folder: str) -> AuxDatasetReference | AuxFilesystemReference:
    for prefix in (f"{FOLDER}://", f"{FOLDER}+"):
        if text.startswith(prefix):
            return AuxFilesystemReference(fs_path=EPath(join_url(folder, text.removeprefix(prefix))))
    return AuxDatasetReference(path=EPath(join_url(folder, text)))


def traverse_metadataset(path: str | os.PathLike[str], *, split_part: str = "train") -> list[TraversedDatasetReference]:
    """Return the datasets of a split, in order. Auxiliary folders have their own path, without ``filesystem://``.

    Raises:
        NotFound, ConfigError: as `feedmill.planning.recipes.simple.traverse_metadataset`.
    """
    return [
        replace(found, path=EPath(found.path), aux={name: _folder(url) for name, url in found.aux.items()})
        for found in simple.traverse_metadataset(path, split_part=split_part)
    ]


def _folder(url: str) -> EPath:
    return EPath(url.removeprefix(f"{FOLDER}://").removeprefix(f"{FOLDER}+"))
