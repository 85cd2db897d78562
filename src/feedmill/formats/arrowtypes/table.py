"""The table of all types: what each type of Arrow, each extension type and each feature of `datasets` becomes.

It is closed: a type that is not in it is refused by its name, and none is read as another. The readers, the page
``docs/formats/parquet.md`` and the tests are made from it.

It has the readers of extension types (Arrow's canonical ones, and those of `datasets` from Hugging Face), and those of
single values: numbers, text, bytes, decimals, dates and times. Times of Python have microseconds. A time that needs
nanoseconds is text in ISO 8601, with nine digits; all others are times of Python. What pyarrow returns for them depends
on whether pandas is installed, so this does not.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta, timezone
from typing import Any

import msgspec
import numpy as np

from feedmill.formats.arrowtypes import nested
from feedmill.formats.arrowtypes.arrays import bounds, chunks_of, is_list, present_in, take, within
from feedmill.formats.arrowtypes.place import Direct, Place, Read, Unreadable, storage_of
from feedmill.formats.columns import load_pyarrow

_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_BYTES = 40
"""Number of stored bytes that an error shows."""


def plain(place: Place) -> Read:  # noqa: ARG001 - a maker of readers
    """Values as pyarrow returns them."""
    return Direct(_listed)


def _listed(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def text(place: Place) -> Read:
    """Text of Python."""

    def cause(array: Any) -> str:
        stored = (scalar.as_buffer() for scalar in array if scalar.is_valid)
        bad = next((data for data in map(bytes, stored) if data.decode(errors="replace").encode() != data), b"")
        return f"text that is not UTF-8 ({bad[:_BYTES]!r})"

    return Direct(_checked(place, _listed, cause))


def timestamp(place: Place) -> Read:
    """Dates with time, aware if the type has a time zone."""
    zone = place.kind.tz

    def cause(array: Any) -> str:
        try:
            load_pyarrow().scalar(0, array.type).as_py()
        except (ValueError, KeyError, OverflowError):
            return f"times of the time zone {zone!r}, which is not known here"
        return f"a time before the year 1 or after 9999 ({_first_bad(array)} since 1970)"

    read = _checked(place, _fine(place.kind, _of_datetime), cause)
    return read if place.kind.unit == "ns" else Direct(read)


def date(place: Place) -> Read:
    """Dates."""

    def read(array: Any) -> list[Any]:
        if load_pyarrow().types.is_date64(array.type) and (_numbers(array) % _DAY["ms"]).any():
            raise ValueError("a part of a day")
        return _listed(array)

    def cause(array: Any) -> str:
        if load_pyarrow().types.is_date64(array.type):
            numbers = _numbers(array)
            parts = numbers[numbers % _DAY["ms"] != 0]
            if len(parts):
                return f"a date with a part of a day ({parts[0]} ms since 1970)"
        return f"a date before the year 1 or after 9999 ({_first_bad(array)} since 1970)"

    return _checked(place, read, cause)


def time_of_day(place: Place) -> Read:
    """Times of day."""
    end = _DAY[place.kind.unit]
    listed = _fine(place.kind, _of_time)

    def read(array: Any) -> list[Any]:
        numbers = _numbers(array)
        if ((numbers < 0) | (numbers >= end)).any():
            raise ValueError("not within a day")
        return listed(array)

    def cause(array: Any) -> str:
        numbers = _numbers(array)
        outside = numbers[(numbers < 0) | (numbers >= end)]
        return f"a time of day that is not within 24 hours ({outside[0]} {place.kind.unit})"

    return _checked(place, read, cause)


def duration(place: Place) -> Read:
    """Spans of time."""

    def cause(array: Any) -> str:
        return f"a duration beyond 999999999 days ({_first_bad(array)})"

    read = _checked(place, _fine(place.kind, _of_duration), cause)
    return read if place.kind.unit == "ns" else Direct(read)


def _checked(place: Place, read: Read, cause: Callable[[Any], str]) -> Read:
    """Return a reader whose errors are `Unreadable`; `cause` describes the first value that cannot be read."""

    def checked(array: Any) -> list[Any]:
        try:
            return read(array)
        except (ValueError, OverflowError, KeyError):  # KeyError: an unknown time zone
            raise Unreadable(place.path, cause(array)) from None

    return checked


def _numbers(array: Any) -> Any:
    """Return the stored numbers of dates or times, int32[n] or int64[n]; 0 for null."""
    pyarrow = load_pyarrow()
    numbers = array.view(pyarrow.int32() if array.type.bit_width == 32 else pyarrow.int64())
    return np.asarray(numbers.fill_null(0) if numbers.null_count else numbers)


def _first_bad(array: Any) -> str:
    """Return the first stored number that Python has no value for, with its unit."""
    numbers = _numbers(array)
    unit = getattr(array.type, "unit", "d" if array.type.bit_width == 32 else "ms")
    for number, scalar in zip(numbers.tolist(), array, strict=True):
        try:
            if unit != "ns":
                scalar.as_py()
        except (ValueError, OverflowError):
            return f"{number} {unit}"
    return f"{numbers[0]} {unit}"


def _fine(kind: Any, exact: Callable[[Any, int, Any], str]) -> Read:
    """Return a reader that returns what `exact` makes of a value with nanoseconds, and other values as pyarrow does.

    Args:
        exact: (value cut to microseconds, stored number, type) -> text.
    """
    if kind.unit != "ns":
        return _listed

    def read(array: Any) -> list[Any]:
        pyarrow = load_pyarrow()
        numbers, present = _numbers(array), present_in(array)
        coarse = pyarrow.array(numbers // 1000, pyarrow.int64(), mask=~present).view(_microseconds(pyarrow, kind))
        values = _listed(coarse)
        for at in np.flatnonzero((numbers % 1000 != 0) & present).tolist():
            values[at] = exact(values[at], int(numbers[at]), kind)
        return values

    return read


def _microseconds(pyarrow: Any, kind: Any) -> Any:
    if pyarrow.types.is_timestamp(kind):
        return pyarrow.timestamp("us", kind.tz)
    return pyarrow.time64("us") if pyarrow.types.is_time64(kind) else pyarrow.duration("us")


def datetime_text(value: datetime, number: int) -> str:
    """Return a time of whole microseconds as text, with the nanoseconds of the stored number."""
    zone = value.strftime("%z")
    zone = "Z" if zone == "+0000" and str(value.tzinfo) == "UTC" else zone
    return f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}{number % 1000:03}{zone}"


def _of_datetime(value: datetime, number: int, kind: Any) -> str:  # noqa: ARG001
    return datetime_text(value, number)


def _of_time(value: time, number: int, kind: Any) -> str:  # noqa: ARG001
    return f"{value.isoformat(timespec='microseconds')}{number % 1000:03}"


def _of_duration(value: timedelta, number: int, kind: Any) -> str:  # noqa: ARG001
    seconds, rest = divmod(abs(number), 10**9)
    return f"{'-' * (number < 0)}PT{seconds}.{rest:09}S"


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
    return datetime_text(moved, int(fine)) if fine else moved


Make = Callable[[Place], Read | None]
"""Maker of a reader; it returns None if the type does not fit, so that its storage is read."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        title: what the page calls the types.
        names: for types of Arrow, names in `pyarrow.lib` without ``Type_``; else of the extension types or features.
        value: what the page says of the value.
        make: makes the reader; None if the types are refused.
    """

    title: str
    names: tuple[str, ...]
    value: str
    make: Make | None


NUMBERS = (
    *("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
    *("HALF_FLOAT", "FLOAT", "DOUBLE", "BOOL"),
)
DECIMALS = "DECIMAL32", "DECIMAL64", "DECIMAL128", "DECIMAL256"

TYPES = (
    Row("`null`", ("NA",), "None", plain),
    Row("integers, floats, `bool`", NUMBERS, "int, float, bool", plain),
    Row("`string`, `large_string`, `string_view`", ("STRING", "LARGE_STRING", "STRING_VIEW"), "str", text),
    Row(
        "`binary`, `large_binary`, `binary_view`, `fixed_size_binary`",
        ("BINARY", "LARGE_BINARY", "BINARY_VIEW", "FIXED_SIZE_BINARY"),
        "bytes; those of a column are decoded if its name ends like a part (`jpg`, `meta.json`)",
        plain,
    ),
    Row("`decimal32` to `decimal256`", DECIMALS, "`decimal.Decimal`", plain),
    Row("`date32`, `date64`", ("DATE32", "DATE64"), "`datetime.date`", date),
    Row(
        "`time32`, `time64`",
        ("TIME32", "TIME64"),
        "`datetime.time`; text if it needs nanoseconds",
        time_of_day,
    ),
    Row(
        "`timestamp`",
        ("TIMESTAMP",),
        "`datetime.datetime`, aware if the type has a time zone; text if it needs nanoseconds",
        timestamp,
    ),
    Row("`duration`", ("DURATION",), "`datetime.timedelta`; text if it needs nanoseconds", duration),
    Row(
        "`month_day_nano_interval`",
        ("INTERVAL_MONTH_DAY_NANO",),
        "`pyarrow.MonthDayNano`, a tuple of months, days and nanoseconds",
        plain,
    ),
    Row(
        "other intervals",
        ("INTERVAL_MONTHS", "INTERVAL_DAY_TIME"),
        "refused: pyarrow does not read their values",
        None,
    ),
    Row(
        "`list`, `large_list`, `fixed_size_list`, `list_view`, `large_list_view`",
        ("LIST", "LARGE_LIST", "FIXED_SIZE_LIST", "LIST_VIEW", "LARGE_LIST_VIEW"),
        "list; of a column of numbers or booleans: numpy array of their type, or a list if it contains nulls",
        nested.lists,
    ),
    Row(
        "`struct`",
        ("STRUCT",),
        "dict; a struct of `bytes` and `path` is a file, decoded by its first bytes",
        nested.structure,
    ),
    Row("`map`", ("MAP",), "list of tuples: key and value", nested.mapping),
    Row("`sparse_union`, `dense_union`", ("SPARSE_UNION", "DENSE_UNION"), "the value of the row's type", nested.union),
    Row("`dictionary`", ("DICTIONARY",), "the value that the number stands for", nested.dictionary),
    Row("`run_end_encoded`", ("RUN_END_ENCODED",), "the value of the run", nested.run_ends),
)
"""Types of Arrow."""

_DATASETS = "datasets.features.features."
EXTENSIONS = (
    Row("`arrow.json`", ("arrow.json",), "str: the JSON text; see `Json` below", stored),
    Row("`arrow.uuid`", ("arrow.uuid",), "`uuid.UUID`", plain),
    Row("`arrow.bool8`", ("arrow.bool8",), "bool", boolean),
    Row(
        "`arrow.fixed_shape_tensor`",
        ("arrow.fixed_shape_tensor",),
        "numpy array of its shape, with its axes in the order of its permutation; lists if it contains nulls",
        fixed_tensor,
    ),
    Row(
        "`arrow.variable_shape_tensor`",
        ("arrow.variable_shape_tensor",),
        "numpy array of the row's shape, likewise",
        variable_tensor,
    ),
    Row("`arrow.opaque`", ("arrow.opaque",), "the stored value: its type is one of another system", stored),
    Row(
        "`arrow.timestamp_with_offset`",
        ("arrow.timestamp_with_offset",),
        "`datetime.datetime` in the row's offset; text if it needs nanoseconds",
        with_offset,
    ),
    Row("`arrow.parquet.variant`", ("arrow.parquet.variant",), "refused", None),
    Row(
        "`Array2D` to `Array5D` of `datasets`",
        tuple(f"{_DATASETS}Array{n}DExtensionType" for n in range(2, 6)),
        "numpy array of their shape; lists if it contains nulls",
        array_of_lists,
    ),
)
"""Extension types. Others are refused."""

FEATURES = (
    Row("`Value`, `ClassLabel`", ("Value", "ClassLabel"), "as their type; classes are numbers", by_type),
    Row(
        "`List`, `LargeList`, `Sequence`",
        ("List", "LargeList", "Sequence"),
        "as their type; a `Sequence` of a dict is a dict of lists",
        by_type,
    ),
    Row(
        "`Translation`, `TranslationVariableLanguages`",
        ("Translation", "TranslationVariableLanguages"),
        "dict",
        by_type,
    ),
    Row(
        "`Json`",
        ("Json",),
        "what the JSON says: text, numbers, lists, dicts; with `decode=False` its text",
        decoded_json,
    ),
    Row(
        "`Array2D` to `Array5D`",
        tuple(f"Array{n}D" for n in range(2, 6)),
        "numpy array of their shape; lists if it contains nulls",
        array_of_lists,
    ),
    Row("`Image`, `Audio`, `Video`", ("Image", "Audio", "Video"), "decoded, see below", nested.media),
    Row(
        "`Pdf`, `Nifti`, `Mesh`, `BioSequence`, `BioStructure`",
        ("Pdf", "Nifti", "Mesh", "BioSequence", "BioStructure"),
        "bytes of the file",
        nested.media,
    ),
)
"""Features of `datasets`, which the metadata of a file names. Others are refused."""
