"""Functions of jq that run their arguments on other values than the input, or return any number of outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby, islice
from typing import Any

from feedmill.documents.expressions.registry import FUNCTIONS, need, number, over
from feedmill.documents.expressions.values import KEY, Inner, JqError, Variables, iterate, kind, truth


@over("empty", 0)
def _empty() -> Inner:
    return lambda _variables, _value: iter(())


def _of_kinds(name: str, *kinds: str) -> None:
    FUNCTIONS[name, 0] = lambda: lambda _variables, value: iter((value,) if kind(value) in kinds else ())


_of_kinds("numbers", "number")
_of_kinds("strings", "string")
_of_kinds("booleans", "boolean")
_of_kinds("nulls", "null")
_of_kinds("arrays", "array")
_of_kinds("objects", "object")
_of_kinds("iterables", "array", "object")
_of_kinds("scalars", "null", "boolean", "number", "string")
_of_kinds("values", "boolean", "number", "string", "array", "object")


@over("select", 1)
def _select(test: Inner) -> Inner:
    return lambda variables, value: (value for one in test(variables, value) if truth(one))


@over("recurse", 0)
def _recurse() -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        yield value
        if type(value) in (list, dict):
            for item in iterate(value):
                yield from run(variables, item)

    return run


def _recursive(function: Inner, test: Inner | None = None) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        yield value
        for item in function(variables, value):
            if test is None:
                yield from run(variables, item)
            else:
                for one in test(variables, item):
                    if truth(one):
                        yield from run(variables, item)

    return run


FUNCTIONS["recurse", 1] = FUNCTIONS["recurse", 2] = _recursive


@over("paths", 0)
def _paths() -> Inner:
    def below(value: Any, path: list[Any]) -> Iterator[list[Any]]:
        if type(value) in (list, dict):
            for key, item in value.items() if type(value) is dict else enumerate(value):
                yield [*path, key]
                yield from below(item, [*path, key])

    return lambda _variables, value: below(value, [])


@over("walk", 1)
def _walk(function: Inner) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        if type(value) is list:
            value = [out for item in value for out in run(variables, item)]
        elif type(value) is dict:
            pairs = ((key, list(islice(run(variables, item), 1))) for key, item in value.items())
            value = {key: outputs[0] for key, outputs in pairs if outputs}
        yield from function(variables, value)

    return run


_STEPS, _LONGEST = 100_000, 10_000_000


def _stepped(name: str) -> None:
    def make(test: Inner, step: Inner) -> Inner:
        def run(variables: Variables, value: Any) -> Iterator[Any]:
            for _ in range(_STEPS):
                goes_on = truth(next(test(variables, value), None)) == (name == "while")
                if (name == "while" and goes_on) or (name == "until" and not goes_on):
                    yield value
                if not goes_on:
                    return
                value = next(step(variables, value), None)
            raise JqError(f"{name} without end")

        return run

    FUNCTIONS[name, 2] = make


_stepped("until")
_stepped("while")


@over("map", 1)
def _map(function: Inner) -> Inner:
    return lambda variables, value: iter(([out for item in iterate(value) for out in function(variables, item)],))


@over("map_values", 1)
def _map_values(function: Inner) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        if type(value) is dict:
            pairs = ((key, list(islice(function(variables, item), 1))) for key, item in value.items())
            yield {key: outputs[0] for key, outputs in pairs if outputs}
        else:
            yield [out for item in iterate(value) for out in islice(function(variables, item), 1)]

    return run


def _some(name: str, decides: bool) -> None:
    def two(source: Inner, test: Inner) -> Inner:
        def run(variables: Variables, value: Any) -> Iterator[Any]:
            outputs = (truth(one) for item in source(variables, value) for one in test(variables, item))
            yield decides if any(one == decides for one in outputs) else not decides

        return run

    FUNCTIONS[name, 2] = two
    FUNCTIONS[name, 1] = lambda test: two(lambda _variables, value: iterate(value), test)


_some("any", True)
_some("all", False)


@over("range", 1)
def _range(stop: Inner) -> Inner:
    return lambda variables, value: (i for n in stop(variables, value) for i in range(_end_of(n)))


def _end_of(stop: Any) -> int:
    if number(stop) != stop:
        return 0
    if math.isinf(stop) and stop > 0:
        raise JqError("a range without end")
    return math.ceil(max(float(stop), -1.0)) if type(stop) is float else int(stop)


def _range_from(start: Inner, stop: Inner, step: Inner = lambda _variables, _value: iter((1,))) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for a in start(variables, value):
            for b in stop(variables, value):
                for by in step(variables, value):
                    yield from _counted(number(a), number(b), number(by))

    return run


def _counted(at: Any, stop: Any, step: Any) -> Iterator[Any]:
    """Yield numbers from `at` to before `stop`; none if `step` is 0. Raises JqError if they never end."""
    if type(at) is type(stop) is type(step) is int:
        yield from range(at, stop, step) if step else ()
        return
    for _ in range(_LONGEST):
        if not (at < stop if step > 0 else at > stop if step < 0 else False):
            return
        yield at
        at = at + step
    raise JqError("a range without end")


FUNCTIONS["range", 2] = FUNCTIONS["range", 3] = _range_from


@over("repeat", 1)
def _repeat(function: Inner) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for _ in range(_STEPS):
            yield from function(variables, value)
        raise JqError("repeat without end")

    return run


@over("first", 1)
def _first(source: Inner) -> Inner:
    return lambda variables, value: islice(source(variables, value), 1)


@over("last", 1)
def _last(source: Inner) -> Inner:
    return lambda variables, value: iter(list(source(variables, value))[-1:])


@over("limit", 2)
def _limit(count: Inner, source: Inner) -> Inner:
    return lambda variables, value: (
        out for n in count(variables, value) for out in islice(source(variables, value), max(0, need(n, int)))
    )


@over("nth", 2)
def _nth(count: Inner, source: Inner) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        found: list[Any] = []
        for n in count(variables, value):
            found = list(islice(source(variables, value), max(0, need(n, int) + 1)))[-1:] or found
        yield from found

    return run


def _keyed(function: Inner, variables: Variables, value: Any) -> list[tuple[Any, Any]]:
    pairs = [(KEY(list(function(variables, item))), item) for item in need(value, list)]
    return sorted(pairs, key=lambda pair: pair[0])


@over("sort_by", 1)
def _sort_by(function: Inner) -> Inner:
    return lambda variables, value: iter(([item for _, item in _keyed(function, variables, value)],))


@over("group_by", 1)
def _group_by(function: Inner) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        yield [[item for _, item in group] for _, group in groupby(_keyed(function, variables, value), lambda p: p[0])]

    return run


@over("unique_by", 1)
def _unique_by(function: Inner) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        yield [next(group)[1] for _, group in groupby(_keyed(function, variables, value), lambda p: p[0])]

    return run


@over("min_by", 1)
def _min_by(function: Inner) -> Inner:
    return lambda variables, value: iter((_end(_keyed(function, variables, value), 0),))


@over("max_by", 1)
def _max_by(function: Inner) -> Inner:
    return lambda variables, value: iter((_end(_keyed(function, variables, value), -1),))


def _end(pairs: list[tuple[Any, Any]], at: int) -> Any:
    return pairs[at][1] if pairs else None


@over("with_entries", 1)
def _with_entries(function: Inner) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        entries = [{"key": k, "value": v} for k, v in need(value, dict).items()]
        made = [need(e, dict) for entry in entries for e in function(variables, entry)]
        yield {need(e.get("key"), str): e.get("value") for e in made}

    return run
