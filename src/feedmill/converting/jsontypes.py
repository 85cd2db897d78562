"""The types of JSON values, merged over all rows, and the columns of Parquet that hold them.

A type is plain data: ``"null"``, ``"bool"``, ``"int"`` (within 2^53, so that it is exact as a float), ``"big"`` (within
64 bits), ``"float"``, ``"str"``, ``["list", type]``, ``{name: type}``, or ``"json"`` for whatever no column of one type
can hold: values of several types, empty objects, objects with very many names. Those are written as text of JSON, and
the schema says so, so that they come back as they were.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from feedmill.samples.encode import encode_json

Type = Any
"""See the module."""

METADATA = b"feedmill.types"
_DEEP, _MANY = 12, 256
_EXACT = 2**53
_LONG = re.compile(rb"\d{19}")


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
    """Return the type that holds values of all these."""
    out: Type = "null"
    for one in types:
        out = merge(out, one)
    return out


def merge(a: Type, b: Type) -> Type:
    """Return the type that holds values of both.

    >>> merge("int", "float"), merge(["list", "null"], ["list", "str"]), merge("int", "str")
    ('float', ['list', 'str'], 'json')
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
    if numbers == {"int", "float"}:
        return "float"
    return "big" if numbers == {"int", "big"} else "json"


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Type]:
    """Return the type of each name of rows."""
    out: dict[str, Type] = {}
    for row in rows:
        for name, value in row.items():
            out[name] = merge(out.get(name, "null"), type_of(value, 1))
    return out


def merge_columns(a: dict[str, Type], b: Mapping[str, Type]) -> dict[str, Type]:
    """Return the types of names of both; names of the first stand first."""
    return {**a, **{name: merge(a.get(name, "null"), kind) for name, kind in b.items()}}


def has_json(kind: Type) -> bool:
    """Return whether some of it is written as text of JSON."""
    if isinstance(kind, list):
        return has_json(kind[1])
    return any(map(has_json, kind.values())) if isinstance(kind, dict) else kind == "json"


def fit(value: Any, kind: Type) -> Any:
    """Return a value as a column of this type holds it."""
    if value is None:
        return None
    if kind == "json":
        return encode_json(value).decode("utf-8", "surrogatepass")
    if isinstance(kind, list):
        return [fit(item, kind[1]) for item in value] if has_json(kind) else value
    if isinstance(kind, dict):
        return {name: fit(item, kind[name]) for name, item in value.items()} if has_json(kind) else value
    return float(value) if kind == "float" else value


def unfit(value: Any, kind: Type) -> Any:
    """Return the value that `fit` was given."""
    if value is None or not has_json(kind):
        return value
    if kind == "json":
        return _loads(value) if isinstance(value, str) else value
    if isinstance(kind, list):
        return [unfit(item, kind[1]) for item in value] if isinstance(value, list) else value
    return {n: unfit(v, kind.get(n, "null")) for n, v in value.items()} if isinstance(value, dict) else value


def _loads(text: str) -> Any:
    try:
        return loads(text.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):  # a part called json that is none
        return text


def loads(data: bytes) -> Any:
    """The value of JSON, exactly: orjson is fast, but makes floats of integers beyond 64 bits, and refuses the NaN,
    Infinity and lone surrogates that Python writes.

    Raises `ValueError`, `RecursionError`.
    """
    if _LONG.search(data) is None:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass
    return json.loads(data)


def schema_of(columns: Mapping[str, Type]) -> Any:
    """Return the Arrow schema of these columns; it says which of them hold text of JSON."""
    import pyarrow as pa

    said = {METADATA: orjson.dumps(dict(columns))} if any(map(has_json, columns.values())) else None
    return pa.schema([pa.field(name, _arrow(kind)) for name, kind in columns.items()], metadata=said)


def _arrow(kind: Type) -> Any:
    import pyarrow as pa

    if isinstance(kind, list):
        return pa.list_(_arrow(kind[1]))
    if isinstance(kind, dict):
        return pa.struct([pa.field(name, _arrow(item)) for name, item in kind.items()])
    return {"bool": pa.bool_(), "int": pa.int64(), "big": pa.int64(), "float": pa.float64()}.get(kind, pa.string())


def types_in(schema: Any) -> dict[str, Type]:
    """Return what `schema_of` has said of columns with text of JSON; empty if there are none."""
    said = (getattr(schema, "metadata", None) or {}).get(METADATA)
    try:
        found = orjson.loads(said) if said else {}
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) and all(map(_is_type, found.values())) else {}


def _is_type(kind: Any) -> bool:
    """Return whether this is a type: what a file says may be anything."""
    if isinstance(kind, list):
        return len(kind) == 2 and kind[0] == "list" and _is_type(kind[1])
    return all(map(_is_type, kind.values())) if isinstance(kind, dict) else isinstance(kind, str)


def canonical(value: Any) -> Any:
    """Return a value without what columns do not tell apart: names whose value is null, and whole numbers as floats."""
    if type(value) is dict:
        return {name: canonical(value[name]) for name in sorted(value) if value[name] is not None}
    if type(value) is list:
        return [canonical(item) for item in value]
    if type(value) is float:
        return int(value) if value.is_integer() else "NaN" if value != value else value
    return value


def weight(value: Any) -> int:
    """About the bytes that a value takes, so that long lists are not gathered without end."""
    if isinstance(value, dict):
        return 64 + sum(map(weight, value.values()))
    if isinstance(value, list):
        return 16 + sum(map(weight, value))
    return len(value) if isinstance(value, str) else 16
