"""Readers of values made of others: lists, structures, maps, unions, dictionaries, run-end-encoded values, files.

Each reads only those inner values that a row has: what lies under a null, or in no row, may be anything.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError
from feedmill.formats.arrowtypes.arrays import Bools, bounds, chunks_of, filled, present_in, take, within
from feedmill.formats.arrowtypes.place import Direct, Place, Read, type_of
from feedmill.formats.columns import load_pyarrow
from feedmill.formats.offsets import Int64s
from feedmill.formats.rows import ANY, INSIDE, File, Lazy

_LISTS = "List", "LargeList", "Sequence"
_SUFFIXES = {"Video": "mp4"}
"""Feature of `datasets` -> suffix that decodes its files, if not that of their first bytes."""


def read_all(read: Read, column: Any) -> list[Any]:
    """Return the values of an array or chunked array."""
    chunks = chunks_of(column)
    return read(chunks[0]) if len(chunks) == 1 else [value for array in chunks for value in read(array)]


def lists(place: Place) -> Read:
    """Lists. Those of a column are arrays if their items are numbers and none is null."""
    inner = place.of(place.kind.value_field, "[]", _item_feature(place.feature))
    if place.top and not place.context.plain and is_number(place.kind.value_type):
        return partial(_arrays, inner)

    def read(array: Any) -> list[Any]:
        items, at = within(array.values, *bounds(array))
        values = read_all(inner, items)
        rows = zip(at[:-1].tolist(), at[1:].tolist(), present_in(array).tolist(), strict=True)
        return [values[begin:end] if there else None for begin, end, there in rows]

    return Direct(read) if isinstance(inner, Direct) else read


def is_number(kind: Any) -> bool:
    """Return whether lists of a type are arrays: integers, floats, booleans."""
    types = load_pyarrow().types
    if getattr(kind, "extension_name", "") == "arrow.bool8":
        return True
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def numbers_of(items: Any) -> npt.NDArray[Any]:
    """Return an array or chunked array of numbers as numpy array [n]; 0 in place of nulls."""
    if getattr(items.type, "extension_name", "") == "arrow.bool8":
        parts = [filled(array.storage) != 0 for array in chunks_of(items)]
        return np.concatenate([np.zeros(0, bool), *parts])
    return filled(items)


def _arrays(inner: Read, array: Any) -> list[Any]:
    """Return lists of numbers as arrays. One that contains nulls is a Python list.

    The value of a row does not depend on the other rows, which are those that happen to be read with it.
    """
    items, at = within(array.values, *bounds(array))
    numbers = numbers_of(items)
    begins, ends = at[:-1], at[1:]
    rows = zip(begins.tolist(), ends.tolist(), present_in(array).tolist(), strict=True)
    out: list[Any] = [numbers[begin:end].copy() if there else None for begin, end, there in rows]
    if items.null_count:
        nulls = np.flatnonzero(np.concatenate([~present_in(chunk) for chunk in chunks_of(items)]))
        for row in np.unique(np.searchsorted(ends, nulls, side="right")).tolist():
            out[row] = read_all(inner, items.slice(int(begins[row]), int(ends[row] - begins[row])))
    return out


def _item_feature(feature: Any) -> Any:
    """Return the feature of a list's items."""
    if isinstance(feature, list):
        return feature[0] if feature else None
    return feature.get("feature") if type_of(feature) in _LISTS else None


def structure(place: Place) -> Read:
    """Dicts; files, if they are stored as ``{bytes, path}``."""
    kind = place.kind
    fields = list(kind)
    twice = [name for name, count in Counter(field.name for field in fields).items() if count > 1]
    if twice:
        place.refuse(f"has two fields named {twice[0]!r}", "Rename one of them.", "duplicate-part")
    if is_file(kind) and not place.context.plain:
        return files(place)
    features = _field_features(place.feature)
    reads = [(f.name, place.of(f, f".{f.name}", features.get(f.name))) for f in fields]

    def read(array: Any) -> list[Any]:
        present = present_in(array)
        inner = [array.field(number) for number in range(len(reads))]
        rows = np.flatnonzero(present)
        if len(rows) < len(array):
            inner = [take(column, rows) for column in inner]
        values = [read_all(one, column) for (_, one), column in zip(reads, inner, strict=True)]
        names = [name for name, _ in reads]
        found = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)] if names else []
        return scattered(found or [{} for _ in rows], present)

    return Direct(read) if all(isinstance(one, Direct) for _, one in reads) else read


def scattered(values: list[Any], present: Bools) -> list[Any]:
    """Return the values of rows that are not null at their places, with None between them."""
    if len(values) == len(present):
        return values
    rest = iter(values)
    return [next(rest) if there else None for there in present.tolist()]


def _field_features(feature: Any) -> dict[str, Any]:
    """Return the features of a structure's fields; those of a sequence of structures are lists in one structure."""
    if type_of(feature) in _LISTS and isinstance(feature["feature"], dict) and not type_of(feature["feature"]):
        return {name: {"_type": "List", "feature": one} for name, one in feature["feature"].items()}
    return feature if isinstance(feature, dict) and not type_of(feature) else {}


def is_bytes(kind: Any) -> bool:
    """Return whether a type is bytes of any length."""
    types = load_pyarrow().types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def is_text(kind: Any) -> bool:
    """Return whether a type is text."""
    types = load_pyarrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_file(kind: Any) -> bool:
    """Return whether a type holds files as `datasets` stores them: ``{bytes, path}``."""
    if not load_pyarrow().types.is_struct(kind) or {field.name for field in kind} != {"bytes", "path"}:
        return False
    data, path = kind.field("bytes").type, kind.field("path").type
    null = load_pyarrow().types.is_null
    return kind.num_fields == 2 and (is_bytes(data) or null(data)) and (is_text(path) or null(path))


def files(place: Place) -> Read:
    """The bytes of files, which samples decode. Files given only by path are not read: they may be anywhere."""
    suffix = _SUFFIXES.get(type_of(place.feature), ANY)
    place.context.suffixes[place.column] = suffix if place.top else INSIDE
    made = bytes if place.top else partial(File, suffix=suffix)
    if is_bytes(place.kind):
        return lambda array: [None if data is None else made(data) for data in array.to_pylist()]

    def read(array: Any) -> list[Any]:
        return [
            None if one is None else _only_named(one["path"]) if one["bytes"] is None else made(one["bytes"])
            for one in array.to_pylist()
        ]

    return read


def _only_named(path: str | None) -> Lazy | None:
    return None if path is None else Lazy(partial(_refuse_path, path), partial(_refuse_path, path))


def _refuse_path(path: str) -> Any:
    raise DataError(
        f"the dataset does not contain the bytes of this file, only its path {path!r}",
        kind="unreadable-value",
        fix="Save the dataset again with embedded files (embed_external_files=True).",
    )


def mapping(place: Place) -> Read:
    """Lists of pairs: keys may repeat, and keep their order."""
    kind = place.kind
    keys, items = place.of(kind.key_field, "{key}"), place.of(kind.item_field, "{}")

    def read(array: Any) -> list[Any]:
        begins, ends = bounds(array)
        found = [within(column, begins, ends) for column in (array.keys, array.items)]
        pairs = list(zip(read_all(keys, found[0][0]), read_all(items, found[1][0]), strict=True))
        at = found[0][1]
        rows = zip(at[:-1].tolist(), at[1:].tolist(), present_in(array).tolist(), strict=True)
        return [pairs[begin:end] if there else None for begin, end, there in rows]

    return Direct(read) if isinstance(keys, Direct) and isinstance(items, Direct) else read


def union(place: Place) -> Read:
    """The value of whichever type a row has."""
    kind = place.kind
    reads = [place.of(kind.field(number), f"<{kind.field(number).name}>") for number in range(kind.num_fields)]

    def read(array: Any) -> list[Any]:
        rows_of = slice(array.offset, array.offset + len(array))  # pyarrow's type_codes ignore where a slice begins
        buffers = array.buffers()
        codes = np.frombuffer(buffers[1], np.int8)[rows_of] if len(array) else np.zeros(0, np.int8)
        places: npt.NDArray[Any] = np.arange(len(array))
        if array.type.mode == "dense" and len(array):
            places = np.frombuffer(buffers[2], np.int32)[rows_of]
        out: list[Any] = [None] * len(array)
        for number, (code, one) in enumerate(zip(array.type.type_codes, reads, strict=True)):
            rows = np.flatnonzero(codes == code)
            values = read_all(one, take(array.field(number), places[rows].astype(np.int64)))
            for row, value in zip(rows.tolist(), values, strict=True):
                out[row] = value
        return out

    return read


def dictionary(place: Place) -> Read:
    """The value that a number stands for."""
    inner = place.of(place.kind.value_type, "", place.feature)

    def read(array: Any) -> list[Any]:
        present = present_in(array.indices)
        numbers = filled(array.indices).astype(np.int64)[present]
        return scattered(_shared(inner, array.dictionary, numbers), present)

    return read


def run_ends(place: Place) -> Read:
    """The value of a run."""
    inner = place.of(place.kind.field(1), "", place.feature)

    def read(array: Any) -> list[Any]:
        ends = np.asarray(array.run_ends).astype(np.int64)
        rows = np.searchsorted(ends, array.offset + np.arange(len(array)), side="right")
        return _shared(inner, array.values, rows)

    return read


def _shared(inner: Read, items: Any, numbers: Int64s) -> list[Any]:
    """Return the values of items by number. Rows share those that cannot change, and have their own of others."""
    used, at = np.unique(numbers, return_inverse=True)
    values = read_all(inner, take(items, used))
    if any(isinstance(value, dict | list | np.ndarray) for value in values):
        return read_all(inner, take(items, numbers))
    return [values[number] for number in at.tolist()]


def media(place: Place) -> Read | None:
    """Files of `datasets`; None if the storage is another, as after a change of the type."""
    fits = is_file(place.storage) or is_bytes(place.storage)
    return files(place) if fits and not place.context.plain else None
