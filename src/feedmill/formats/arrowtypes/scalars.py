"""Readers of single values: numbers, text, bytes, decimals, dates and times.

Times of Python have microseconds. A time that needs nanoseconds is text in ISO 8601, with nine digits; all others are
times of Python. What pyarrow returns for them depends on whether pandas is installed, so this does not.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, time, timedelta
from typing import Any

import numpy as np

from feedmill.formats.arrowtypes.arrays import present_in
from feedmill.formats.arrowtypes.place import Direct, Place, Read, Unreadable
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
