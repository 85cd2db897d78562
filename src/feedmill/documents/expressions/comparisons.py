"""Comparison operators of JSONPath filters. They compare the values that two paths find; see `jsonpath`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from feedmill.documents.expressions.values import below
from feedmill.errors import PATTERN_ERRORS, ConfigError


def same(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal. Integers, floats and booleans never equal one another."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    return bool(a == b)


def _equal(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(map(same, left, right))


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def _less(left: list[Any], right: list[Any]) -> bool:
    if len(left) != 1 or len(right) != 1 or not _is_number(left[0]) or not _is_number(right[0]):
        return False
    return bool(left[0] < right[0])


def _inside(left: list[Any], right: list[Any]) -> bool:
    return bool(right) and any(same(a, b) for a in left for b in below(right[0]))


def _any_of(left: list[Any], right: list[Any]) -> bool:
    if not left:
        return True
    if not right or not isinstance(right[0], list):
        return False
    elements = left[0] if isinstance(left[0], list) else left
    return any(same(a, b) for a in elements for b in right[0])


def _subset(left: list[Any], right: list[Any]) -> bool:
    if not left:
        return True
    if not right:
        return False
    if not isinstance(left[0], list) or not isinstance(right[0], list):
        return True
    return all(any(same(a, b) for b in right[0]) for a in left[0])


def _size(left: list[Any], right: list[Any]) -> bool:
    if not right or not _is_number(right[0]):
        return False
    sizes = [len(v.encode()) if isinstance(v, str) else len(v) if isinstance(v, list | dict) else -1 for v in left]
    return all(size == int(right[0]) for size in sizes)


def _regex(left: list[Any], right: list[Any]) -> bool:
    if not right or not isinstance(right[0], str):
        return False
    pattern = _pattern(right[0])
    return any(isinstance(value, str) and pattern.search(value) for value in left)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except PATTERN_ERRORS as error:
        raise ConfigError(f"{text!r} is not a valid regular expression ({error})", kind="bad-expression") from None


COMPARISONS: dict[str, Callable[[list[Any], list[Any]], bool]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": _less,
    "<=": lambda left, right: _less(left, right) or _equal(left, right),
    ">": lambda left, right: _less(right, left),
    ">=": lambda left, right: _less(right, left) or _equal(left, right),
    "~=": _regex,
    "in": _inside,
    "nin": lambda left, right: not _inside(left, right),
    "size": _size,
    "anyOf": _any_of,
    "noneOf": lambda left, right: not _any_of(left, right),
    "subsetOf": _subset,
}
