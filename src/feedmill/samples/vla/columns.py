"""Columns of a batch: stacked where samples are alike, padded where they are sequences of unlike lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PADDING: Mapping[str, int] = {"labels": -100}
"""What fills the ends of short sequences, 0 for all other fields: a label of -100 is ignored by the loss."""


def columns(samples: Sequence[Mapping[str, Any]], padding: Mapping[str, int] = PADDING) -> dict[str, Any]:
    """A batch of samples: arrays of one shape ``[...]`` become ``[B, ...]``, lists of numbers arrays, all else lists.

    Arrays of one dtype and number of dimensions are padded at their ends; a field that a sample lacks is None there.
    """
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: column([sample.get(name) for sample in samples], padding.get(name, 0)) for name in names}


def column(values: list[Any], fill: int = 0) -> Any:
    """One field of all samples."""
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
    shape = tuple(max(sizes) for sizes in zip(*(value.shape for value in values), strict=True))
    out = np.full((len(values), *shape), fill, first.dtype)
    for row, value in zip(out, values, strict=True):
        row[tuple(slice(0, size) for size in value.shape)] = value
    return out
