"""All samples of a dataset as a table in memory: of Arrow, Polars or pandas, which are imported when needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, MissingExtra, NotFound, did_you_mean
from feedmill.formats.base import Dataset
from feedmill.formats.columns import load_pyarrow
from feedmill.formats.sample import Sample
from feedmill.formats.tables.dataset import TableDataset
from feedmill.samples.encode import encode_image
from feedmill.samples.images import IMAGE_SUFFIXES
from feedmill.samples.sheet import image_shape
from feedmill.samples.types import named_fields
from feedmill.samples.views import KEY, SelectedDataset

_JSON = "json"


def to_arrow(dataset: Dataset, names: Sequence[str] | None = None) -> Any:
    """Return all samples as a `pyarrow.Table`; see `Dataset.to_arrow`."""
    arrow = load_pyarrow()
    table = _stored(dataset)
    if table is None:
        columns = _columns(dataset)
        table = arrow.table({name: _array(arrow, dataset, name, values) for name, values in columns.items()})
    if names is None:
        return table
    for name in names:
        if name not in table.column_names:
            raise NotFound(
                f"there is no column {name!r}{did_you_mean(name, table.column_names)}",
                file=dataset.url,
                kind="no-column",
                fix=f"The columns are {', '.join(table.column_names)}.",
            )
    return table.select(list(names))


def to_polars(dataset: Dataset, names: Sequence[str] | None = None) -> Any:
    """Return all samples as a `polars.DataFrame`; see `Dataset.to_arrow`."""
    return _package("polars").from_arrow(to_arrow(dataset, names))


def to_pandas(dataset: Dataset, names: Sequence[str] | None = None) -> Any:
    """Return all samples as a `pandas.DataFrame`; see `Dataset.to_arrow`."""
    _package("pandas")
    return to_arrow(dataset, names).to_pandas()


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        what = f"to_{name} needs {name}, which is not installed"
        raise MissingExtra(what, fix=f"Install it with: pip install {name}") from None


def _stored(dataset: Dataset) -> Any:
    """Return the table of a dataset that is stored as one, with its own types; None for other datasets."""
    if dataset.view is not None:
        return None
    if isinstance(dataset, SelectedDataset) and isinstance(dataset.dataset, TableDataset):
        return dataset.dataset.arrow_rows(dataset.numbers)
    return dataset.arrow_rows(np.arange(len(dataset))) if isinstance(dataset, TableDataset) else None


def _columns(dataset: Dataset) -> dict[str, list[Any]]:
    """Return the values of each column; None for samples that lack it."""
    columns: dict[str, list[Any]] = {}
    for number, sample in enumerate(dataset):
        for name, value in _row(sample).items():
            values = columns.setdefault(name, [])
            values += [None] * (number - len(values))
            values.append(value)
    return {name: values + [None] * (len(dataset) - len(values)) for name, values in columns.items()}


def _row(sample: Any) -> dict[str, Any]:
    """Return a sample as plain values by name."""
    if isinstance(sample, Sample):
        names = [name for name in sample if not name.startswith("__")]
        if names == [_JSON] and isinstance(sample[_JSON], Mapping):
            return {KEY: sample.key, **{str(name): _as_arrow(value) for name, value in sample[_JSON].items()}}
        return {KEY: sample.key, **{name: _part(sample, name) for name in names}}
    fields = named_fields(sample)
    if fields is None:
        return {"value": _as_arrow(sample)}
    own = {name: _as_arrow(value) for name, value in fields.items() if not name.startswith("__")}
    return {KEY: fields[KEY], **own} if KEY in fields else own


def _part(sample: Sample, name: str) -> Any:
    if name.rpartition(".")[2].lower() in IMAGE_SUFFIXES:
        return sample.raw(name)
    value = sample[name]
    return sample.raw(name) if hasattr(value, "came_from") else _as_arrow(value)  # a handle of audio or video


def _as_arrow(value: Any) -> Any:
    """Return a value as Arrow takes it: arrays as lists, images as PNG."""
    if isinstance(value, Mapping):
        return {str(name): _as_arrow(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_arrow(item) for item in value]
    if hasattr(value, "mode") or image_shape(value):
        return encode_image(value, "PNG")
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return value if value.ndim == 1 and value.dtype.kind in "biuf" else value.tolist()
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _array(arrow: Any, dataset: Dataset, name: str, values: list[Any]) -> Any:
    try:
        return arrow.array(values)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, arrow.ArrowNotImplementedError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"the values of the column {name!r} have no common type ({reason})",
            file=dataset.url,
            kind="other-columns",
            fix="Give them one type with 'map', or leave the column out.",
        ) from None
