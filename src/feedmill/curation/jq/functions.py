"""The functions that jq expressions can call, by name and number of arguments."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby, islice, product
from typing import Any

from feedmill.curation.jq.compile import Inner, Variables, index_value, iterate
from feedmill.curation.jq.values import KEY, JqError, arithmetic, compare, kind, split, tojson, truth

Make = Callable[..., Inner]
FUNCTIONS: dict[tuple[str, int], Make] = {}
_NAMED = re.compile(r"(?<!\\)\(\?<(?=[A-Za-z_])")  # as in (?<name>...), which Python writes (?P<name>...)


def _plain(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of the input and of one output of each argument; what it cannot work on is an error of jq's."""

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


def _filter(name: str, count: int) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        FUNCTIONS[name, count] = make
        return make

    return add


def _need(value: Any, *types: type) -> Any:
    if type(value) not in types:
        raise JqError(f"cannot use {kind(value)} here")
    return value


def _number(value: Any) -> Any:
    return _need(value, int, float)


@_plain("not")
def _not(value: Any) -> bool:
    return not truth(value)


@_plain("length")
def _length(value: Any) -> Any:
    if value is None:
        return 0
    if type(value) in (int, float):
        return abs(value)
    return len(_need(value, str, list, dict))


@_plain("utf8bytelength")
def _utf8bytelength(value: Any) -> int:
    return len(_need(value, str).encode())


@_plain("keys")
def _keys(value: Any) -> list[Any]:
    return sorted(value) if type(value) is dict else list(range(len(_need(value, list))))


@_plain("keys_unsorted")
def _keys_unsorted(value: Any) -> list[Any]:
    return list(value) if type(value) is dict else list(range(len(_need(value, list))))


@_plain("has")
def _has(value: Any, key: Any) -> bool:
    if type(value) is dict and type(key) is str:
        return key in value
    if type(value) is list and type(key) is int:
        return bool(0 <= key < len(value))
    raise JqError(f"cannot look for {tojson(key)} in {kind(value)}")


@_plain("contains")
def _contains(a: Any, b: Any) -> bool:
    if type(a) is type(b) is str:
        return bool(b in a)
    if type(a) is type(b) is list:
        return all(any(_contains(x, y) for x in a) for y in b)
    if type(a) is type(b) is dict:
        return all(key in a and _contains(a[key], value) for key, value in b.items())
    return compare(a, b) == 0


@_plain("inside")
def _inside(a: Any, b: Any) -> bool:
    return bool(_contains(b, a))


@_plain("add")
def _add(value: Any) -> Any:
    total = None
    for item in iterate(value):
        total = arithmetic("+", total, item)
    return total


@_plain("type")
def _type(value: Any) -> str:
    return kind(value)


@_plain("tojson")
def _tojson(value: Any) -> str:
    return tojson(value)


@_plain("fromjson")
def _fromjson(value: Any) -> Any:
    try:
        return json.loads(_need(value, str))
    except ValueError as error:
        raise JqError(f"cannot parse JSON: {error}") from None


@_plain("tostring")
def _tostring(value: Any) -> str:
    return value if type(value) is str else tojson(value)


@_plain("tonumber")
def _tonumber(value: Any) -> Any:
    if type(value) is str:
        try:
            value = json.loads(value)
        except ValueError:
            raise JqError(f"cannot parse {tojson(value)} as a number") from None
    return _number(value)


@_plain("error")
def _error(value: Any) -> Any:
    raise JqError(value)


@_plain("error")
def _error_with(_value: Any, message: Any) -> Any:
    raise JqError(message)


def _rounded(function: Callable[[float], int]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        return value if type(_number(value)) is int or not math.isfinite(value) else function(value)

    return run


_plain("floor")(lambda value: _rounded(math.floor)(value))
_plain("ceil")(lambda value: _rounded(math.ceil)(value))
_plain("round")(lambda value: _rounded(lambda x: math.floor(abs(x) + 0.5) * (1 if x >= 0 else -1))(value))
_plain("fabs")(lambda value: float(abs(_number(value))))
_plain("abs")(lambda value: abs(_number(value)))
_plain("sqrt")(lambda value: math.sqrt(_number(value)) if value >= 0 else math.nan)
_plain("log")(lambda value: math.log(_number(value)) if value > 0 else -math.inf if value == 0 else math.nan)
_plain("log2")(lambda value: math.log2(_number(value)) if value > 0 else -math.inf if value == 0 else math.nan)
_plain("log10")(lambda value: math.log10(_number(value)) if value > 0 else -math.inf if value == 0 else math.nan)
_plain("exp")(lambda value: _exp(_number(value)))
_plain("pow")(lambda value, a, b: _power(_number(a), _number(b)))  # noqa: ARG005
_plain("isnan")(lambda value: _number(value) != value)
_plain("ascii_downcase")(lambda value: re.sub("[A-Z]", lambda m: m[0].lower(), _need(value, str)))
_plain("ascii_upcase")(lambda value: re.sub("[a-z]", lambda m: m[0].upper(), _need(value, str)))
_plain("ltrimstr")(lambda value, text: value.removeprefix(text) if type(value) is type(text) is str else value)
_plain("rtrimstr")(lambda value, text: value.removesuffix(text) if type(value) is type(text) is str else value)
_plain("startswith")(lambda value, text: _need(value, str).startswith(_need(text, str)))
_plain("endswith")(lambda value, text: _need(value, str).endswith(_need(text, str)))
_plain("trim")(lambda value: _need(value, str).strip())
_plain("ltrim")(lambda value: _need(value, str).lstrip())
_plain("rtrim")(lambda value: _need(value, str).rstrip())
_plain("split")(lambda value, separator: split(_need(value, str), _need(separator, str)))
_plain("explode")(lambda value: [ord(c) for c in _need(value, str)])
_plain("implode")(lambda value: "".join(chr(_need(c, int)) for c in _need(value, list)))
_plain("reverse")(lambda value: [] if value is None else _need(value, list, str)[::-1])
_plain("sort")(lambda value: sorted(_need(value, list), key=KEY))
_plain("unique")(lambda value: [next(group) for _, group in groupby(sorted(_need(value, list), key=KEY), KEY)])
_plain("min")(lambda value: min(_need(value, list), key=KEY, default=None))
_plain("max")(lambda value: max(reversed(_need(value, list)), key=KEY, default=None))
_plain("first")(lambda value: index_value(value, 0))
_plain("last")(lambda value: index_value(value, -1))
_plain("nth")(lambda value, n: index_value(value, n))
_plain("to_entries")(lambda value: [{"key": k, "value": v} for k, v in _need(value, dict).items()])
_plain("from_entries")(
    lambda value: {_need(e.get("key", e.get("k", e.get("name"))), str): e.get("value") for e in value}
)
_plain("flatten")(lambda value: _flat(_need(value, list), math.inf))
_plain("flatten")(lambda value, depth: _flat(_need(value, list), depth))
_plain("any")(lambda value: any(truth(item) for item in iterate(value)))
_plain("all")(lambda value: all(truth(item) for item in iterate(value)))
_plain("infinite")(lambda value: math.inf)  # noqa: ARG005
_plain("nan")(lambda value: math.nan)  # noqa: ARG005


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _power(a: float, b: float) -> float:
    """As processors do it, where Python raises: infinity, or not a number."""
    try:
        power = float(a) ** b
    except (OverflowError, ZeroDivisionError):
        negative = math.copysign(1.0, a) < 0 and float(b).is_integer() and float(b) % 2 == 1
        return -math.inf if negative else math.inf
    return math.nan if isinstance(power, complex) else power


def _flat(value: list[Any], depth: float) -> list[Any]:
    out: list[Any] = []
    for item in value:
        out.extend(_flat(item, depth - 1) if type(item) is list and depth > 0 else [item])
    return out


@_plain("join")
def _join(value: Any, separator: Any) -> Any:
    items = list(iterate(value))
    if not items:
        return None if type(value) is not list else ""
    return _need(separator, str).join("" if i is None else i if type(i) is str else tojson(i) for i in items)


@cache
def _pattern(text: str, flags: str) -> re.Pattern[str]:
    known = {"i": re.I, "x": re.X, "s": re.S, "g": 0, "n": 0, "l": 0}
    if not set(flags) <= set(known):
        raise JqError(f"flags {flags!r} of a regular expression are not known")
    try:
        return re.compile(_NAMED.sub("(?P<", text), sum(known[flag] for flag in set(flags)))
    except re.error as error:
        raise JqError(f"{text!r} is no regular expression ({error})") from None


def _regex(value: Any, text: Any, flags: Any = "") -> tuple[re.Pattern[str], str]:
    return _pattern(_need(text, str), _need(flags or "", str)), _need(value, str)


@_plain("test")
def _test(value: Any, text: Any) -> bool:
    pattern, target = _regex(value, text)
    return pattern.search(target) is not None


@_plain("test")
def _test_with(value: Any, text: Any, flags: Any) -> bool:
    pattern, target = _regex(value, text, flags)
    return pattern.search(target) is not None


@_plain("split")
def _split_by(value: Any, text: Any, flags: Any) -> list[Any]:
    pattern, target = _regex(value, text, flags)
    cuts = [match.span() for match in pattern.finditer(target)]
    begins = [0, *(end for _, end in cuts)]
    return [target[low:high] for low, high in zip(begins, [*(start for start, _ in cuts), len(target)], strict=True)]


def _substitute(count: int) -> Make:
    def make(text: Inner, replacement: Inner, flags: Inner | None = None) -> Inner:
        def run(variables: Variables, value: Any) -> Iterator[Any]:
            for one in text(variables, value):
                how = next(flags(variables, value), None) or "" if flags is not None else ""
                pattern, target = _regex(value, one, how)

                def put(match: re.Match[str]) -> str:
                    return str(_need(next(replacement(variables, match.groupdict()), ""), str))

                yield pattern.sub(put, target, count=0 if "g" in how else count)

        return run

    return make


FUNCTIONS["sub", 2] = FUNCTIONS["sub", 3] = _substitute(1)
FUNCTIONS["gsub", 2] = FUNCTIONS["gsub", 3] = _substitute(0)


@_filter("empty", 0)
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


@_filter("select", 1)
def _select(test: Inner) -> Inner:
    return lambda variables, value: (value for one in test(variables, value) if truth(one))


@_filter("recurse", 0)
def _recurse() -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        yield value
        if type(value) in (list, dict):
            for item in iterate(value):
                yield from run(variables, item)

    return run


@_filter("map", 1)
def _map(function: Inner) -> Inner:
    return lambda variables, value: iter(([out for item in iterate(value) for out in function(variables, item)],))


@_filter("map_values", 1)
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


@_filter("range", 1)
def _range(stop: Inner) -> Inner:
    return lambda variables, value: (i for n in stop(variables, value) for i in range(_end_of(n)))


def _end_of(number: Any) -> int:
    if _number(number) != number:
        return 0
    if math.isinf(number) and number > 0:
        raise JqError("a range without end")
    return math.ceil(max(float(number), -1.0)) if type(number) is float else int(number)


@_filter("range", 2)
def _range_from(start: Inner, stop: Inner) -> Inner:
    return lambda variables, value: (
        i for a in start(variables, value) for b in stop(variables, value) for i in range(_need(a, int), _need(b, int))
    )


@_filter("first", 1)
def _first(source: Inner) -> Inner:
    return lambda variables, value: islice(source(variables, value), 1)


@_filter("last", 1)
def _last(source: Inner) -> Inner:
    return lambda variables, value: iter(list(source(variables, value))[-1:])


@_filter("limit", 2)
def _limit(count: Inner, source: Inner) -> Inner:
    return lambda variables, value: (
        out for n in count(variables, value) for out in islice(source(variables, value), max(0, _need(n, int)))
    )


def _keyed(function: Inner, variables: Variables, value: Any) -> list[tuple[Any, Any]]:
    pairs = [(KEY(list(function(variables, item))), item) for item in _need(value, list)]
    return sorted(pairs, key=lambda pair: pair[0])


@_filter("sort_by", 1)
def _sort_by(function: Inner) -> Inner:
    return lambda variables, value: iter(([item for _, item in _keyed(function, variables, value)],))


@_filter("group_by", 1)
def _group_by(function: Inner) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        yield [[item for _, item in group] for _, group in groupby(_keyed(function, variables, value), lambda p: p[0])]

    return run


@_filter("unique_by", 1)
def _unique_by(function: Inner) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        yield [next(group)[1] for _, group in groupby(_keyed(function, variables, value), lambda p: p[0])]

    return run


@_filter("min_by", 1)
def _min_by(function: Inner) -> Inner:
    return lambda variables, value: iter((_end(_keyed(function, variables, value), 0),))


@_filter("max_by", 1)
def _max_by(function: Inner) -> Inner:
    return lambda variables, value: iter((_end(_keyed(function, variables, value), -1),))


def _end(pairs: list[tuple[Any, Any]], at: int) -> Any:
    return pairs[at][1] if pairs else None


@_filter("with_entries", 1)
def _with_entries(function: Inner) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        entries = [{"key": k, "value": v} for k, v in _need(value, dict).items()]
        made = [_need(e, dict) for entry in entries for e in function(variables, entry)]
        yield {_need(e.get("key"), str): e.get("value") for e in made}

    return run
