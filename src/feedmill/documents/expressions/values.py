"""JSON values: for jq order, truth, arithmetic and indexing as in jaq; for JSONPath what is there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cmp_to_key
from typing import Any

import orjson

MISSING = object()
"""What a JSONPath finds where nothing is."""
_RANKS = {type(None): 0, bool: 1, int: 2, float: 2, str: 3, list: 4, dict: 5}
_KINDS = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}


class JqError(Exception):
    """Error that ``try`` catches; `value` is the input of ``catch``."""

    def __init__(self, value: Any) -> None:
        super().__init__(value if isinstance(value, str) else tojson(value))
        self.value = value


def kind(value: Any) -> str:
    """Return the type of a value: ``null``, ``boolean``, ``number``, ``string``, ``array`` or ``object``."""
    return _KINDS.get(type(value), "object")


def truth(value: Any) -> bool:
    """Return whether a value is true: everything except null and false."""
    return value is not None and value is not False


def tojson(value: Any) -> str:
    """Return compact JSON, with integers of any size."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return str(value)


def compare(a: Any, b: Any) -> int:
    """Compare two values: return a number below, equal to or above 0.

    The order is null < booleans < numbers < strings < arrays < objects.
    """
    left, right = _RANKS[type(a)], _RANKS[type(b)]
    if left != right:
        return left - right
    if left == 4:
        for x, y in zip(a, b, strict=False):
            order = compare(x, y)
            if order:
                return order
        return len(a) - len(b)
    if left == 5:
        keys = compare(sorted(a), sorted(b))
        return keys or next((c for key in sorted(a) if (c := compare(a[key], b[key]))), 0)
    if left == 0:
        return 0
    return int(a > b) - int(a < b)


KEY = cmp_to_key(compare)
"""Sort key for the order of `compare`."""


def arithmetic(sign: str, a: Any, b: Any) -> Any:
    """Return ``a sign b``. Raises `JqError`."""
    try:
        return _calculated(sign, a, b)
    except OverflowError:
        raise JqError(f"the numbers of {kind(a)} {sign} {kind(b)} are too large") from None


def _calculated(sign: str, a: Any, b: Any) -> Any:
    x, y = type(a), type(b)
    numbers = x in (int, float) and y in (int, float)
    if sign == "+":
        if a is None or b is None:
            return b if a is None else a
        if numbers or (x is y and x in (str, list)):
            return a + b
        if x is y is dict:
            return {**a, **b}
    elif sign == "-":
        if numbers:
            return a - b
        if x is y is list:
            return [item for item in a if all(compare(item, other) for other in b)]
    elif sign == "*":
        if numbers:
            return a * b
        if {x, y} == {int, str}:
            text, times = (a, b) if x is str else (b, a)
            return text * times if times > 0 else None
        if x is y is dict:
            return _merged(a, b)
    elif sign == "/":
        if numbers:
            return _divided(a, b)
        if x is y is str:
            return split(a, b)
    elif sign == "%" and numbers:
        if b == 0:
            raise JqError(f"cannot calculate {tojson(a)} % {tojson(b)}")
        if x is y is int:
            return int(math.fmod(a, b))
        return math.nan if math.isinf(a) else math.fmod(a, b)
    raise JqError(f"cannot calculate {tojson(a)} {sign} {tojson(b)}")


def split(text: str, separator: str) -> list[str]:
    """Return the parts between separators; the characters if the separator is empty."""
    if not text:
        return []
    return text.split(separator) if separator else list(text)


def _divided(a: Any, b: Any) -> float:
    if b:
        return float(a / b)
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)


def _merged(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    out = dict(a)
    for key, value in b.items():
        both = isinstance(out.get(key), dict) and isinstance(value, dict)
        out[key] = _merged(out[key], value) if both else value
    return out


def index_value(value: Any, key: Any) -> Any:
    """Return ``.[key]``. Raises `JqError`."""
    if type(value) is dict and type(key) is str:
        return value.get(key)
    if type(value) is list and type(key) is int:
        return value[key] if -len(value) <= key < len(value) else None
    raise JqError(f"cannot index {kind(value)} with {tojson(key)}")


def iterate(value: Any) -> Iterator[Any]:
    """Return the values of ``.[]``. Raises `JqError`."""
    if type(value) is list:
        return iter(value)
    if type(value) is dict:
        return iter(value.values())
    raise JqError(f"cannot iterate over {kind(value)}")


def walk(value: Any, keys: Sequence[str | int]) -> Any:
    """Return the value at a sequence of keys and indices below a JSON value, or `MISSING`."""
    for key in keys:
        kind = type(value)
        if kind is dict:
            value = value.get(key, MISSING)
            if value is MISSING:
                return MISSING
        elif kind is list and type(key) is int and key < len(value):
            value = value[key]
        else:
            return MISSING
    return value


def below(value: Any) -> list[Any]:
    """Return the elements of an array or the values of an object, or an empty list for any other value."""
    return value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
