"""Collate samples into columns of a batch: stack arrays of one shape, pad arrays of different lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

PADDING: Mapping[str, int] = {"labels": -100}
"""Field -> padding value of short sequences; 0 for other fields. The loss ignores a label of -100."""


def columns(samples: Sequence[Mapping[str, Any]], padding: Mapping[str, int] = PADDING) -> dict[str, Any]:
    """Return the columns of a batch.

    Arrays of one shape ``[...]`` become ``[B, ...]``. Arrays that differ in shape, but not in dtype and number of
    dimensions, are padded at their ends. Integers and booleans become arrays, all other values lists. If a sample lacks
    a field, its value is None.
    """
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: column([sample.get(name) for sample in samples], padding.get(name, 0)) for name in names}


def column(values: list[Any], fill: int = 0) -> Any:
    """Return one field of all samples as a column."""
    first = values[0]
    if isinstance(first, dict) and all(isinstance(value, dict) and set(value) == set(first) for value in values):
        return {name: column([value[name] for value in values], fill) for name in first}
    if type(first) in (int, bool) and all(type(value) is type(first) for value in values):
        return np.asarray(values, np.int64 if type(first) is int else np.bool_)
    if not all(isinstance(value, np.ndarray) for value in values):
        return values
    if any(value.dtype != first.dtype or value.ndim != first.ndim for value in values) or first.dtype == object:
        return values
    if all(value.shape == first.shape for value in values):
        return np.stack(values)
    return filled(values, partial(np.full, fill_value=fill, dtype=first.dtype))


def filled(values: Sequence[Any], new: Callable[[tuple[int, ...]], Any]) -> Any:
    """Return arrays or tensors of several shapes as one, each at the beginning of its row.

    Args:
        values: of the same number of axes.
        new: returns an array of a shape, with the values of the padding.
    """
    shape = tuple(max(sizes) for sizes in zip(*(value.shape for value in values), strict=True))
    out = new((len(values), *shape))
    for row, value in zip(out, values, strict=True):
        row[tuple(slice(0, size) for size in value.shape)] = value
    return out
