"""Offsets of documents in rows: ``cu_seqlens`` and ``boundaries`` of several rows as one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
ENDS = ("cu_seqlens", "boundaries")
"""Fields of a row with the offsets of its documents and its end: [0, ..., width]."""


def ends_together(values: Sequence[Any]) -> npt.NDArray[Any] | None:
    """Return ``cu_seqlens`` or ``boundaries`` of several rows as one array [n, k]; None for other values.

    Rows with fewer entries repeat the last one, which adds empty sequences.
    """
    if not values or any(not isinstance(row, np.ndarray) or row.ndim != 1 or not len(row) for row in values):
        return None
    if any(row.dtype.kind not in "iu" for row in values):
        return None
    out = np.empty((len(values), max(map(len, values))), values[0].dtype)
    for line, row in zip(out, values, strict=True):
        line[: len(row)], line[len(row) :] = row, row[-1]
    return out


def until(ends: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """Return offsets [n, k] of rows that all end at `width`, without empty sequences before it.

    Longer rows are truncated, and the rest of a shorter row counts as one more sequence.

    >>> until(np.array([[0, 3, 9], [0, 5, 5]]), 7).tolist()
    [[0, 3, 7], [0, 5, 7]]
    """
    longer = np.concatenate((np.minimum(ends, width), np.full((len(ends), 1), width, ends.dtype)), axis=1)
    kept = np.ones(longer.shape, np.bool_)
    kept[:, 1:] = longer[:, 1:] > longer[:, :-1]
    place = np.cumsum(kept, axis=1) - 1
    out = np.full((len(ends), int(place.max(initial=0)) + 1), width, ends.dtype)
    row, column = np.nonzero(kept)
    out[row, place[row, column]] = longer[row, column]
    return out


def begins_of(ends: npt.NDArray[Any], real: Int64s, width: int) -> npt.NDArray[np.bool_]:
    """Return where documents begin, bool[n, width].

    Args:
        ends: integers[n, k], offsets of the documents of each row.
        real: int64[n], where the padding of each row begins.
        width: tokens of each row.
    """
    out = np.zeros((len(ends), width), np.bool_)
    row, column = np.nonzero(ends < np.asarray(real)[:, None])
    out[row, ends[row, column]] = True
    out[:, 0] = True
    return out
