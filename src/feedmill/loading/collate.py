"""Collate samples into one batch: a dict of columns.

A `Loader` uses `collate` unless you pass your own function. Arrays of one shape and dtype are stacked, numbers become
an array, parts that are dicts (``.npz``, ``.json``) become a dict of columns, and other values stay a list.
``cu_seqlens`` and ``boundaries`` become one array; rows with fewer entries repeat their last one. Samples may have
different fields (a blend of pages and plain documents). The batch then has all of their fields, with None where a
sample has no such field. Fields that a sample type names as ``ragged``, such as boxes, are a list with one value for
each sample even if their shapes agree, so that batches always have one form.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feedmill.errors import MissingExtra
from feedmill.formats.batches import Parts
from feedmill.formats.sample import Sample
from feedmill.jobs.buffers import empty
from feedmill.kernels.native import address_of
from feedmill.samples.rows import SampleRow

_PLAIN = frozenset([str, bytes, int, float, bool, type(None)])
_SHARED = frozenset(map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8")))
"""Types in native byte order that torch takes as they are."""
_NUMBERS = (bool, int, float, complex, np.number, np.bool_)


def collate(samples: Sequence[Any]) -> Any:
    """Return a batch from a list of samples, in their order.

    `Sample`s, mappings and dataclasses become a dict from field name to column (a `Sample`'s key is the field
    ``__key__``). Tuples become a tuple of columns, and other values a single column. Rows of samples (`SampleRow`) stay
    a list.

    >>> collate([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}])
    {'x': array([1, 2]), 'name': ['a', 'b']}
    """
    if samples and all(type(sample) is Sample for sample in samples):
        return _parts(samples, lambda _, values: column(values))
    if samples and all(isinstance(sample, Sample) and hasattr(sample, "film") for sample in samples):  # rows
        return _parts(samples, _named)
    if samples and all(type(sample) is SampleRow for sample in samples):
        return list(samples)
    records = [record for record in map(_fields, samples) if record is not None]
    if records and len(records) == len(samples):
        names = dict.fromkeys(name for record in records for name in record)
        columns = {name: [record.get(name) for record in records] for name in names}
        from feedmill.formats.tokens.window import Window

        if all(isinstance(sample, Window) for sample in samples):
            return {
                name: _named(name, values) if (rows := _rows(values)) is None else rows
                for name, values in columns.items()
            }
        ragged = frozenset().union(*(getattr(kind, "ragged", ()) for kind in set(map(type, samples))))
        return {name: values if name in ragged else _named(name, values) for name, values in columns.items()}
    if samples and all(isinstance(sample, tuple) and len(sample) == len(samples[0]) for sample in samples):
        return tuple(column(list(values)) for values in zip(*samples, strict=True))
    return column(list(samples))


def _parts(samples: Sequence[Sample], made: Callable[[str, list[Any]], Any]) -> dict[str, Any]:
    names = dict.fromkeys(name for sample in samples for name in sample)
    columns: dict[str, Any] = {"__key__": [sample.key for sample in samples]}
    for name in names:
        together = samples[0].decoded_together(name, samples)
        columns[name] = made(name, [sample.get(name) for sample in samples]) if together is None else together
    return columns


def collate_parts(parts: Parts) -> dict[str, Any]:
    """Return the batch that `collate` makes of the same samples."""
    columns: dict[str, Any] = {"__key__": parts.keys if type(parts.keys) is list else list(parts.keys)}
    for name, views in parts.views.items():
        columns[name] = _part(parts, name, views)
    return columns


def _part(parts: Parts, name: str, views: Sequence[memoryview | bytes]) -> Any:
    decode = parts.decode
    if decode is None:
        return views if type(views) is list else list(views)
    together, each = getattr(decode, "together", None), getattr(decode, "each", None)
    whole = None if together is None else together(name, views)
    if whole is not None:
        return whole
    values = [decode(name, bytes(view)) for view in views] if each is None else each(name, views)
    _set_origins(parts, name, values)
    return column(values)


def _set_origins(parts: Parts, name: str, values: list[Any]) -> None:
    """Set the sample of handles that decode later, for their errors; `Sample` does the same."""
    for number, value in enumerate(values):
        set_origin = getattr(value, "came_from", None)
        if set_origin is not None:
            source = parts.source(number)
            set_origin(source.where, source.offset, f"{source.key}.{name}")


def _named(name: str, values: list[Any]) -> Any:
    from feedmill.samples.targets import ENDS, ends_together

    if name in ENDS and all(isinstance(value, np.ndarray) for value in values):
        together = ends_together(values)
        if together is not None:
            return together
    return column(values)


def column(values: list[Any]) -> Any:
    """Return one field of all samples: an array [n, ...] for numbers or arrays of equal shape, else the list.

    Python ints become int64 (or stay a list if one does not fit), floats float64, bools bool. Dicts, of which some may
    be None, become a dict of columns, with None where one lacks a key.
    """
    first = values[0] if values else None
    if first is None:
        first = next((value for value in values if value is not None), None)
    if type(first) is dict:
        if not all(value is None or type(value) is dict for value in values):
            return values
        names = dict.fromkeys(name for value in values if value is not None for name in value)
        return {name: column([None if value is None else value.get(name) for value in values]) for name in names}
    if isinstance(first, np.ndarray):
        alike = all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return _stacked(values) if alike and first.dtype != object else values
    if isinstance(first, _NUMBERS):
        return _numbers(values)
    torch = sys.modules.get("torch")  # values can be tensors only if torch was imported
    if torch is not None and isinstance(first, torch.Tensor):
        alike = all(isinstance(v, torch.Tensor) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return torch.stack(values) if alike else values
    return values


def _stacked(values: list[Any]) -> Any:
    first = values[0]
    out = empty((len(values), *first.shape), first.dtype)
    return np.stack(values, out=out)


def _rows(values: list[Any]) -> Any:
    """Return `column(values)`, or without a copy the array whose rows the values are, if they are all of its rows."""
    base = getattr(values[0], "base", None)
    if not isinstance(base, np.ndarray) or base.shape != (len(values), *values[0].shape) or not base.flags.c_contiguous:
        return column(values)
    first, step = address_of(base), base.strides[0]
    for i, value in enumerate(values):
        if value.base is not base or address_of(value) != first + i * step:
            return column(values)
    return base


def to_torch(batch: Any) -> Any:
    """Return the batch with its numpy arrays as torch tensors, which share their memory if torch supports it.

    Dicts, tuples (including named tuples) and lists are converted recursively. Arrays of text or objects, and all other
    values, are unchanged.

    Raises:
        MissingExtra: torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtra('output="torch" needs torch', extra="torch") from None

    return _converted(batch, torch)


def _converted(value: Any, torch: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype in _SHARED and value.flags.forc and value.flags.writeable:  # most arrays of most batches
            return torch.from_numpy(value)
        # bfloat16 and similar types, which torch does not accept as NumPy arrays; asking for the name takes longer
        # than the rest of this function, so numpy's own types are not asked.
        if value.dtype.isbuiltin != 1:
            from feedmill.formats.pth.tensors import SPECIAL

            if value.dtype.name in SPECIAL:
                integers = value.view(f"u{value.dtype.itemsize}").copy()
                return torch.from_numpy(integers).view(getattr(torch, value.dtype.name))
        if value.dtype.kind not in "biufc":
            return value
        native = value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
        # torch has no read-only tensors and no negative strides, so such arrays must be copied.
        shareable = native.flags.writeable and all(stride >= 0 for stride in native.strides)
        return torch.from_numpy(native if shareable else native.copy())
    if type(value) is dict:
        return {name: _converted(item, torch) for name, item in value.items()}
    if type(value) in (list, tuple):
        if _PLAIN.issuperset(map(type, value)):
            return value
        return type(value)(_converted(item, torch) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_converted(item, torch) for item in value))
    return value


def divided(columns: Mapping[str, Any], count: int, *, tensors: bool) -> list[dict[str, Any]] | None:
    """Return columns of `count` batches of equal size as the batches, which share the memory of the columns.

    Args:
        columns: arrays and lists with a value for each sample, in the order of the batches.
        count: number of batches.
        tensors: convert arrays as `to_torch`.

    Returns:
        None if a list has values that are neither numbers nor text, or tensors cannot share the memory of an array.
    """
    as_tensor = _from_numpy() if tensors else None
    parts = []
    for values in columns.values():
        size = len(values) // count
        if isinstance(values, np.ndarray):
            if as_tensor and not (values.dtype in _SHARED and values.flags.c_contiguous and values.flags.writeable):
                return None
            rows = values.reshape(count, size, *values.shape[1:])
            parts.append(list(rows) if as_tensor is None else list(map(as_tensor, rows)))
        elif type(values) is list and _PLAIN.issuperset(map(type, values)):
            parts.append([values[at : at + size] for at in range(0, len(values), size)])
        else:
            return None
    return [dict(zip(columns, found, strict=True)) for found in zip(*parts, strict=True)]


def _from_numpy() -> Callable[[Any], Any]:
    to_torch([])  # raises without torch
    import torch

    convert: Callable[[Any], Any] = torch.from_numpy
    return convert


def _numbers(values: list[Any]) -> Any:
    if not all(isinstance(value, _NUMBERS) for value in values):
        return values
    if all(type(value) is int for value in values):
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            return values
    return np.asarray(values)


def _fields(sample: Any) -> Mapping[str, Any] | None:
    if isinstance(sample, Sample):
        return {"__key__": sample.key, **{name: sample[name] for name in sample}}
    from feedmill.samples.types import named_fields

    return named_fields(sample)
