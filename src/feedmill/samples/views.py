"""Views of datasets: `map`, `filter` and `select`. They read nothing but what they are asked for, and write nothing.

Positions, keys, locations and fingerprints are those of the selected samples, so plans, ledgers and states work with a
view as with a dataset.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, refuse_empty
from feedmill.formats.base import Dataset, TokenReader, View
from feedmill.formats.sample import Sample, reraise
from feedmill.jobs.cores import available_cores
from feedmill.jobs.progress import Progress
from feedmill.jobs.threads import ordered_map
from feedmill.samples.selected import SelectedDataset

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
        reraise(error, raw.source, who, kind=f"{verb}-failed", fix="Fix the function, or the sample.")


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def mapped(dataset: Dataset, function: Callable[[Any], Any]) -> Dataset:
    """Return a view whose samples are results of a function; see `Dataset.map`."""
    if isinstance(dataset, TokenReader):
        raise ConfigError(
            "documents of tokens cannot be mapped: packing reads their tokens by span, not as samples",
            file=dataset.url,
            kind="not-mappable",
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
            raise ConfigError(f"a mask must have {count:,} values: found {list(numbers.shape)}", kind="bad-selection")
        numbers = np.flatnonzero(numbers)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ConfigError(
            f"expected numbers of samples, a slice or a mask: found {numbers.dtype}{list(numbers.shape)}",
            kind="bad-selection",
        )
    refuse_empty(len(numbers), count, "sample", file=dataset.url, fix="Select at least one sample.", allow=None)
    numbers = numbers.astype(np.int64)
    wrong = numbers[(numbers < -count) | (numbers >= count)]
    if len(wrong):
        raise IndexError(f"{dataset.url}: sample {int(wrong[0])} of {count}")
    return SelectedDataset(dataset, numbers % count, f"{len(numbers):,} of {count:,} samples")
