"""Energon's dataset factories: base classes for the factories of users.

A dataset.yaml may name a factory of the user's own (``__module__`` and ``__class__``), which runs only under `trust`.
It derives from a class of this module, and its `load_sample` converts the parts of each sample. The standard factories
do the same with a field map or a sample loader.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from feedmill.compat.energon.closed import closed, signed
from feedmill.compat.energon.epathlib import EPath
from feedmill.compat.energon.opened_factory import BaseCoreDatasetFactory
from feedmill.compat.energon.opening import DECODING, PartFilter, check_subset, filtered, trusts
from feedmill.compat.energon.reading import DatasetSubset, Reading
from feedmill.compat.energon.settings import METHODS, PREPARE
from feedmill.compat.energon.worker import WorkerConfig
from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset
from feedmill.formats.energon.database import INDEX, META
from feedmill.formats.energon.prepared import INFO, INFO_YAML, UUID
from feedmill.formats.sample import Sample
from feedmill.formats.settings import Fate
from feedmill.formats.tar.names import expand
from feedmill.indexing.prepare import prepare
from feedmill.samples import types
from feedmill.samples.crude import CrudeSample
from feedmill.samples.decode import Decoder, SampleDecoder
from feedmill.samples.fieldmap import FieldMap
from feedmill.samples.open import open as open_dataset
from feedmill.samples.trusted import TrustedCode
from feedmill.samples.view import FactoryView
from feedmill.storage import open_store

_SHUFFLE_SEED = 42
_NAMES = ("train", "val", "test")


class FactoryOptions(TypedDict, total=False):
    """Keywords of `BaseWebdatasetFactory`, which its subclasses take as well."""

    split_part: str
    training: bool
    worker_config: WorkerConfig | None
    shuffle_over_epochs: int | None
    parallel_shard_iters: int | None
    max_samples_per_sequence: int | None
    subset: DatasetSubset | None
    split_config: str | None


class GenericOptions(FactoryOptions, total=False):
    """Keywords of `DefaultGenericWebdatasetFactory`."""

    subflavors: Mapping[str, Any] | None
    field_map: Mapping[str, str] | None
    sample_loader: Any
    part_filter: Any
    trust: bool | None


class CrudeOptions(FactoryOptions, total=False):
    """Keywords of `CrudeWebdataset`."""

    subflavors: Mapping[str, Any] | None
    trust: bool | None
    decoder: Any
    auto_decode: bool
    image_decode: str
    av_decode: str
    video_decode_audio: bool
    guess_content: bool


class DecoderOptions(CrudeOptions, total=False):
    """Keywords of `DefaultDecoderWebdatasetFactory`."""

    field_map: Mapping[str, str] | None
    sample_loader: Any
    part_filter: Any


class BaseWebdatasetFactory(BaseCoreDatasetFactory):
    """Factory of a prepared folder. Derived classes set `__sample_type__` and define `load_sample`.

    Args:
        path: the prepared folder.
        split_part: name of the split.
        training: whether to shuffle.
        worker_config: the rank and its workers.
        split_config: name of another split file.
        shuffle_over_epochs: passes of a loop for training, each a permutation; None for the stored order, -1 for a loop
            without end.
        parallel_shard_iters: shards that are read side by side; 16 by default.
        max_samples_per_sequence: samples of the sequences that shards are cut into; None for whole shards.
        subset: the samples that are read.
        part_filter: returns whether a part is read; None for all.

    Raises:
        ConfigError: an option is invalid, or the class overrides a method that Feedmill does not call.
        TypeError: an option is unknown.
    """

    @signed
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str = "train",
        training: bool = True,
        worker_config: WorkerConfig | None = None,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: DatasetSubset | None = None,
        split_config: str | None = None,
        part_filter: Callable[[str], bool] | None = None,
    ) -> None:
        _check_methods(self)
        check_subset(subset)
        self.subset = subset
        self.reading = Reading(
            shuffle_over_epochs=shuffle_over_epochs,
            parallel_shard_iters=parallel_shard_iters,
            max_samples_per_sequence=max_samples_per_sequence,
        )
        self.path = EPath(path)
        self.paths, self.name = [self.path], self.path.name
        self.split_part, self.split_config = split_part, split_config
        self.training = training
        self.worker_config = worker_config or WorkerConfig(rank=0, world_size=1, num_workers=0)
        self.part_filter = part_filter
        if not hasattr(self, "subflavors"):
            self.subflavors = {}

    def load_sample(self, raw_data: dict[str, Any]) -> Any:
        """Return the sample made of the parts of a raw sample.

        Args:
            raw_data: bytes by the names of the parts, and the base fields ``__key__``, ``__restore_key__`` and
                ``__sources__``.
        """
        raise NotImplementedError

    def view(self) -> FactoryView:
        """Return `load_sample` as the view of an opened dataset."""
        kind = getattr(self, "__sample_type__", CrudeSample)
        return FactoryView(self.load_sample, self.part_filter, self.subflavors, kind.__name__, type(self).__name__)

    def open(self) -> Dataset:
        dataset = open_dataset(
            str(self.path), split=self.split_part, split_config=self.split_config, raw=True, decode=None
        )
        return dataset.opened_as(view=self.view(), subflavors=self.subflavors)

    @classmethod
    def view_of_description(cls, path: str, options: Mapping[str, Any]) -> FactoryView:
        """Return the view of a dataset whose dataset.yaml names this class.

        Args:
            path: the prepared folder.
            options: the other entries of dataset.yaml.
        """
        if cls.build is not BaseCoreDatasetFactory.build:
            raise _unsupported(cls, "build")
        return cls(EPath(path), **options).view()

    @classmethod
    @closed(PREPARE)
    def prepare_dataset(
        cls,
        parent_path: str | os.PathLike[str],
        paths: Sequence[str],
        *,
        split_parts_ratio: Sequence[tuple[str, float]] | None = None,
        split_parts_patterns: Sequence[tuple[str, str]] | None = None,
        split_config: str = "split.yaml",  # noqa: ARG003 - checked by the table
        shuffle_seed: int | None = _SHUFFLE_SEED,
        workers: int = 32,
        tar_index_only: bool = False,
        media_filter: Any = None,
    ) -> tuple[set[str], list[tuple[str, int]]]:
        """Index the shards of a folder as ``feedmill compat energon prepare`` does.

        Args:
            parent_path: the folder.
            paths: shards in the folder, with ranges such as ``data-{0..9}.tar``.
            split_parts_ratio: pairs of a split (train, val, test in this order) and its share.
            split_parts_patterns: pairs of a split and a pattern of shard paths, instead of a ratio.
            shuffle_seed: 42, or None to keep the order of the shards.
            workers: threads.
            tar_index_only: rebuild the index only.
            media_filter: parts whose media metadata is added.
            split_config: ``split.yaml``. Other keywords of Energon are refused or have no effect, see `PREPARE`.

        Returns:
            The names of the parts (at most 50), and the number of samples of each shard.

        Raises:
            ConfigError: an option is unsupported, or as `feedmill.prepare`.
            TypeError: an option is unknown.
        """
        report = prepare(
            os.fspath(parent_path),
            split_ratio=None if split_parts_ratio is None else _ratio(split_parts_ratio),
            split_parts=[f"{name}:{pattern}" for name, pattern in split_parts_patterns or ()],
            shuffle_tars=shuffle_seed is not None,
            tar_index_only=tar_index_only,
            media=media_filter,
            shards=[path for pattern in paths for path in expand(pattern)],
            rescan=True,
            energon_exact=True,
            workers=min(workers, os.cpu_count() or 1),
            progress=False,
        )
        counts = json.loads(open_store(os.fspath(parent_path)).read(INFO))["shard_counts"]
        return set(report.parts), list(counts.items())


def _ratio(pairs: Sequence[tuple[str, float]]) -> list[float]:
    """Return the shares of train, val and test. Raises `ConfigError` for other splits."""
    shares = dict(pairs)
    if not shares or [name for name in _NAMES if name in shares] != list(shares):
        raise ConfigError(
            f"a ratio is for train, val and test, in this order: found {', '.join(shares) or 'none'}",
            kind="bad-option",
            fix="Use split_parts_patterns for other splits.",
        )
    return [float(shares.get(name, 0)) for name in _NAMES]


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory):
    """Factory that fills the fields of `__sample_type__` with a field map or a sample loader.

    Args:
        subflavors: data attached to every sample.
        field_map: field -> part, as in dataset.yaml.
        sample_loader: parts -> fields, instead of a field map; with ``part_filter``. A text names a file of the
            dataset, which runs only with `trust`.
        part_filter: names of parts, or a function of a name.
        trust: whether code of the dataset may run.
        options: keywords of `BaseWebdatasetFactory`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        subflavors: Mapping[str, Any] | None = None,
        field_map: Mapping[str, str] | None = None,
        sample_loader: Any = None,
        part_filter: Any = None,
        trust: bool | None = None,
        **options: Unpack[FactoryOptions],
    ) -> None:
        if (field_map is None) == (sample_loader is None):
            raise ConfigError("give either 'field_map' or 'sample_loader'", fix="Set exactly one of them.")
        self.subflavors = dict(subflavors or {})
        store = open_store(os.fspath(path))
        code = TrustedCode(lambda name: store.read(f".nv-meta/{name}"), f"{path}/.nv-meta/dataset.yaml", trusts(trust))
        load, keep = sample_loader, part_filter
        if isinstance(load, str):
            load = code.function(load, "sample_loader", "sample_loader")
        if isinstance(keep, str):
            keep = code.function(keep, "part_filter", "part_filter")
        elif isinstance(keep, list):
            keep = frozenset(keep).__contains__
        if field_map is not None:
            fields = FieldMap.parse(dict(field_map), self.__sample_type__, where="field_map")
            load, keep = fields.apply, fields.parts.__contains__
        self._load = load
        super().__init__(path, part_filter=keep, **options)

    def _sample_loader(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a sample with its base fields."""
        base = {name: sample[name] for name in ("__restore_key__", "__sources__")}
        own = {"__key__": sample["__key__"], **self._load(sample)}
        return {**own, **base, "__subflavors__": self.subflavors}

    def load_sample(self, raw_data: dict[str, Any]) -> Any:
        return self.__sample_type__(**self._sample_loader(raw_data))


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory):
    """Factory that decodes the parts first.

    Args:
        decoder: decodes the parts: a `SampleDecoder`, or a function of a dict of parts; None keeps bytes.
        auto_decode: whether to decode; `image_decode`, `av_decode`, `video_decode_audio`, `guess_content`: options of
            the decoder (of Energon before 7).
        options: keywords of `DefaultGenericWebdatasetFactory`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        decoder: Any = SampleDecoder(),
        auto_decode: bool = True,
        image_decode: str | None = None,
        av_decode: str | None = None,
        video_decode_audio: bool | None = None,
        guess_content: bool | None = None,
        **options: Unpack[GenericOptions],
    ) -> None:
        given = (image_decode, av_decode, video_decode_audio, guess_content)
        decoding: dict[str, Any] = dict(zip((*DECODING, "guess_content"), given, strict=True))
        decoding = {name: value for name, value in decoding.items() if value is not None}
        self.image_decode = image_decode or "torchrgb"
        self._decoder = (SampleDecoder(**decoding) if decoding else decoder) if auto_decode else None
        super().__init__(path, **options)

    def _decoded(self, raw_data: dict[str, Any]) -> dict[str, Any]:
        """Return a raw sample with decoded parts."""
        decode = self._decoder
        if not isinstance(decode, Decoder):
            return raw_data if decode is None else decode(raw_data)
        parts = {name: value for name, value in raw_data.items() if not name.startswith("__")}
        return {**raw_data, **{name: decode(name, value) for name, value in parts.items()}}

    def load_sample(self, raw_data: dict[str, Any]) -> Any:
        return super().load_sample(self._decoded(raw_data))


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory):
    """Factory of samples of a given type.

    Args:
        sample_type: a dataclass that derives from `Sample`.
        options: keywords of `DefaultDecoderWebdatasetFactory`.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, sample_type: type[Any], **options: Unpack[DecoderOptions]
    ) -> None:
        if not dataclasses.is_dataclass(sample_type):
            raise ConfigError(f"{sample_type!r} is not a dataclass", fix="Derive it from Sample.")
        self.__sample_type__ = sample_type  # type: ignore[misc]
        super().__init__(path, **options)


class CrudeWebdataset(DefaultDecoderWebdatasetFactory):
    """Factory of crude samples: dicts of decoded parts."""

    __sample_type__ = CrudeSample

    def __init__(
        self, path: str | os.PathLike[str], *, part_filter: Any = None, **options: Unpack[CrudeOptions]
    ) -> None:
        for name in ("sample_loader", "field_map"):
            if name in options:
                raise ConfigError(f"crude data has no {name!r}", kind="unsupported", fix="Remove it.")
        super().__init__(path, sample_loader=dict, part_filter=part_filter, **options)

    def load_sample(self, raw_data: dict[str, Any]) -> Any:
        return {**self._decoded(raw_data), "__subflavors__": self.subflavors}


class CrudeJsonlDatasetFactory(BaseCoreDatasetFactory):
    """Factory of the rows of a JSONL file, as bytes in the part ``json``, without the end of the line.

    Args:
        path: the file.
        training: whether to shuffle.
        worker_config: the rank and its workers.
        shuffle_over_epochs: passes of a loop for training; None for the stored order, -1 for a loop without end.
        parallel_shard_iters: sequences that are read side by side; 16 by default.
        max_samples_per_sequence: samples of the sequences that the file is cut into; None for the whole file.
        subset: the samples that are read.
        part_filter: returns whether the part ``json`` is read; None for yes.

    Raises:
        ConfigError: an option is invalid, or the class overrides a method that Feedmill does not call.
        TypeError: an option is unknown.
    """

    __sample_type__ = CrudeSample
    _decoded = False

    @signed
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: DatasetSubset | None = None,
        part_filter: PartFilter | None = None,
    ) -> None:
        _check_methods(self)
        check_subset(subset)
        self.path, self.part_filter, self.subset = EPath(path), part_filter, subset
        self.paths, self.training, self.worker_config = [self.path], training, worker_config
        self.name = self.path.name
        self.reading = Reading(
            shuffle_over_epochs=shuffle_over_epochs,
            parallel_shard_iters=parallel_shard_iters,
            max_samples_per_sequence=max_samples_per_sequence,
        )
        if not hasattr(self, "subflavors"):
            self.subflavors = {}

    def open(self) -> Dataset:
        dataset = open_dataset(str(self.path), decode=SampleDecoder()).opened_as(subflavors=self.subflavors)
        if self.part_filter is not None:
            dataset = filtered(dataset, self.part_filter)
        return dataset if self._decoded else dataset.opened_as(view=_rows_as_bytes)

    @classmethod
    @closed(PREPARE)
    def prepare_dataset(cls, path: str | os.PathLike[str]) -> int:
        """Index a JSONL file. Returns the number of its rows."""
        return prepare(os.fspath(path), energon_exact=True, progress=False).samples


class JsonlOptions(TypedDict, total=False):
    """Keywords of `CrudeJsonlDatasetFactory`."""

    training: bool
    worker_config: WorkerConfig
    shuffle_over_epochs: int | None
    parallel_shard_iters: int | None
    max_samples_per_sequence: int | None
    subset: DatasetSubset | None
    part_filter: PartFilter | None


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """Factory of the rows of a JSONL file, decoded.

    Args:
        subflavors: data attached to every sample.
        decoder: no effect, as in Energon: rows are JSON.
        options: keywords of `CrudeJsonlDatasetFactory`.
    """

    _decoded = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        subflavors: Mapping[str, Any] | None = None,
        decoder: object = None,  # noqa: ARG002
        **options: Unpack[JsonlOptions],
    ) -> None:
        self.subflavors = dict(subflavors or {})
        super().__init__(path, **options)


def _rows_as_bytes(samples: list[Sample]) -> list[Any]:
    """Return rows of a JSONL file as crude samples whose part ``json`` is its bytes."""
    rows = []
    for sample in samples:
        row = CrudeSample(sample)
        row["json"] = sample.raw("json")
        rows.append(row)
    return rows


def _check_methods(factory: BaseCoreDatasetFactory) -> None:
    """Raise `ConfigError` for a method of Energon that a user overrides and Feedmill never calls."""
    for name in METHODS.names(Fate.REFUSED):
        if hasattr(factory, name):
            raise _unsupported(type(factory), name)


def _unsupported(cls: type[BaseCoreDatasetFactory], name: str) -> ConfigError:
    words = METHODS.settings[name].words
    return ConfigError(f"{cls.__name__}.{name} is unsupported: {words}", kind="unsupported", fix="Remove it.")


def typed_factory(name: str) -> type[DefaultDecoderWebdatasetFactory]:
    """Return the factory of a sample type by its name in Energon, for example ``CaptioningWebdataset``."""
    kind = types.sample_type(name.removesuffix("Webdataset") + "Sample")
    return type(name, (DefaultDecoderWebdatasetFactory,), {"__sample_type__": kind, "__module__": __name__})


# Names of the files in ``.nv-meta``, as Energon calls them.
MAIN_FOLDER_NAME = META
INDEX_SQLITE_FILENAME, INDEX_UUID_FILENAME, INFO_JSON_FILENAME, INFO_YAML_FILENAME = (
    path.removeprefix(f"{META}/") for path in (INDEX, UUID, INFO, INFO_YAML)
)
SPLIT_YAML_FILENAME = "split.yaml"
