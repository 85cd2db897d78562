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
from typing import Any

from feedmill.compat.energon.datasets import trusts
from feedmill.compat.energon.epathlib import EPath
from feedmill.compat.energon.opened_factory import BaseCoreDatasetFactory
from feedmill.compat.energon.worker import WorkerConfig, without_effect
from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset
from feedmill.formats.braces import expand
from feedmill.formats.energon.prepared import INFO
from feedmill.indexing.prepare import prepare
from feedmill.samples import types
from feedmill.samples.crude import CrudeSample
from feedmill.samples.decode import Decoder, SampleDecoder
from feedmill.samples.fieldmap import FieldMap
from feedmill.samples.open import open as open_dataset
from feedmill.samples.trusted import TrustedCode
from feedmill.samples.view import FactoryView
from feedmill.storage import open_store

_DECODING = ("image_decode", "av_decode", "video_decode_audio", "guess_content")
_IGNORED = ("handler", "ignore_decoder_errors", "parallel_shard_iters", "max_samples_per_sequence")
_SHUFFLE_SEED = 42
_NAMES = ("train", "val", "test")


class BaseWebdatasetFactory(BaseCoreDatasetFactory):
    """Factory of a prepared folder. Derived classes set `__sample_type__` and define `load_sample`.

    Args:
        path: the prepared folder.
        split_part: name of the split.
        training: whether to shuffle.
        worker_config: the rank and its workers.
        split_config: name of another split file.
        part_filter: returns whether a part is read; None for all.
        shuffle_over_epochs, subset: unsupported but for their defaults.
        options: further options of Energon, which have no effect, with a warning.

    Raises:
        ConfigError: an option is unsupported.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str = "train",
        training: bool = True,
        worker_config: WorkerConfig | None = None,
        shuffle_over_epochs: int | None = 1,
        subset: Any = None,
        split_config: str | None = None,
        part_filter: Callable[[str], bool] | None = None,
        **options: Any,
    ) -> None:
        unknown = [name for name in options if name not in _IGNORED]
        if unknown or subset is not None:
            raise ConfigError(
                f"{type(self).__name__} has no option {(*unknown, 'subset')[0]!r}",
                fix="Use a metadataset for subsets; the options are those of BaseWebdatasetFactory.",
            )
        for name in options:
            without_effect(name, "the plan decides the order, and WorkerConfig has the error handler")
        self.path = EPath(path)
        self.paths, self.name = [self.path], self.path.name
        self.split_part, self.split_config = split_part, split_config
        self.training = training and shuffle_over_epochs is not None
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
        return cls(EPath(path), **options).view()

    @classmethod
    def prepare_dataset(
        cls,
        parent_path: str | os.PathLike[str],
        paths: Sequence[str],
        *,
        split_parts_ratio: Sequence[tuple[str, float]] | None = None,
        split_parts_patterns: Sequence[tuple[str, str]] | None = None,
        split_config: str = "split.yaml",
        shuffle_seed: int | None = _SHUFFLE_SEED,
        workers: int = 32,
        tar_index_only: bool = False,
        media_filter: Any = None,
        **options: Any,
    ) -> tuple[set[str], list[tuple[str, int]]]:
        """Index the shards of a folder as ``feedmill energon prepare`` does.

        Args:
            parent_path: the folder.
            paths: shards in the folder, with ranges such as ``data-{0..9}.tar``.
            split_parts_ratio: pairs of a split (train, val, test in this order) and its share.
            split_parts_patterns: pairs of a split and a pattern of shard paths, instead of a ratio.
            shuffle_seed: 42, or None to keep the order of the shards.
            workers: threads.
            tar_index_only: rebuild the index only.
            media_filter: parts whose media metadata is added.
            options: ``progress_fn`` and ``index_sqlite_tmp_path``, which have no effect.

        Returns:
            The names of the parts (at most 50), and the number of samples of each shard.

        Raises:
            ConfigError: an option is unsupported, or as `feedmill.prepare`.
        """
        unknown = [name for name in options if name not in ("progress_fn", "index_sqlite_tmp_path")]
        if unknown or split_config != "split.yaml" or shuffle_seed not in (None, _SHUFFLE_SEED):
            raise ConfigError(
                f"prepare_dataset does not support {(*unknown, 'this split_config or shuffle_seed')[0]}",
                kind="not-supported",
                fix="split_config is 'split.yaml', and shuffle_seed is 42 or None.",
            )
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
            kind="bad-ratio",
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
        options: options of `BaseWebdatasetFactory`.
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
        **options: Any,
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
        options: options of `DefaultGenericWebdatasetFactory`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        decoder: Any = SampleDecoder(),
        auto_decode: bool = True,
        **options: Any,
    ) -> None:
        decoding = {name: options.pop(name) for name in _DECODING if name in options}
        self.image_decode = decoding.get("image_decode", "torchrgb")
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
        options: options of `DefaultDecoderWebdatasetFactory`.
    """

    def __init__(self, path: str | os.PathLike[str], *, sample_type: type[Any], **options: Any) -> None:
        if not dataclasses.is_dataclass(sample_type):
            raise ConfigError(f"{sample_type!r} is not a dataclass", fix="Derive it from Sample.")
        self.__sample_type__ = sample_type  # type: ignore[misc]
        super().__init__(path, **options)


class CrudeWebdataset(DefaultDecoderWebdatasetFactory):
    """Factory of crude samples: dicts of decoded parts."""

    __sample_type__ = CrudeSample

    def __init__(self, path: str | os.PathLike[str], *, part_filter: Any = None, **options: Any) -> None:
        super().__init__(path, sample_loader=dict, part_filter=part_filter, **options)

    def load_sample(self, raw_data: dict[str, Any]) -> Any:
        return {**self._decoded(raw_data), "__subflavors__": self.subflavors}


class CrudeJsonlDatasetFactory(BaseCoreDatasetFactory):
    """Factory of the rows of a JSONL file.

    Args:
        path: the file.
        training: whether to shuffle.
        worker_config: the rank and its workers.
        subflavors: data attached to every sample.
        options: options of Energon, which have no effect.
    """

    __sample_type__ = CrudeSample

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        training: bool,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        **options: Any,  # noqa: ARG002
    ) -> None:
        self.path = EPath(path)
        self.paths, self.training, self.worker_config = [self.path], training, worker_config
        self.subflavors = dict(subflavors or {})

    def open(self) -> Dataset:
        return open_dataset(str(self.path), decode=SampleDecoder()).opened_as(subflavors=self.subflavors)

    @classmethod
    def prepare_dataset(cls, path: str | os.PathLike[str]) -> int:
        """Index a JSONL file. Returns the number of its rows."""
        return prepare(os.fspath(path), energon_exact=True, progress=False).samples


DefaultCrudeJsonlDatasetFactory = CrudeJsonlDatasetFactory


def typed_factory(name: str) -> type[DefaultDecoderWebdatasetFactory]:
    """Return the factory of a sample type by its name in Energon, for example ``CaptioningWebdataset``."""
    kind = types.sample_type(name.removesuffix("Webdataset") + "Sample")
    return type(name, (DefaultDecoderWebdatasetFactory,), {"__sample_type__": kind, "__module__": __name__})
