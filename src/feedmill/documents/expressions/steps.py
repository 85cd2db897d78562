"""Steps and tests that JSONPath expressions are compiled to. They are plain functions; see `jsonpath`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from feedmill.documents.expressions.comparisons import below

Step = Callable[[list[Any], Any], list[Any]]
Test = Callable[[Any, Any], bool]
Values = Callable[[Any, Any], list[Any]]

MISSING = object()


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


class Below:
    """Path of plain keys and indices from the element."""

    def __init__(self, keys: list[str | int]) -> None:
        self.keys = keys

    def __call__(self, element: Any, _document: Any) -> list[Any]:
        value = walk(element, self.keys)
        return [] if value is MISSING else [value]


class Literal:
    """Literal value in a path."""

    def __init__(self, value: Any) -> None:
        self.value, self.values = value, [value]

    def __call__(self, _element: Any, _document: Any) -> list[Any]:
        return self.values


class NumberTest:
    """Comparison of a value with a number by ``<`` or ``>``, the most common test."""

    def __init__(self, keys: list[str | int], sign: str, limit: int | float) -> None:
        self.keys, self.limit = keys, limit
        self.beside: Callable[[Any, Any], bool] = operator.gt if sign == ">" else operator.lt

    # Indexing a value that is no container raises, and indexing a string gives no number: types need no check.
    def __call__(self, element: Any, _document: Any) -> bool:
        value = element
        try:
            for key in self.keys:
                value = value[key]
        except (LookupError, TypeError):
            return False
        return (type(value) is float or type(value) is int) and self.beside(value, self.limit)

    def beneath(self, key: str, otherwise: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """Return this test for the value at a key of a document.

        If that value is an object with a number at the path, the number is compared directly; else `otherwise` decides.
        """
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
    """Return a function to the values of a path, from the document if `root` is set, else from the element."""
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
    """Return the step ``.key`` or ``[n]``."""
    keys = [key]
    return lambda found, _document: [v for value in found if (v := walk(value, keys)) is not MISSING]


def union_of(keys: list[str | int]) -> Step:
    """Return the step ``['a','b']`` or ``[a,b]``."""
    return lambda found, _document: [v for value in found for key in keys if (v := walk(value, [key])) is not MISSING]


def slice_of(start: int, end: int, step: int) -> Step:
    """Return the step ``[start:end:step]``."""

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
    """Step ``.*`` or ``[*]``."""
    return [child for value in found for child in below(value)]


def everything(found: list[Any], _document: Any) -> list[Any]:
    """Step ``..*``."""
    out = []
    for value in found:
        children = below(value)
        out.extend(children)
        out.extend(everything(children, _document))
    return out


def deep(key: str) -> Step:
    """Return the step ``..key``."""

    def run(found: list[Any], document: Any) -> list[Any]:
        out = []
        for value in found:
            if isinstance(value, dict) and key in value:
                out.append(value[key])
            out.extend(run(below(value), document))
        return out

    return run


def count(found: list[Any], _document: Any) -> list[Any]:
    """Step ``.length()`` after a path that can find several values: the number of values."""
    return [len(found)] if found else []


def length(found: list[Any], _document: Any) -> list[Any]:
    """Step ``.length()`` after a path to one value: the length of the array."""
    return [len(found[0])] if found and isinstance(found[0], list) else []


class Filter:
    """Step ``[?(...)]``."""

    def __init__(self, test: Test) -> None:
        self.test = test

    def __call__(self, found: list[Any], document: Any) -> list[Any]:
        out, test = [], self.test
        for value in found:
            elements = value if isinstance(value, list) else [value]
            out.extend([element for element in elements if test(element, document)])
        return out


def again(test: Test, element: Any, document: Any) -> bool:
    """Apply an operand of ``&&``, ``||`` or ``!`` as a filter of its own: on an array, test its elements."""
    if isinstance(element, list):
        return any(test(inner, document) for inner in element)
    return test(element, document)


def all_of(tests: list[Test]) -> Test:
    """Return the test of ``&&``."""
    return lambda element, document: all(again(test, element, document) for test in tests)


def any_of(tests: list[Test]) -> Test:
    """Return the test of ``||``."""
    return lambda element, document: any(again(test, element, document) for test in tests)


def none_of(test: Test) -> Test:
    """Return the test of ``!``."""
    return lambda element, document: not again(test, element, document)
