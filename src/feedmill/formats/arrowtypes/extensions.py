"""Readers of extension types: Arrow's canonical ones, and those of `datasets` from Hugging Face."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import numpy as np

from feedmill.formats.arrowtypes import nested, scalars
from feedmill.formats.arrowtypes.arrays import bounds, chunks_of, is_list, present_in, take, within
from feedmill.formats.arrowtypes.place import Place, Read, Unreadable, storage_of
from feedmill.formats.columns import load_pyarrow

_SHOWN = 40
"""Number of characters of a text that an error shows."""


def stored(place: Place) -> Read:
    """The values of the storage."""
    inner = place.of(place.storage, "", place.feature)
    return lambda array: inner(storage_of(array))


def by_type(place: Place) -> None:
    """Nothing of its own: the values are those of the type, whose inner types may have features."""


def boolean(place: Place) -> Read:  # noqa: ARG001 - a maker of readers
    """Booleans, which are stored as bytes."""
    return lambda array: [None if one is None else one != 0 for one in storage_of(array).to_pylist()]


def decoded_json(place: Place) -> Read | None:
    """Value of a text of JSON; None if the type is no text, or its feature says that it is not to be decoded."""
    kind = place.storage
    plain = kind.value_type if load_pyarrow().types.is_dictionary(kind) else kind
    if not nested.is_text(plain) or (place.feature or {}).get("decode") is False:
        return None
    inner = place.of(kind)

    def read(array: Any) -> list[Any]:
        return [None if text is None else _parsed(place, text) for text in inner(storage_of(array))]

    return read


def _parsed(place: Place, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(text)  # takes NaN, and what else Python's module writes
    except (ValueError, RecursionError):
        raise Unreadable(place.path, f"text that is not JSON ({text[:_SHOWN]!r})") from None


def fixed_tensor(place: Place) -> Read:
    """Arrays of one shape."""
    kind = place.kind
    order = kind.permutation or list(range(len(kind.shape)))
    inner = place.of(kind.value_type, "[]")

    def read(array: Any) -> list[Any]:
        storage = storage_of(array)
        shapes = [list(kind.shape) if there else None for there in present_in(storage).tolist()]
        return _tensors(place, inner, storage, shapes, order)

    return read


def variable_tensor(place: Place) -> Read:
    """Arrays, each of its own shape."""
    kind = place.storage
    rank = kind.field("shape").type.list_size
    match = re.search(r"permutation=\[([\d,]*)\]", str(place.kind))  # pyarrow has no other access to it
    order = [int(one) for one in match[1].split(",")] if match else list(range(rank))
    inner = place.of(kind.field("data").type.value_field, "[]")

    def read(array: Any) -> list[Any]:
        storage = storage_of(array)
        present = present_in(storage)
        rows = np.flatnonzero(present)
        data, shapes = (take(storage.field(name), rows) for name in ("data", "shape"))
        sizes = iter(shape for chunk in chunks_of(shapes) for shape in chunk.to_pylist())
        values = [
            value
            for chunk in chunks_of(data)
            for value in _tensors(place, inner, chunk, [next(sizes) for _ in range(len(chunk))], order)
        ]
        return nested.scattered(values, present)

    return read


def _tensors(
    place: Place, inner: Read, storage: Any, shapes: Sequence[list[int] | None], order: Sequence[int]
) -> list[Any]:
    """Return rows of lists as arrays.

    Args:
        shapes: the stored shape of each row; None for null.
        order: the stored axis of each axis of the result.
    """
    items, at = within(storage.values, *bounds(storage))
    number = nested.is_number(items.type)
    flat = nested.numbers_of(items) if number else None
    holes = np.concatenate([np.zeros(0, bool), *(~present_in(chunk) for chunk in chunks_of(items))])
    out: list[Any] = []
    for begin, end, shape in zip(at[:-1].tolist(), at[1:].tolist(), shapes, strict=True):
        if shape is None:
            out.append(None)
            continue
        if None in shape or math.prod(shape) != end - begin:
            raise Unreadable(place.path, f"{end - begin} values for an array of the shape {shape}")
        if flat is not None and not holes[begin:end].any():
            value = flat[begin:end].reshape(shape).transpose(order).copy()
            out.append(value.tolist() if place.context.plain else value)
        else:  # as lists of numbers that contain nulls
            values = np.empty(end - begin, object)
            values[:] = nested.read_all(inner, items.slice(begin, end - begin))
            out.append(values.reshape(shape).transpose(order).tolist())
    return out


def array_of_lists(place: Place) -> Read | None:
    """Arrays that `datasets` stores as lists in lists (``Array2D`` and others); None if the storage is another."""
    shape = _shape_of(place)
    kind, rank = place.storage, 0
    while is_list(kind):
        kind, rank = kind.value_type, rank + 1
    if not nested.is_number(kind) or len(shape) != rank:
        return None
    lists = place.of(place.storage, "[]")

    def read(array: Any) -> list[Any]:
        storage = storage_of(array)
        present = present_in(storage)
        rows = take(storage, np.flatnonzero(present))
        return nested.scattered(
            [one for chunk in chunks_of(rows) for one in _of_lists(place, lists, chunk, shape)], present
        )

    return read


def _of_lists(place: Place, lists: Read, rows: Any, shape: Sequence[int | None]) -> list[Any]:
    items, at = within(rows.values, *bounds(rows))
    counts = np.diff(at)
    if shape[0] is not None and (counts != shape[0]).any():
        wrong = int(counts[counts != shape[0]][0])
        raise Unreadable(place.path, f"an array of {wrong} rows instead of the shape {list(shape)}")
    for size in shape[1:]:
        if items.null_count:
            return _with_nulls(lists, rows)
        pieces = [within(chunk.values, *bounds(chunk)) for chunk in chunks_of(items)]
        lengths = np.concatenate([np.zeros(0, np.int64), *(np.diff(ends) for _, ends in pieces)])
        if (lengths != size).any():
            raise Unreadable(place.path, f"an array that has not the shape {list(shape)}")
        parts = [part for found, _ in pieces for part in chunks_of(found)]
        items = load_pyarrow().chunked_array(parts, parts[0].type) if len(parts) != 1 else parts[0]
    if items.null_count:
        return _with_nulls(lists, rows)
    flat = nested.numbers_of(items).reshape(-1, *shape[1:])
    values = [flat[begin:end].copy() for begin, end in zip(at[:-1].tolist(), at[1:].tolist(), strict=True)]
    return [value.tolist() for value in values] if place.context.plain else values


def _with_nulls(lists: Read, rows: Any) -> list[Any]:
    """Return arrays that contain nulls as lists, as lists of numbers that contain nulls are."""
    return lists(rows)


def _shape_of(place: Place) -> list[int | None]:
    """Return the shape of an array type of `datasets`, in which the first number may be None: any."""
    feature = place.feature if isinstance(place.feature, dict) else {}
    try:
        shape = feature.get("shape") or json.loads(place.parameters)[0]
        if all(size is None or type(size) is int for size in shape) and None not in shape[1:]:
            return list(shape)
    except (ValueError, TypeError, IndexError):
        pass
    return place.refuse("has an array type without a valid shape", "Write it again with 'datasets'.")


def with_offset(place: Place) -> Read | None:
    """Dates with time in the offset from UTC that each has; None if the storage is another."""
    kind = place.storage
    if not load_pyarrow().types.is_struct(kind) or {f.name for f in kind} != {"timestamp", "offset_minutes"}:
        return None
    times = place.of(kind.field("timestamp"), ".timestamp")
    offsets = place.of(kind.field("offset_minutes"), ".offset_minutes")

    def read(array: Any) -> list[Any]:
        storage = storage_of(array)
        present = present_in(storage)
        rows = np.flatnonzero(present)
        found = [
            nested.read_all(one, take(storage.field(name), rows))
            for one, name in ((times, "timestamp"), (offsets, "offset_minutes"))
        ]
        return nested.scattered([_moved(place, *both) for both in zip(*found, strict=True)], present)

    return read


def _moved(place: Place, value: Any, minutes: int | None) -> Any:
    if value is None or minutes is None:
        return value
    fine = value[26:29] if isinstance(value, str) else ""  # nanoseconds of a text
    at = datetime.fromisoformat(value[:26] + "+00:00") if isinstance(value, str) else value
    try:
        moved = at.astimezone(timezone(timedelta(minutes=minutes)))
    except (ValueError, OverflowError):
        raise Unreadable(place.path, f"a time with an offset of {minutes} minutes") from None
    return scalars.datetime_text(moved, int(fine)) if fine else moved
