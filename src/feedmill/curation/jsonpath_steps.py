"""The steps and tests that JSONPath expressions are compiled to: plain functions. See `feedmill.curation.jsonpath`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from feedmill.curation.jsonpath_compare import below

Step = Callable[[list[Any], Any], list[Any]]
Test = Callable[[Any, Any], bool]
Values = Callable[[Any, Any], list[Any]]

MISSING = object()


def walk(value: Any, keys: Sequence[str | int]) -> Any:
    """Return what lies straight down from a JSON value; `MISSING` where nothing does."""
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


class Below:
    """A path straight down from the element."""

    def __init__(self, keys: list[str | int]) -> None:
        self.keys = keys

    def __call__(self, element: Any, _document: Any) -> list[Any]:
        value = walk(element, self.keys)
        return [] if value is MISSING else [value]


class Literal:
    """A value that stands in the path."""

    def __init__(self, value: Any) -> None:
        self.value, self.values = value, [value]

    def __call__(self, _element: Any, _document: Any) -> list[Any]:
        return self.values


class NumberTest:
    """The most common test: a value beside a number."""

    def __init__(self, keys: list[str | int], sign: str, limit: int | float) -> None:
        self.keys, self.limit = keys, limit
        self.beside: Callable[[Any, Any], bool] = operator.gt if sign == ">" else operator.lt

    # Whatever cannot be looked into raises, and what a text gives for a number is no number: no type need be asked.
    def __call__(self, element: Any, _document: Any) -> bool:
        value = element
        try:
            for key in self.keys:
                value = value[key]
        except (LookupError, TypeError):
            return False
        return (type(value) is float or type(value) is int) and self.beside(value, self.limit)

    def beneath(self, key: str, otherwise: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """Return the test of what lies under a key of a document, in one go where that is an object with a number; else
        `otherwise` says."""
        if not self.keys or type(self.keys[0]) is not str:
            return otherwise
        path, limit, beside = [key, *self.keys], self.limit, self.beside

        def run(document: Any) -> bool:
            value = document
            try:
                for key in path:
                    value = value[key]
            except (LookupError, TypeError):
                return otherwise(document)
            return beside(value, limit) if type(value) is float or type(value) is int else otherwise(document)

        return run


def operand(keys: list[str | int], steps: list[Step], root: bool) -> Values:
    if steps and steps[-1] in (length, count):
        return lambda _element, _document: []

    def run(element: Any, document: Any) -> list[Any]:
        value = walk(document if root else element, keys)
        if value is MISSING:
            return []
        found = [value]
        for step in steps:
            found = step(found, document)
        return found

    return run


def down(key: str | int) -> Step:
    keys = [key]
    return lambda found, _document: [v for value in found if (v := walk(value, keys)) is not MISSING]


def union_of(keys: list[str | int]) -> Step:
    return lambda found, _document: [v for value in found for key in keys if (v := walk(value, [key])) is not MISSING]


def slice_of(start: int, end: int, step: int) -> Step:
    def run(found: list[Any], _document: Any) -> list[Any]:
        out = []
        for value in found:
            size = len(value) if isinstance(value, list) else -1
            if size < 0 or max(start, end) > size or min(start, end) < -size:
                continue
            low, high = start + size * (start < 0), end + size * (end < 0)
            out.extend(value[low : high or size : step])
        return out

    return run


def children(found: list[Any], _document: Any) -> list[Any]:
    return [child for value in found for child in below(value)]


def everything(found: list[Any], _document: Any) -> list[Any]:
    out = []
    for value in found:
        children = below(value)
        out.extend(children)
        out.extend(everything(children, _document))
    return out


def deep(key: str) -> Step:
    def run(found: list[Any], document: Any) -> list[Any]:
        out = []
        for value in found:
            if isinstance(value, dict) and key in value:
                out.append(value[key])
            out.extend(run(below(value), document))
        return out

    return run


def count(found: list[Any], _document: Any) -> list[Any]:
    return [len(found)] if found else []


def length(found: list[Any], _document: Any) -> list[Any]:
    return [len(found[0])] if found and isinstance(found[0], list) else []


class Filter:
    """``[?(...)]``, a step."""

    def __init__(self, test: Test) -> None:
        self.test = test

    def __call__(self, found: list[Any], document: Any) -> list[Any]:
        out, test = [], self.test
        for value in found:
            elements = value if isinstance(value, list) else [value]
            out.extend([element for element in elements if test(element, document)])
        return out


def again(test: Test, element: Any, document: Any) -> bool:
    """Return a side of ``&&``, ``||`` and ``!`` is a filter of its own."""
    if isinstance(element, list):
        return any(test(inner, document) for inner in element)
    return test(element, document)


def all_of(tests: list[Test]) -> Test:
    return lambda element, document: all(again(test, element, document) for test in tests)


def any_of(tests: list[Test]) -> Test:
    return lambda element, document: any(again(test, element, document) for test in tests)


def none_of(test: Test) -> Test:
    return lambda element, document: not again(test, element, document)
