"""Registry of the functions that jq expressions can call, by name and number of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from feedmill.documents.expressions.values import Inner, JqError, Variables, kind

Make = Callable[..., Inner]
FUNCTIONS: dict[tuple[str, int], Make] = {}


def plain(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers a function of the input and one output of each argument.

    Python's errors for unsuitable values become a `JqError`.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        count = function.__code__.co_argcount - 1

        def call(*values: Any) -> Any:
            try:
                return function(*values)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                raise JqError(f"{name} cannot be used on {' and '.join(map(kind, values))}") from None

        def make(*arguments: Inner) -> Inner:
            if not arguments:
                return lambda _variables, value: iter((call(value),))

            def run(variables: Variables, value: Any) -> Iterator[Any]:
                for chosen in product(*(list(argument(variables, value)) for argument in arguments)):
                    yield call(value, *chosen)

            return run

        FUNCTIONS[name, count] = make
        return function

    return add


def over(name: str, count: int) -> Callable[[Make], Make]:
    """Return a decorator that registers a function of compiled arguments, which it can run on any value."""

    def add(make: Make) -> Make:
        FUNCTIONS[name, count] = make
        return make

    return add


def need(value: Any, *types: type) -> Any:
    """Return the value if it has one of these types. Raises JqError."""
    if type(value) not in types:
        raise JqError(f"cannot use {kind(value)} here")
    return value


def number(value: Any) -> Any:
    """Return the value if it is a number. Raises JqError."""
    return need(value, int, float)
