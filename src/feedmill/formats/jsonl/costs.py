"""Costs from a numeric field of JSON lines. This is the only cost that requires reading the file, see `kept_costs`."""

from __future__ import annotations

import codecs
import json
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from feedmill.formats.costs import bad_cost, field_costs
from feedmill.formats.offsets import Int64s, read_records
from feedmill.storage import Store

_AT_ONCE = 4096


def numeric_fields(line: bytes) -> list[str]:
    """Return the fields of a record whose value is a number; empty if the line is not a JSON object."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return []
    return [name for name, value in record.items() if _is_number(value)] if isinstance(record, dict) else []


def line_costs(store: Store, path: str, begins: Int64s, ends: Int64s, by: str, *, file: str) -> Int64s:
    """Return the values of a top-level field as costs, int64[n], by reading the records once.

    Args:
        begins, ends: int64[n], offsets of each record.
        by: the field.
        file: path or URL of the dataset, for errors.

    Raises:
        DataError, ConfigError: as `field_costs`, and if a value is not a number or a line is not JSON.
    """
    pieces = [np.zeros(0, np.int64)]
    for low in range(0, len(begins), _AT_ONCE):
        part = slice(low, low + _AT_ONCE)
        lines = read_records(store, path, begins[part], ends[part])
        if lines and begins[low] == 0:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        try:
            found = [record.value for record in _decoder(by).decode(b"[" + b",".join(lines) + b"]")]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # NaN, not a number, or a name that no struct may have: parse line by line.
            found = [_value(line, by, low + number, file) for number, line in enumerate(lines)]
        pieces.append(_array(found, by, low, file))
    return field_costs(np.concatenate(pieces), None, by, file=file)


@lru_cache(maxsize=8)
def _decoder(by: str) -> msgspec.json.Decoder[Any]:
    kind = msgspec.defstruct("Record", [("value", int | float | None, None)], rename={"value": by})
    return msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]


def _array(found: list[Any], by: str, first: int, file: str) -> npt.NDArray[Any]:
    """Return numbers as an array of their common type. Raises `DataError` for the first missing or too large one."""
    number = next((n for n, value in enumerate(found) if value is None or not -(2.0**63) < value < 2.0**63), None)
    if number is not None and found[number] == found[number]:  # NaN is reported later
        shown = "missing" if found[number] is None else found[number]
        raise bad_cost(by, first + number, shown, file=file)
    return np.asarray(found, np.float64 if any(type(value) is float for value in found) else np.int64)


def _value(line: bytes, by: str, number: int, file: str) -> Any:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise bad_cost(by, number, f"in a line that is not JSON ({error})", file=file) from None
    value = record.get(by)
    if value is not None and not _is_number(value):
        raise bad_cost(by, number, json.dumps(value)[:80], file=file)
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
