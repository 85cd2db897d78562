"""Read batches from several datasets as columns, without building sample objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedmill.formats.base import Dataset
from feedmill.formats.batches import Batch, Columns, Shifted, Want
from feedmill.jobs.buffers import empty
from feedmill.planning.nodes.base import Located


def read_batch(sources: Sequence[Dataset], located: Located, want: Want) -> Batch | None:
    """Return the located samples as `Dataset.read_batch` returns them, in the given order.

    Samples of several sources can only be read as columns. Return None if one of the sources has no column reader, or
    if the columns of two sources do not match. Raises as `Dataset.read` does.
    """
    numbers = [0] if len(sources) == 1 else np.flatnonzero(np.bincount(located.source, minlength=1)).tolist() or [0]
    if len(numbers) == 1:
        return sources[numbers[0]].read_batch(located.index, want)
    if want == "fields" or any(sources[number].read_batch(located.index[:0], "columns") is None for number in numbers):
        return None
    order = np.argsort(located.source, kind="stable")
    if isinstance(want, Shifted):
        found = _together(_parts(sources, located, order, want), len(order))
        if found is not None:  # every source has made targets, or none has
            return found
    return _together(_parts(sources, located, order, "columns"), len(order))


def _parts(sources: Sequence[Dataset], located: Located, order: Any, want: Want) -> list[tuple[Any, Columns]]:
    """Return the rows and the columns of each source."""
    parts = []
    for rows in np.split(order, np.flatnonzero(np.diff(located.source[order])) + 1):
        columns = sources[int(located.source[rows[0]])].read_batch(located.index[rows], want)
        parts.append((rows, columns if isinstance(columns, dict) else {}))
    return parts


def _together(parts: Sequence[tuple[Any, Columns]], count: int) -> Columns | None:
    first = parts[0][1]
    if not first or any(list(found) != list(first) for _, found in parts):
        return None
    out: Columns = {}
    for name, values in first.items():
        columns = [(rows, found[name]) for rows, found in parts]
        if isinstance(values, list):
            out[name] = _list(columns, count)
        elif all(column.shape[1:] == values.shape[1:] and column.dtype == values.dtype for _, column in columns):
            out[name] = merged = empty((count, *values.shape[1:]), values.dtype)
            for rows, column in columns:
                merged[rows] = column
        else:
            return None
    return out


def _list(columns: Sequence[tuple[Any, Any]], count: int) -> list[Any]:
    out: list[Any] = [None] * count
    for rows, column in columns:
        for row, value in zip(rows.tolist(), column, strict=True):
            out[row] = value
    return out
