"""Columns that the index knows without reading samples, such as sizes and tokens: histograms, filters, orders."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, FeedmillError, did_you_mean
from feedmill.formats.base import Dataset
from feedmill.formats.episodes import Episodic
from feedmill.formats.sample import Sample
from feedmill.tokens.pieces import has_tokens
from feedmill.web.charts import histogram, with_chosen
from feedmill.web.documents import Documents
from feedmill.web.parts import scalars
from feedmill.web.results import RecentResults
from feedmill.web.state import State

Int64s = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]

_MEASURES = ("tokens", "pixels", "frames", "bytes")
_OF_FRAMES = ("timestamp", "index", "frames")
"""Columns of robot data that only number its frames."""
_KEPT = 16
_FIELD_SECONDS, _FIELD_BYTES, _MOST_FIELDS, _AT_ONCE = 4.0, 256 << 20, 64, 256
_MOST_VALUES, _LONGEST_VALUE = 100, 120
"""Values of a field that can be chosen, and characters of the longest."""


class Columns:
    """The index columns of a dataset, and the selections that visitors made last. Thread-safe.

    Attributes:
        names: the columns that the index has.
        problems: name -> why a column of the index cannot be used.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._values: dict[str, Numbers] = dict(dataset.columns) if isinstance(dataset, Documents) else {}
        self._kept = RecentResults(_KEPT)
        self.problems: dict[str, str] = dict(dataset.problems) if isinstance(dataset, Documents) else {}
        if isinstance(dataset, Episodic):
            self._values["episode_length"] = np.repeat(dataset.episode_lengths, dataset.episode_lengths)
        for name in dict.fromkeys([*_MEASURES, *dataset.cost_fields]):
            if name in _OF_FRAMES and isinstance(dataset, Episodic):
                continue
            try:
                values = dataset.costs(name)
            except FeedmillError as error:
                self.problems[name] = str(error)
                continue
            if values is not None and len(values):
                self._values[name] = values
        self.names = list(self._values)

    def __getitem__(self, name: str) -> Numbers:
        """Return the numbers of a column, int64[len], or float64[len] with NaN where a sample has none."""
        if name not in self._values:
            hint = did_you_mean(name, self.names)
            raise ConfigError(
                f"the index has no column {name!r}{hint}",
                file=self._dataset.url,
                kind="no-column",
                fix=f"Its columns: {', '.join(self.names) or 'none'}.",
            )
        return self._values[name]

    def with_numbers(self, fields: Fields) -> Columns:
        """Return these columns, and those of the fields that are numbers."""
        more = copy.copy(self)
        more._values = {**fields.numbers, **self._values}
        more._values = {name: more._values[name] for name in [*self.names, *fields.numbers]}
        more.names = list(more._values)
        more._kept = RecentResults(_KEPT)
        return more

    def at(self, number: int) -> dict[str, int | float | None]:
        """Return the numbers of a sample by column; None where it has none."""
        found = {name: values[number].item() for name, values in self._values.items()}
        return {name: None if value != value else _whole(value) for name, value in found.items()}

    def histogram(self, name: str, state: State) -> dict[str, Any]:
        """Return the histogram of a column over all samples; see `feedmill.web.charts.histogram`."""
        drawing = self._kept(("histogram", name), lambda: histogram(_finite(self[name])))
        return with_chosen(drawing, *state.ranges().get(name, (None, None)))

    def selected(self, state: State) -> Int64s | None:
        """Return the numbers of the samples that the state selects, in its order; None for all in stored order.

        Raises:
            ConfigError: a column is unknown.
        """
        ranges, sort = state.ranges(), state.get("sort", "")
        if not ranges and not sort:
            return None
        key = ("selected", tuple(sorted(ranges.items(), key=str)), sort)
        return cast("Int64s", self._kept(key, lambda: self._select(state)))

    def _select(self, state: State) -> Int64s:
        mask = np.ones(len(self._dataset), np.bool_)
        for name, (low, high) in state.ranges().items():
            values = self[name]
            mask &= values >= low if low is not None else True
            mask &= values <= high if high is not None else True
        chosen = np.flatnonzero(mask)
        sort = state.get("sort", "")
        if sort:
            values = self[sort.removeprefix("-")][chosen]
            order = np.argsort(-values if sort.startswith("-") else values, kind="stable")
            chosen = chosen[order]
        return chosen.astype(np.int32) if len(self._dataset) < 1 << 31 else chosen


@dataclass(frozen=True, slots=True)
class Facet:
    """A field with few values: the most frequent first, with counts; `codes` has the place of each sample's, or -1."""

    values: list[str]
    counts: list[int]
    codes: npt.NDArray[np.int32]


class Fields:
    """The fields of the first samples of a dataset: numbers, and those with few values.

    Samples are read for a bounded time, on this machine only; robot data and tokens have their columns in the index.

    Attributes:
        numbers: the fields that are numbers, float64[len] with NaN where a sample has none or was not read.
        facets: the fields with few values.
        places: name -> part, and the field in it.
        read: the samples that were read.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.numbers: dict[str, npt.NDArray[np.float64]] = {}
        self.facets: dict[str, Facet] = {}
        self.places: dict[str, tuple[str, str | None]] = {}
        self.read = 0
        self._columns: tuple[Columns, Columns] | None = None
        if dataset.is_remote or isinstance(dataset, Episodic) or has_tokens(dataset):
            return
        values: dict[str, dict[int, Any]] = {}
        end, left = time.monotonic() + _FIELD_SECONDS, _FIELD_BYTES
        while self.read < len(dataset) and time.monotonic() < end and left > 0:
            numbers = range(self.read, min(self.read + _AT_ONCE, len(dataset)))
            for number, sample in zip(numbers, read_each(dataset, numbers), strict=True):
                if isinstance(sample, FeedmillError):
                    continue
                left -= sample.source.length
                for name, place, value in scalars(sample):
                    if place[1] == "id":  # a name, and no quantity
                        continue
                    if name in values or len(values) < _MOST_FIELDS:
                        values.setdefault(name, {})[number] = value
                        self.places[name] = place
            self.read = numbers.stop
        for name, known in values.items():
            self._add(name, known, len(dataset))

    def _add(self, name: str, known: dict[int, Any], count: int) -> None:
        if all(type(value) in (int, float) for value in known.values()):
            column = np.full(count, np.nan)
            column[list(known)] = [_float(value) for value in known.values()]
            if np.isfinite(column).any():
                self.numbers[name] = column
            return
        texts = {number: str(value) for number, value in known.items()}
        counts = Counter(texts.values())
        if len(counts) > _MOST_VALUES or 2 * len(counts) > len(texts) or max(map(len, counts)) > _LONGEST_VALUE:
            return
        order = [value for value, _ in counts.most_common()]
        place = {value: code for code, value in enumerate(order)}
        codes = np.full(count, -1, np.int32)
        codes[list(texts)] = [place[text] for text in texts.values()]
        self.facets[name] = Facet(order, [counts[value] for value in order], codes)

    def with_numbers_of(self, columns: Columns) -> Columns:
        """Return the columns of an index with those of these fields that are numbers."""
        if self._columns is None or self._columns[0] is not columns:
            self._columns = columns, columns.with_numbers(self)
        return self._columns[1]

    def selected(self, state: State, chosen: Int64s | None, count: int) -> Int64s | None:
        """Return those of the chosen samples that have the values of the state.

        Raises:
            ConfigError: a field is unknown, or has many values.
        """
        for name, value in state.chosen().items():
            facet = self.facets.get(name)
            if facet is None:
                raise ConfigError(
                    f"no field {name[:80]!r} has few values{did_you_mean(name, list(self.facets))}",
                    kind="no-column",
                    fix=f"Fields: {', '.join(self.facets) or 'none'}.",
                )
            code = facet.values.index(value) if value in facet.values else -2
            chosen = np.arange(count) if chosen is None else chosen
            chosen = chosen[facet.codes[chosen] == code]
        return chosen


def read_each(dataset: Dataset, numbers: Sequence[int]) -> list[Sample | FeedmillError]:
    """Return samples; in place of one that cannot be read, its error."""
    try:
        return list(dataset.read_raw(numbers)) if len(numbers) else []
    except FeedmillError:
        found: list[Sample | FeedmillError] = []
        for number in numbers:
            try:
                found.append(dataset.read_raw([number])[0])
            except FeedmillError as error:
                found.append(error)
        return found


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("nan")


def _finite(values: Numbers) -> Numbers:
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values


def _whole(value: int | float) -> int | float:
    return int(value) if float(value).is_integer() else value
