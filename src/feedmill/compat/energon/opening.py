"""The opening of datasets by Energon's functions, with the words that these and their ``**kwargs`` take."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from feedmill.compat.energon.reading import DatasetSubset
from feedmill.errors import ConfigError
from feedmill.formats.base import Dataset
from feedmill.formats.sample import Decode, Sample
from feedmill.planning.dialects.energon import Asked
from feedmill.planning.recipes.read import is_dataset
from feedmill.samples.crude import CrudeSample
from feedmill.samples.open import open as open_dataset
from feedmill.samples.view import CrudeView

PartFilter = Callable[[str], bool] | Sequence[str]
Path = str | os.PathLike[str] | Mapping[str, Any]


class Words(TypedDict, total=False):
    """Keywords of `get_train_dataset` and its relatives that concern how datasets are opened."""

    dataset_config: str | None
    split_config: str | None
    subflavors: Mapping[str, Any] | None
    subset: DatasetSubset | None
    sample_type: type[Any] | None
    part_filter: PartFilter | None
    auto_decode: bool
    image_decode: str
    av_decode: str
    video_decode_audio: bool


DECODING = ("image_decode", "av_decode", "video_decode_audio")


def trusts(trust: bool | None) -> bool:
    """Return whether code that the data names may run: as given, or as ``FEEDMILL_ENERGON_TRUST=1`` allows.

    The variable is for programs whose calls cannot be changed.
    """
    return os.environ.get("FEEDMILL_ENERGON_TRUST") == "1" if trust is None else trust


@dataclass(frozen=True)
class Opening:
    """Opens datasets with a decoder, a filter of parts and an expected type; has the arguments of `feedmill.open`.

    Attributes:
        decode: decodes parts; None for bytes.
        trust: whether code that the data names may run.
        part_filter: the parts of crude samples that are read; None for all.
        sample_type: the type that samples must have; None for any.
    """

    decode: Decode | None
    trust: bool
    part_filter: PartFilter | None = None
    sample_type: type[Any] | None = None

    def __call__(self, url: str, **options: Any) -> Dataset:
        dataset = open_dataset(url, decode=self.decode, trust=self.trust, **options)
        if self.part_filter is not None:
            dataset = filtered(dataset, self.part_filter)
        if self.sample_type is not None:
            check_type(dataset, self.sample_type)
        return dataset

    def asked(
        self, path: Path, split: str, passes: int | None, words: Words, *, look: bool = False
    ) -> tuple[Asked, Dataset | None]:
        """Return what a call asks of the datasets of a path, and the dataset if the path is one and was opened.

        Args:
            path: a dataset or metadataset.
            split: the split.
            passes: the multiplier of passes; None for the stored order.
            words: the other words of the call.
            look: whether to open a dataset, also if nothing that is asked needs its length.
        """
        subset, subflavors = words.get("subset"), dict(words.get("subflavors") or {})
        check_subset(subset)
        if isinstance(path, Mapping) or not is_dataset(url := absolute(path)):
            return Asked(() if subset is None else subset.ranges(), subflavors, passes), None
        names = {"dataset_config": words.get("dataset_config"), "split_config": words.get("split_config")}
        if url.endswith(".jsonl"):
            refuse_configs(url, names)
        else:
            names["split"] = split
        if subset is None and not look:
            return Asked((), subflavors, passes), None
        dataset = self(url, **{name: given for name, given in names.items() if given is not None})
        ranges = () if subset is None else (subset.bounds(dataset),)
        return Asked(ranges, subflavors, passes), dataset


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as an absolute one; a URL is unchanged."""
    url = os.fspath(path)
    return url if "://" in url else os.path.abspath(url)


def refuse_configs(url: str, names: Mapping[str, str | None]) -> None:
    """Raise `ConfigError` for a description or split file of a JSONL file, which has none."""
    for name, given in names.items():
        if given is not None:
            raise ConfigError(f"a JSONL file has no {name}", file=url, fix=f"Omit {name!r}.")


def check_subset(subset: object) -> None:
    """Raise `ConfigError` unless this is a `DatasetSubset` or None."""
    if subset is not None and not isinstance(subset, DatasetSubset):
        raise ConfigError(
            f"subset is a {type(subset).__name__}, expected a DatasetSubset",
            kind="bad-recipe",
            fix="Write DatasetSubset(range=(0.0, 0.5)) or DatasetSubset(absolute_range=(0, 100)).",
        )


def filtered(dataset: Dataset, keep: PartFilter) -> Dataset:
    """Return crude data with the parts that a filter keeps.

    A filter in the description comes first: as in Energon, where the description overrides the call.

    Raises:
        ConfigError: the samples are not crude, or none of the parts of a JSONL file is kept.
    """
    accepts = keep if callable(keep) else frozenset(keep).__contains__
    if isinstance(dataset.view, CrudeView):
        return dataset
    if dataset.view is not None:
        raise ConfigError(
            "'part_filter' is for crude data: the field map or loader of a description has the parts of other data",
            file=dataset.url,
            kind="unsupported",
            fix="Omit 'part_filter'.",
        )
    if dataset.url.endswith(".jsonl"):
        if not accepts("json"):
            raise ConfigError(
                "'part_filter' leaves no samples: the only part of a JSONL file is 'json'",
                file=dataset.url,
                kind="empty-source",
                fix="Omit 'part_filter'.",
            )
        return dataset
    return dataset.opened_as(view=CrudeView(accepts))


def check_type(dataset: Dataset, expected: type[Any]) -> None:
    """Raise `ConfigError` if the samples of a dataset have another type."""
    if not len(dataset):
        return
    sample = dataset[0]
    if not isinstance(CrudeSample(sample) if isinstance(sample, Sample) else sample, expected):
        raise ConfigError(
            f"the samples are no {expected.__name__}: {dataset.about}", file=dataset.url, fix="Check dataset.yaml."
        )
