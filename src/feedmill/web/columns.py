"""Columns that the index knows without reading samples, such as sizes and tokens: histograms, filters, orders."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, FeedmillError, did_you_mean
from feedmill.formats.base import Dataset
from feedmill.formats.episodes import Episodic
from feedmill.web.charts import histogram, with_chosen
from feedmill.web.documents import Documents
from feedmill.web.results import RecentResults
from feedmill.web.state import State

Int64s = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]

_MEASURES = ("tokens", "pixels", "frames", "bytes")
_OF_FRAMES = ("timestamp", "index", "frames")
"""Columns of robot data that only number its frames."""
_KEPT = 16


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


def _finite(values: Numbers) -> Numbers:
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values


def _whole(value: int | float) -> int | float:
    return int(value) if float(value).is_integer() else value
