"""Types of JSON values, merged over all rows, and the Parquet columns that store them.

A type is plain data: ``"null"``, ``"bool"``, ``"int"`` (within 2^53, so that it is exact as a float), ``"big"`` (within
64 bits), ``"float"``, ``"number"`` (integers and floats, all stored as floats), ``"str"``, ``["list", type]``,
``{name: type}``, or ``"json"``. The last is for values that no typed column can store: mixed types, empty objects, and
objects with more than 256 names. They are written as JSON text. The metadata of the schema lists these columns, so that
reading restores the original values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from feedmill.formats.objects import decode_json
from feedmill.samples.encode import encode_json

Type = Any
"""See the module."""

METADATA = b"feedmill.types"
_DEEP, _MANY = 12, 256
_EXACT = 2**53


def type_of(value: Any, depth: int = 0) -> Type:
    """Return the type of one value."""
    kind = type(value)
    if value is None:
        return "null"
    if kind is bool:
        return "bool"
    if kind is int:
        return "int" if -_EXACT <= value <= _EXACT else "big" if -(2**63) <= value < 2**63 else "json"
    if kind is float:
        return "float"
    if kind is str:
        return "str"
    if depth >= _DEEP:
        return "json"
    if kind is list:
        return ["list", merged(type_of(item, depth + 1) for item in value)]
    if not value or len(value) > _MANY:
        return "json"
    return {name: type_of(item, depth + 1) for name, item in value.items()}


def merged(types: Iterable[Type]) -> Type:
    """Return the type that can store values of all these types."""
    out: Type = "null"
    for one in types:
        out = merge(out, one)
    return out


def merge(a: Type, b: Type) -> Type:
    """Return the type that can store values of both types.

    >>> merge("int", "float"), merge(["list", "null"], ["list", "str"]), merge("int", "str")
    ('number', ['list', 'str'], 'json')
    """
    if a == b or b == "null":
        return a
    if a == "null":
        return b
    if isinstance(a, list) and isinstance(b, list):
        return ["list", merge(a[1], b[1])]
    if isinstance(a, dict) and isinstance(b, dict):
        names = {**a, **b}
        return {n: merge(a.get(n, "null"), b.get(n, "null")) for n in names} if len(names) <= _MANY else "json"
    numbers = {str(a), str(b)}
    if numbers <= {"int", "float", "number"}:
        return "number"
    return "big" if numbers == {"int", "big"} else "json"


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Type]:
    """Return the merged type of each name in the rows."""
    out: dict[str, Type] = {}
    for row in rows:
        for name, value in row.items():
            out[name] = merge(out.get(name, "null"), type_of(value, 1))
    return out


def merge_columns(a: dict[str, Type], b: Mapping[str, Type]) -> dict[str, Type]:
    """Return the merged types of the names of both, those of `a` first."""
    return {**a, **{name: merge(a.get(name, "null"), kind) for name, kind in b.items()}}


def has_json(kind: Type) -> bool:
    """Return whether a value of this type is written as JSON text, at least partly."""
    if isinstance(kind, list):
        return has_json(kind[1])
    return any(map(has_json, kind.values())) if isinstance(kind, dict) else kind == "json"


def has_number(kind: Type) -> bool:
    """Return whether integers of this type become floats."""
    if isinstance(kind, list):
        return has_number(kind[1])
    return any(map(has_number, kind.values())) if isinstance(kind, dict) else kind == "number"


def fit(value: Any, kind: Type) -> Any:
    """Return a value as a column of this type stores it."""
    if value is None:
        return None
    if kind == "json":
        return encode_json(value).decode("utf-8", "surrogatepass")
    if isinstance(kind, list):
        return [fit(item, kind[1]) for item in value] if has_json(kind) or has_number(kind) else value
    if isinstance(kind, dict):
        fits = has_json(kind) or has_number(kind)
        return {name: fit(item, kind[name]) for name, item in value.items()} if fits else value
    return float(value) if kind == "number" else value


def unfit(value: Any, kind: Type) -> Any:
    """Return the original of a value that `fit` converted."""
    if value is None or not has_json(kind):
        return value
    if kind == "json":
        return _loads(value) if isinstance(value, str) else value
    if isinstance(kind, list):
        return [unfit(item, kind[1]) for item in value] if isinstance(value, list) else value
    return {n: unfit(v, kind.get(n, "null")) for n, v in value.items()} if isinstance(value, dict) else value


def _loads(text: str) -> Any:
    try:
        return decode_json(text.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):  # the column's type is "json", but another tool wrote plain text
        return text


def schema_of(columns: Mapping[str, Type]) -> Any:
    """Return the Arrow schema of these columns. Its metadata holds their types if any is stored as JSON text."""
    import pyarrow as pa

    metadata = {METADATA: orjson.dumps(dict(columns))} if any(map(has_json, columns.values())) else None
    return pa.schema([pa.field(name, _arrow(kind)) for name, kind in columns.items()], metadata=metadata)


def _arrow(kind: Type) -> Any:
    import pyarrow as pa

    if isinstance(kind, list):
        return pa.list_(_arrow(kind[1]))
    if isinstance(kind, dict):
        return pa.struct([pa.field(name, _arrow(item)) for name, item in kind.items()])
    return {
        "bool": pa.bool_(),
        "int": pa.int64(),
        "big": pa.int64(),
        "float": pa.float64(),
        "number": pa.float64(),
    }.get(kind, pa.string())


def types_in(schema: Any) -> dict[str, Type]:
    """Return the types that `schema_of` stored in the metadata; empty if no column is stored as JSON text."""
    text = (getattr(schema, "metadata", None) or {}).get(METADATA)
    try:
        found = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) and all(map(_is_type, found.values())) else {}


def _is_type(kind: Any) -> bool:
    """Return whether this is a valid type. The metadata of a file is untrusted input."""
    if isinstance(kind, list):
        return len(kind) == 2 and kind[0] == "list" and _is_type(kind[1])
    return all(map(_is_type, kind.values())) if isinstance(kind, dict) else isinstance(kind, str)


def weight(value: Any) -> int:
    """Estimate the size of a value in bytes, to limit the memory of a batch."""
    if isinstance(value, dict):
        return 64 + sum(map(weight, value.values()))
    if isinstance(value, list):
        return 16 + sum(map(weight, value))
    return len(value) if isinstance(value, str) else 16
