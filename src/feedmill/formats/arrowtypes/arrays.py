"""Arrays of Arrow: select rows where Arrow has no kernel for it, find the rows of lists, check what was read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.formats.offsets import Int64s

Bools = npt.NDArray[np.bool_]


def chunks_of(column: Any) -> list[Any]:
    """Return the arrays of a chunked array; of an array, itself."""
    chunks: list[Any] | None = getattr(column, "chunks", None)
    return [column] if chunks is None else chunks


def take(column: Any, rows: Int64s) -> Any:
    """Return rows of an array or chunked array in the requested order, as one of them. `rows`: int64[n].

    Arrow cannot select views of text and bytes, and run-end-encoded values, wherever they stand: their rows are joined
    from slices.
    """
    import pyarrow

    if len(rows) == 1 or (len(rows) and (np.diff(rows) == 1).all()):
        return column.slice(int(rows[0]), len(rows))
    try:
        return column.take(pyarrow.array(rows, pyarrow.int64()))
    except pyarrow.ArrowNotImplementedError:
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else []
        slices = [part for run in runs for part in chunks_of(column.slice(int(run[0]), len(run))) if len(part)]
    try:
        return pyarrow.concat_arrays(slices or chunks_of(column.slice(0, 0))[:1])
    except (pyarrow.ArrowNotImplementedError, pyarrow.ArrowInvalid):
        return pyarrow.chunked_array(slices, column.type)


def items_at(array: Any, rows: Int64s) -> list[Any] | None:
    """Return rows of an array of bytes or text by their offsets, int64[n]; None if it has nulls or another type.

    Raises `ValueError` for text that is not UTF-8.
    """
    layout = _layouts().get(array.type.id)
    if layout is None or array.null_count:
        return None
    kind, made = layout
    _, offsets, data = array.buffers()
    if data is None:  # all of them are empty
        return None
    ends = np.frombuffer(offsets, kind, len(array) + 1, array.offset * kind.itemsize)
    view = memoryview(data)
    return [made(view[begin:end]) for begin, end in zip(ends[rows].tolist(), ends[rows + 1].tolist(), strict=True)]


@cache
def _layouts() -> dict[int, tuple[np.dtype[Any], Callable[[memoryview], Any]]]:
    """Return for each type of bytes and text, by its number, that of its offsets, and what makes a value of a view."""
    from pyarrow import lib

    short, long, text = np.dtype(np.int32), np.dtype(np.int64), partial(str, encoding="utf-8")
    return {
        lib.Type_BINARY: (short, bytes),
        lib.Type_LARGE_BINARY: (long, bytes),
        lib.Type_STRING: (short, text),
        lib.Type_LARGE_STRING: (long, text),
    }


def take_rows(table: Any, rows: Int64s) -> Any:
    """Return rows of a table or record batch in the requested order, as `pyarrow.Table`."""
    import pyarrow

    return pyarrow.table([take(column, rows) for column in table.columns], schema=table.schema)


def present_in(array: Any) -> Bools:
    """Return which values are not null, bool[n]."""
    if not array.null_count:
        return np.ones(len(array), bool)
    found: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def is_list(kind: Any) -> bool:
    """Return whether a type is a list of any kind."""
    from pyarrow import types

    lists = types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view
    return any(of(kind) for of in lists)


def bounds(array: Any) -> tuple[Int64s, Int64s]:
    """Return where each row of a list or map begins and ends in `items_of`, int64[n] each. Null rows are empty."""
    from pyarrow import types

    kind = array.type
    if types.is_fixed_size_list(kind):
        begins = (array.offset + np.arange(len(array), dtype=np.int64)) * kind.list_size
        ends = begins + kind.list_size
    elif types.is_list_view(kind) or types.is_large_list_view(kind):
        begins = np.asarray(array.offsets).astype(np.int64)
        ends = begins + np.asarray(array.sizes)
    elif len(array):
        offsets = np.asarray(array.offsets).astype(np.int64)
        begins, ends = offsets[:-1], offsets[1:]
    else:
        begins = ends = np.zeros(0, np.int64)
    present = present_in(array)
    return np.where(present, begins, 0), np.where(present, ends, 0)


def list_lengths(column: Any) -> Int64s:
    """Return the length of each row of lists, int64[n]; 0 for null."""
    both = [bounds(array) for array in chunks_of(column)]
    return np.concatenate([np.zeros(0, np.int64), *(ends - begins for begins, ends in both)])


def within(items: Any, begins: Int64s, ends: Int64s) -> tuple[Any, Int64s]:
    """Return the items of all rows, one after another, and int64[n + 1], where each row begins.

    Items of no row are left out: they may be anything. Views of lists may share items and have any order.
    """
    lengths = ends - begins
    at = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    used = np.flatnonzero(lengths)
    if not len(used):
        return items.slice(0, 0), at
    first, total = int(begins[used[0]]), int(at[-1])
    if (begins[used] == first + at[:-1][used]).all():
        return items.slice(first, total), at
    return take(items, np.repeat(begins - at[:-1], lengths) + np.arange(total)), at


def filled(column: Any) -> npt.NDArray[Any]:
    """Return a numeric or boolean array or chunked array as numpy array [n] of its type; 0 in place of nulls."""
    from pyarrow import types

    none = False if types.is_boolean(column.type) else 0
    numbers: npt.NDArray[Any] = np.asarray(column.fill_null(none) if column.null_count else column)
    return numbers


def validate(table: Any) -> None:
    """Check offsets, lengths and text: corrupt ones could read anywhere in memory.

    A time of day beyond 24 hours, a date with a part of a day, or a decimal with more digits than its type has, is not
    damage: what reads the value names it.

    Raises:
        pyarrow.ArrowInvalid: the data is damaged.
    """
    import pyarrow

    try:
        table.validate(full=True)
    except pyarrow.ArrowInvalid:
        for array in (array for column in table.columns for array in chunks_of(column)):
            try:
                array.validate(full=True)
            except pyarrow.ArrowInvalid:
                kind = _stored(pyarrow, array.type)
                if kind == array.type:
                    raise
                array.view(kind).validate(full=True)


def _stored(pyarrow: Any, kind: Any) -> Any:
    """Return a type of the same layout, in which dates, times and decimals are plain numbers or bytes."""
    types = pyarrow.types
    if types.is_date64(kind) or types.is_time64(kind):
        return pyarrow.int64()
    if types.is_time32(kind):
        return pyarrow.int32()
    if types.is_decimal(kind):
        return pyarrow.binary(kind.byte_width)
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_stored(pyarrow, field.type)) for field in kind])
    if types.is_map(kind):
        key, item = (f.with_type(_stored(pyarrow, f.type)) for f in (kind.key_field, kind.item_field))
        return pyarrow.map_(key, item)
    if types.is_dictionary(kind):
        return pyarrow.dictionary(kind.index_type, _stored(pyarrow, kind.value_type))
    if types.is_union(kind):
        fields = [f.with_type(_stored(pyarrow, f.type)) for f in map(kind.field, range(kind.num_fields))]
        return pyarrow.union(fields, mode=kind.mode, type_codes=kind.type_codes)
    if not is_list(kind):
        return kind
    item = kind.value_field.with_type(_stored(pyarrow, kind.value_type))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(item, kind.list_size)
    names = {"is_list": "list_", "is_large_list": "large_list", "is_list_view": "list_view"}
    found = next((make for name, make in names.items() if getattr(types, name)(kind)), "large_list_view")
    return getattr(pyarrow, found)(item)
