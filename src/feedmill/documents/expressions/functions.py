"""Functions that jq expressions can call, by name and number of arguments, and what all nodes are compiled to."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby, islice, product
from typing import Any, NamedTuple

from feedmill.documents.expressions.values import (
    KEY,
    JqError,
    arithmetic,
    below,
    compare,
    index_value,
    iterate,
    kind,
    split,
    tojson,
    truth,
)
from feedmill.errors import PATTERN_ERRORS

Variables = dict[str, Any]
Many = Callable[[Variables, Any], Iterator[Any]]
"""From variables and an input to the outputs."""
One = Callable[[Variables, Any], Any]
"""From variables and an input to the only output."""


class Compiled(NamedTuple):
    """A compiled expression."""

    many: Many
    one: One | None = None
    """The same without an iterator, if there is always one output."""
    maybe: One | None = None
    """The same with null for no output, if there is one output or none; for some of such expressions."""


def single(one: One) -> Compiled:
    """Return a compiled expression that always has one output."""
    return Compiled(lambda variables, value: iter((one(variables, value),)), one)


IDENTITY = single(lambda _variables, value: value)
Make = Callable[..., Compiled]
FUNCTIONS: dict[tuple[str, int], Make] = {}


def lifted(function: Callable[..., Any], *operands: Compiled) -> Compiled:
    """Return a function of one output of each operand, for all combinations; that of the first changes least often."""
    ones = [operand.one for operand in operands if operand.one is not None]
    if len(ones) < len(operands):
        rows = _rows(*operands)
        return Compiled(lambda variables, value: (function(*row) for row in rows(variables, value)))
    if len(ones) == 1:
        only = ones[0]
        return single(lambda variables, value: function(only(variables, value)))
    if len(ones) == 2:
        first, second = ones
        return single(lambda variables, value: function(first(variables, value), second(variables, value)))
    return single(lambda variables, value: function(*[one(variables, value) for one in ones]))


def _rows(first: Compiled, *others: Compiled) -> Many:
    """Return the combinations of outputs: those of the first operand one by one, those of the others at once."""
    outputs = [operand.many for operand in others]
    return lambda variables, value: (
        row
        for one in first.many(variables, value)
        for row in product((one,), *[list(many(variables, value)) for many in outputs])
    )


def plain(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers a function of the input and one output of each argument.

    Python's errors for unsuitable values become a `JqError`.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            try:
                return function(*values)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                raise JqError(f"{name} cannot be used on {' and '.join(map(kind, values))}") from None

        FUNCTIONS[name, function.__code__.co_argcount - 1] = lambda *arguments: lifted(call, IDENTITY, *arguments)
        return function

    return add


def over(name: str, *counts: int) -> Callable[[Make], Make]:
    """Return a decorator that registers a function of compiled arguments, which it can run on any value."""

    def add(make: Make) -> Make:
        for count in counts:
            FUNCTIONS[name, count] = make
        return make

    return add


def need(value: Any, *types: type) -> Any:
    """Return the value if it has one of these types. Raises JqError."""
    if type(value) not in types:
        raise JqError(f"cannot use {kind(value)} here")
    return value


@plain("not")
def _not(value: Any) -> bool:
    return not truth(value)


@plain("length")
def _length(value: Any) -> Any:
    if value is None:
        return 0
    if type(value) in (int, float):
        return abs(value)
    return len(need(value, str, list, dict))


@plain("has")
def _has(value: Any, key: Any) -> bool:
    if type(value) is dict and type(key) is str:
        return key in value
    if type(value) is list and type(key) is int:
        return bool(0 <= key < len(value))
    raise JqError(f"cannot look for {tojson(key)} in {kind(value)}")


@plain("contains")
def _contains(a: Any, b: Any) -> bool:
    if type(a) is type(b) is str:
        return bool(b in a)
    if type(a) is type(b) is list:
        return all(any(_contains(x, y) for x in a) for y in b)
    if type(a) is type(b) is dict:
        return all(key in a and _contains(a[key], value) for key, value in b.items())
    return compare(a, b) == 0


@plain("add")
def _add(value: Any) -> Any:
    total = None
    for item in iterate(value):
        total = arithmetic("+", total, item)
    return total


@plain("tonumber")
def _tonumber(value: Any) -> Any:
    if type(value) is str:
        try:
            value = json.loads(value)
        except ValueError:
            raise JqError(f"cannot parse {tojson(value)} as a number") from None
    return need(value, int, float)


@plain("floor")
def _floor(value: Any) -> Any:
    return value if type(need(value, int, float)) is int or not math.isfinite(value) else math.floor(value)


@plain("join")
def _join(value: Any, separator: Any) -> Any:
    items = list(iterate(value))
    if not items:
        return None if type(value) is not list else ""
    return need(separator, str).join("" if i is None else i if type(i) is str else tojson(i) for i in items)


@plain("error")
def _error(value: Any) -> Any:
    raise JqError(value)


@plain("error")
def _error_with(_value: Any, message: Any) -> Any:
    raise JqError(message)


plain("type")(lambda value: kind(value))
plain("keys")(lambda value: sorted(value) if type(value) is dict else list(range(len(need(value, list)))))
plain("keys_unsorted")(lambda value: list(value) if type(value) is dict else list(range(len(need(value, list)))))
plain("inside")(lambda a, b: bool(_contains(b, a)))
plain("tojson")(lambda value: tojson(value))
plain("tostring")(lambda value: value if type(value) is str else tojson(value))
plain("utf8bytelength")(lambda value: len(need(value, str).encode()))
plain("ascii_downcase")(lambda value: re.sub("[A-Z]", lambda m: m[0].lower(), need(value, str)))
plain("ascii_upcase")(lambda value: re.sub("[a-z]", lambda m: m[0].upper(), need(value, str)))
plain("ltrimstr")(lambda value, text: value.removeprefix(text) if type(value) is type(text) is str else value)
plain("rtrimstr")(lambda value, text: value.removesuffix(text) if type(value) is type(text) is str else value)
plain("startswith")(lambda value, text: need(value, str).startswith(need(text, str)))
plain("endswith")(lambda value, text: need(value, str).endswith(need(text, str)))
plain("trim")(lambda value: need(value, str).strip())
plain("ltrim")(lambda value: need(value, str).lstrip())
plain("rtrim")(lambda value: need(value, str).rstrip())
plain("split")(lambda value, separator: split(need(value, str), need(separator, str)))
plain("reverse")(lambda value: [] if value is None else need(value, list, str)[::-1])
plain("sort")(lambda value: sorted(need(value, list), key=KEY))
plain("unique")(lambda value: [next(group) for _, group in groupby(sorted(need(value, list), key=KEY), KEY)])
plain("min")(lambda value: min(need(value, list), key=KEY, default=None))
plain("max")(lambda value: max(reversed(need(value, list)), key=KEY, default=None))
plain("first")(lambda value: index_value(value, 0))
plain("last")(lambda value: index_value(value, -1))
plain("to_entries")(lambda value: [{"key": k, "value": v} for k, v in need(value, dict).items()])
plain("from_entries")(lambda value: {need(e.get("key", e.get("k", e.get("name"))), str): e.get("value") for e in value})
plain("flatten")(lambda value: _flat(need(value, list), math.inf))
plain("flatten")(lambda value, depth: _flat(need(value, list), depth))
plain("any")(lambda value: any(truth(item) for item in iterate(value)))
plain("all")(lambda value: all(truth(item) for item in iterate(value)))


def _flat(value: list[Any], depth: float) -> list[Any]:
    out: list[Any] = []
    for item in value:
        out.extend(_flat(item, depth - 1) if type(item) is list and depth > 0 else [item])
    return out


_NAMED = re.compile(r"(?<!\\)\(\?<(?=[A-Za-z_])")  # as in (?<name>...), which Python writes (?P<name>...)


@cache
def _pattern(text: str, flags: str) -> re.Pattern[str]:
    known = {"i": re.I, "x": re.X, "s": re.S, "g": 0, "n": 0, "l": 0}
    if not set(flags) <= set(known):
        raise JqError(f"unknown flags {flags!r} of a regular expression")
    try:
        return re.compile(_NAMED.sub("(?P<", text), sum(known[flag] for flag in set(flags)))
    except PATTERN_ERRORS as error:
        raise JqError(f"{text!r} is not a valid regular expression ({error})") from None


def _regex(value: Any, text: Any, flags: Any = "") -> tuple[re.Pattern[str], str]:
    return _pattern(need(text, str), need(flags or "", str)), need(value, str)


@plain("test")
def _test(value: Any, text: Any) -> bool:
    pattern, target = _regex(value, text)
    return pattern.search(target) is not None


@plain("test")
def _test_with(value: Any, text: Any, flags: Any) -> bool:
    pattern, target = _regex(value, text, flags)
    return pattern.search(target) is not None


def _substitute(name: str, count: int) -> None:
    @over(name, 2, 3)
    def make(text: Compiled, replacement: Compiled, flags: Compiled | None = None) -> Compiled:
        def run(variables: Variables, value: Any) -> Iterator[Any]:
            for one in text.many(variables, value):
                how = next(flags.many(variables, value), None) or "" if flags is not None else ""
                pattern, target = _regex(value, one, how)

                def put(match: re.Match[str]) -> str:
                    return str(need(next(replacement.many(variables, match.groupdict()), ""), str))

                yield pattern.sub(put, target, count=0 if "g" in how else count)

        return Compiled(run)


_substitute("sub", 1)
_substitute("gsub", 0)


def _of_kinds(name: str, *kinds: str) -> None:
    FUNCTIONS[name, 0] = lambda: Compiled(lambda _variables, value: iter((value,) if kind(value) in kinds else ()))


_of_kinds("numbers", "number")
_of_kinds("strings", "string")
_of_kinds("booleans", "boolean")
_of_kinds("nulls", "null")
_of_kinds("arrays", "array")
_of_kinds("objects", "object")
_of_kinds("iterables", "array", "object")
_of_kinds("scalars", "null", "boolean", "number", "string")
_of_kinds("values", "boolean", "number", "string", "array", "object")


@over("empty", 0)
def _empty() -> Compiled:
    return Compiled(lambda _variables, _value: iter(()))


@over("select", 1)
def _select(test: Compiled) -> Compiled:
    return Compiled(lambda variables, value: (value for one in test.many(variables, value) if truth(one)))


@over("recurse", 0)
def _recurse() -> Compiled:
    return Compiled(lambda _variables, value: iter(_all_of(value, [])))


def _all_of(value: Any, found: list[Any]) -> list[Any]:
    found.append(value)
    for item in below(value):
        _all_of(item, found)
    return found


@over("[*]", 0)
def _children() -> Compiled:
    """Return what JSONPath finds by ``[*]``."""
    return Compiled(lambda _variables, value: iter(below(value)))


@over("..*", 0)
def _descendants() -> Compiled:
    """Return what JSONPath finds by ``..*``: the children first, then what is below each."""
    return Compiled(lambda _variables, value: iter(_below_all(value)))


def _below_all(value: Any) -> list[Any]:
    children = below(value)
    return [*children, *(found for child in children for found in _below_all(child))]


@over("map", 1)
def _map(function: Compiled) -> Compiled:
    many, one, _ = function
    if one is not None:
        return single(lambda variables, value: [one(variables, item) for item in iterate(value)])
    return single(lambda variables, value: [out for item in iterate(value) for out in many(variables, item)])


@over("map_values", 1)
def _map_values(function: Compiled) -> Compiled:
    def run(variables: Variables, value: Any) -> Any:
        if type(value) is dict:
            pairs = ((key, list(islice(function.many(variables, item), 1))) for key, item in value.items())
            return {key: outputs[0] for key, outputs in pairs if outputs}
        return [out for item in iterate(value) for out in islice(function.many(variables, item), 1)]

    return single(run)


def _some(name: str, decides: bool) -> None:
    @over(name, 2)
    def two(source: Compiled, test: Compiled) -> Compiled:
        def run(variables: Variables, value: Any) -> bool:
            items = source.many(variables, value)
            outputs = (truth(one) for item in items for one in test.many(variables, item))
            return decides if any(output == decides for output in outputs) else not decides

        return single(run)

    FUNCTIONS[name, 1] = lambda test: two(Compiled(lambda _variables, value: iterate(value)), test)


_some("any", True)
_some("all", False)


@over("range", 1)
def _range(stop: Compiled) -> Compiled:
    return Compiled(lambda variables, value: (i for n in stop.many(variables, value) for i in range(_end_of(n))))


def _end_of(stop: Any) -> int:
    if need(stop, int, float) != stop:
        return 0
    if math.isinf(stop) and stop > 0:
        raise JqError("a range without end")
    return math.ceil(max(float(stop), -1.0)) if type(stop) is float else int(stop)


@over("first", 1)
def _first(source: Compiled) -> Compiled:
    return Compiled(lambda variables, value: islice(source.many(variables, value), 1))


@over("last", 1)
def _last(source: Compiled) -> Compiled:
    return Compiled(lambda variables, value: iter(list(source.many(variables, value))[-1:]))


@over("limit", 2)
def _limit(count: Compiled, source: Compiled) -> Compiled:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for n in count.many(variables, value):
            if need(n, int) > 0:
                yield from islice(source.many(variables, value), n)

    return Compiled(run)


def _keyed(function: Compiled, variables: Variables, value: Any) -> list[Any]:
    pairs = [(KEY(list(function.many(variables, item))), item) for item in need(value, list)]
    return [item for _, item in sorted(pairs, key=lambda pair: pair[0])]


@over("sort_by", 1)
def _sort_by(function: Compiled) -> Compiled:
    return single(lambda variables, value: _keyed(function, variables, value))


@over("min_by", 1)
def _min_by(function: Compiled) -> Compiled:
    return single(lambda variables, value: next(iter(_keyed(function, variables, value)), None))


@over("max_by", 1)
def _max_by(function: Compiled) -> Compiled:
    return single(lambda variables, value: next(reversed(_keyed(function, variables, value)), None))


@over("with_entries", 1)
def _with_entries(function: Compiled) -> Compiled:
    def run(variables: Variables, value: Any) -> Any:
        entries = [{"key": k, "value": v} for k, v in need(value, dict).items()]
        made = [need(e, dict) for entry in entries for e in function.many(variables, entry)]
        return {need(e.get("key"), str): e.get("value") for e in made}

    return single(run)
