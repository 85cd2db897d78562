"""Views of datasets: `map`, `filter` and `select`. They read nothing but what they are asked for, and write nothing.

Positions, keys, locations and fingerprints are those of the selected samples, so plans, ledgers and states work with a
view as with a dataset.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, FeedmillError, refuse_empty
from feedmill.formats.base import Dataset, Indices, TokenReader, View
from feedmill.formats.batches import Batch, Want
from feedmill.formats.costs import Int64s
from feedmill.formats.mediatable import MediaTable
from feedmill.formats.offsets import Extents, hash_words
from feedmill.formats.sample import Sample, Source, no_such_key, reraise
from feedmill.jobs.progress import Progress
from feedmill.jobs.resources import available_cores
from feedmill.jobs.threads import ordered_map


def bounds_within(dataset: Dataset, numbers: Int64s) -> Int64s:
    """Return the bounds of shards, see `Dataset.shard_bounds`, of chosen samples of a dataset.

    Args:
        numbers: int64[n], their numbers. If these do not ascend, the samples are one shard.
    """
    if len(numbers) and (np.diff(numbers) < 0).any():
        return np.array([0, len(numbers)], np.int64)
    return np.searchsorted(numbers, dataset.shard_bounds)


class DatasetView(Dataset):
    """Base of datasets whose samples are some or all of those of another one, which reads and locates them.

    A view of some samples overrides `numbers_of` and `place_of`, `__len__` and `shard_bounds`.

    Args:
        dataset: any dataset that is not token data.
    """

    dataset: Dataset

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.url, self.split = dataset.url, dataset.split
        self._opened = replace(dataset.opened, reopen=None)

    def numbers_of(self, indices: Indices) -> Int64s:
        """Return the numbers of samples in the dataset below, int64[n]."""
        return np.asarray(indices, np.int64)

    def place_of(self, number: int) -> int | None:
        """Return the sample that is one of the dataset below; None if this one lacks it."""
        return number

    @property
    def what(self) -> str:
        """The view in words, for errors."""
        return self.format

    def __len__(self) -> int:
        return len(self.dataset)

    def read_raw(self, indices: Indices) -> list[Sample]:
        return self.dataset.read_raw(self.numbers_of(indices))

    @property
    def is_remote(self) -> bool:
        return self.dataset.is_remote

    def load_ahead(self) -> None:
        self.dataset.load_ahead()

    def copy_indices(self) -> None:
        self.dataset.copy_indices()

    def extents(self, indices: Indices) -> Sequence[Extents]:
        return self.dataset.extents(self.numbers_of(indices))

    @property
    def row_files(self) -> Sequence[str]:
        return self.dataset.row_files

    @property
    def shard_bounds(self) -> Int64s:
        return self.dataset.shard_bounds

    def stored_rows(self, indices: Indices) -> tuple[Int64s, Int64s]:
        return self.dataset.stored_rows(self.numbers_of(indices))

    def samples_of_row(self, file: int, row: int) -> list[int]:
        return [at for number in self.dataset.samples_of_row(file, row) if (at := self.place_of(number)) is not None]

    def media_version(self) -> str | None:
        return self.dataset.media_version()

    def locate(self, index: int) -> Source:
        return self.dataset.locate(int(self.numbers_of([self._checked(index)])[0]))

    def locate_part(self, name: str) -> Source:
        return self.dataset.locate_part(name)

    def find(self, key: str) -> int:
        """Return the number of a sample. Raises `NotFound`, also for one that only the dataset below has."""
        at = self.place_of(self.dataset.find(key))
        if at is None:
            raise no_such_key(f"{self.url} ({self.what})", key)
        return at

    def _find_costs(self, by: str) -> Int64s | None:
        costs = self.dataset.costs(by)
        return None if costs is None else costs[self.numbers_of(range(len(self)))]

    def _find_values(self, by: str, *, texts: bool) -> npt.NDArray[Any] | None:
        values = self.dataset.values(by, texts=texts)
        return None if values is None else values[self.numbers_of(range(len(self)))]

    @property
    def cost_fields(self) -> Sequence[str]:
        return self.dataset.cost_fields

    def costs_advice(self, by: str) -> str:
        return self.dataset.costs_advice(by)

    @property
    def splits(self) -> Mapping[str, int]:
        return self.dataset.splits

    def verify(self) -> Sequence[FeedmillError]:
        return self.dataset.verify()


class SelectedDataset(DatasetView):
    """Dataset of selected samples of another dataset, which reads, decodes and locates them.

    Args:
        dataset: Any dataset that is not token data.
        numbers: int64[n], the numbers of the selected samples, in any order.
        what: Description of the selection, for `describe`.
    """

    format = "selection"

    def __init__(self, dataset: Dataset, numbers: Int64s, what: str) -> None:
        super().__init__(dataset)
        self.numbers, self._what = numbers, what

    @property
    def what(self) -> str:
        return self._what

    @cached_property
    def _sorted(self) -> Int64s:
        """Places of the selection in ascending order of their numbers, for `find`."""
        return np.argsort(self.numbers, kind="stable")

    def opened_as(self, **changes: Any) -> SelectedDataset:
        return SelectedDataset(self.dataset.opened_as(**changes), self.numbers, self.what)

    def numbers_of(self, indices: Indices) -> Int64s:
        chosen: Int64s = self.numbers[np.asarray(indices, np.int64)]
        return chosen

    def place_of(self, number: int) -> int | None:
        place = int(np.searchsorted(self.numbers, number, sorter=self._sorted))
        if place == len(self) or self.numbers[self._sorted[place]] != number:
            return None
        return int(self._sorted[place])

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, indices: Indices) -> list[Any]:
        return self.dataset.read(self.numbers_of(indices))

    def read_batch(self, indices: Indices, want: Want) -> Batch | None:
        return self.dataset.read_batch(self.numbers_of(indices), want)

    @property
    def shard_bounds(self) -> Int64s:
        return bounds_within(self.dataset, self.numbers)

    def samples_of_row(self, file: int, row: int) -> list[int]:
        found = np.asarray(self.dataset.samples_of_row(file, row), np.int64)
        return np.flatnonzero(np.isin(self.numbers, found)).tolist()  # a sample may be selected twice

    def fingerprint(self) -> str:
        import xxhash

        digest = xxhash.xxh3_128_hexdigest(np.ascontiguousarray(self.numbers, "<i8").tobytes())
        return hash_words([self.dataset.fingerprint(), str(len(self)), digest])

    @property
    def lengths(self) -> Int64s | None:
        known = self.dataset.lengths
        return None if known is None else known[self.numbers]

    def media_table(self) -> MediaTable:
        return self.dataset.media_table().select(self.numbers)

    def describe(self) -> dict[str, Any]:
        """Return the facts of the dataset with the samples of the selection, and their bytes if the index has them."""
        facts = {**self.dataset.describe(), "samples": len(self), "selection": self.what}
        for whole in ("bytes", "excluded"):
            facts.pop(whole, None)
        sizes = self.costs("bytes")
        return facts if sizes is None else {**facts, "bytes": int(sizes.sum())}


KEY = "__key__"
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class MappedView:
    """A view that calls a function with each sample.

    Attributes:
        before: the view of the dataset that is mapped; its results are the function's arguments.
        function: called with one sample; from several threads at once.
    """

    before: View | None
    function: Callable[[Any], Any]

    def __call__(self, samples: list[Sample]) -> list[Any]:
        given = samples if self.before is None else self.before(samples)
        return [self._one(raw, value) for raw, value in zip(samples, given, strict=True)]

    def _one(self, raw: Sample, value: Any) -> Any:
        made = called(self.function, raw, value, "map")
        return {KEY: raw.key, **made} if type(made) is dict else made

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            pickle.dumps(self.function)
        except Exception as error:  # user objects may raise any error when pickled
            raise ConfigError(
                f"the function {_name(self.function)} of map cannot be sent to worker processes ({error})",
                kind="not-portable",
                fix="Define it with 'def' at the top of a module, or load with threads.",
            ) from None
        return MappedView, (self.before, self.function)


def called(
    function: Callable[[Any], Any], raw: Sample, value: Any, verb: str, convert: Callable[[Any], Any] | None = None
) -> Any:
    """Return the result of a user's function for a sample, converted. Raises `DataError` with the sample's location."""
    try:
        made = function(value)
        return made if convert is None else convert(made)
    except Exception as error:
        who = f"{_name(function)} of {verb}"
        reraise(error, raw.source, who, kind="function-failed", fix="Fix the function, or the sample.")


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def mapped(dataset: Dataset, function: Callable[[Any], Any]) -> Dataset:
    """Return a view whose samples are results of a function; see `Dataset.map`."""
    if isinstance(dataset, TokenReader):
        raise ConfigError(
            "documents of tokens cannot be mapped: packing reads their tokens by span, not as samples",
            file=dataset.url,
            kind="unsupported",
            fix="Pass the function to the Loader: transform=...",
        )
    return dataset.opened_as(view=MappedView(dataset.view, function))


def filtered(dataset: Dataset, function: Callable[[Any], Any], *, progress: bool = True) -> Dataset:
    """Return a view of the samples for which a function is true; see `Dataset.filter`."""
    with Progress("filtering", len(dataset), "samples", enabled=progress) as bar:
        keep = np.zeros(len(dataset), bool)
        starts, threads = range(0, len(dataset), _AT_ONCE), available_cores()
        blocks = ordered_map(partial(_kept, dataset, function), starts, workers=threads, in_flight=2 * threads)
        for start, block in zip(starts, blocks, strict=True):
            keep[start : start + len(block)] = block
            bar.advance(len(block))
    numbers = np.flatnonzero(keep)
    refuse_empty(len(numbers), len(dataset), "sample", file=dataset.url, fix=f"Check {_name(function)}.", allow=None)
    return SelectedDataset(dataset, numbers, f"filter {_name(function)}: {len(numbers):,} of {len(dataset):,} samples")


def _kept(dataset: Dataset, function: Callable[[Any], Any], start: int) -> list[bool]:
    indices = range(start, min(start + _AT_ONCE, len(dataset)))
    values = dataset.read(indices)
    raw = values if all(isinstance(value, Sample) for value in values) else dataset.read_raw(indices)
    return [called(function, one, value, "filter", bool) for one, value in zip(raw, values, strict=True)]


def selected(dataset: Dataset, indices: Sequence[int] | slice | npt.NDArray[Any]) -> Dataset:
    """Return a view of samples by number; see `Dataset.select`."""
    count = len(dataset)
    if isinstance(indices, slice):
        indices = range(*indices.indices(count))
    numbers = np.asarray(indices)
    if numbers.dtype == bool:
        if numbers.shape != (count,):
            raise ConfigError(f"a mask must have {count:,} values: found {list(numbers.shape)}", kind="bad-option")
        numbers = np.flatnonzero(numbers)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ConfigError(
            f"expected numbers of samples, a slice or a mask: found {numbers.dtype}{list(numbers.shape)}",
            kind="bad-option",
        )
    refuse_empty(len(numbers), count, "sample", file=dataset.url, fix="Select at least one sample.", allow=None)
    numbers = numbers.astype(np.int64)
    wrong = numbers[(numbers < -count) | (numbers >= count)]
    if len(wrong):
        raise IndexError(f"{dataset.url}: sample {int(wrong[0])} of {count}")
    return SelectedDataset(dataset, numbers % count, f"{len(numbers):,} of {count:,} samples")
