"""Python values of columns whose times may have nanoseconds.

Times of Python have microseconds. What pyarrow returns for finer ones depends on whether pandas is installed. Here a
time that needs nanoseconds is text in ISO 8601, with nine digits; all others are times of Python.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, time, timedelta
from typing import Any


def to_python(column: Any) -> list[Any]:
    """Return the values of an array or chunked array as Python objects; times that need nanoseconds are text.

    Raises:
        ValueError, OverflowError: text is not UTF-8, or a time is before the year 1 or after 9999.
    """
    import pyarrow

    coarse = _retyped(column.type, _microseconds)
    if coarse == column.type:
        return list(column.to_pylist())
    try:
        return list(column.cast(coarse).to_pylist())
    except pyarrow.ArrowInvalid:  # it would lose nanoseconds
        texts = column.cast(_retyped(column.type, lambda _: pyarrow.string())).to_pylist()
        return list(map(_exact, column.cast(coarse, safe=False).to_pylist(), texts))


def to_rows(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a table or record batch, with values as of `to_python`."""
    rows: list[dict[str, Any]] = [{} for _ in range(table.num_rows)]
    for name, column in zip(table.schema.names, table.columns, strict=True):
        for row, value in zip(rows, to_python(column), strict=True):
            row[name] = value
    return rows


def _retyped(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return a type in which each type of nanoseconds is changed."""
    import pyarrow
    from pyarrow import types

    if getattr(kind, "unit", "") == "ns":
        return change(kind)
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_retyped(field.type, change)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(_retyped(kind.key_type, change), _retyped(kind.item_type, change))
    if types.is_dictionary(kind):
        changed = _retyped(kind.value_type, change)
        return kind if changed == kind.value_type else changed
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = kind.value_field.with_type(_retyped(kind.value_type, change))
        if types.is_fixed_size_list(kind):
            return pyarrow.list_(item, kind.list_size)
        return (pyarrow.list_ if types.is_list(kind) else pyarrow.large_list)(item)
    return kind


def _microseconds(kind: Any) -> Any:
    import pyarrow

    if pyarrow.types.is_timestamp(kind):
        return pyarrow.timestamp("us", kind.tz)
    return pyarrow.time64("us") if pyarrow.types.is_time64(kind) else pyarrow.duration("us")


def _exact(value: Any, text: Any) -> Any:
    """Return a value cut to microseconds as it is, or as text if that has nanoseconds."""
    if isinstance(value, dict):
        return {name: _exact(item, text[name]) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_exact, value, text))
    if not isinstance(text, str) or not isinstance(value, datetime | time | timedelta):
        return value
    if isinstance(value, timedelta):  # its text is a number
        seconds, rest = divmod(abs(int(text)), 10**9)
        return f"{'-' * text.startswith('-')}PT{seconds}.{rest:09}S" if rest % 1000 else value
    return value if text.partition(".")[2][6:9] == "000" else text.replace(" ", "T", 1)
