"""Functions of jq that work on values: on the input, and on one output of each argument."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby, islice, zip_longest
from typing import Any

from feedmill.documents.expressions.registry import FUNCTIONS, Make, need, number, plain
from feedmill.documents.expressions.values import (
    KEY,
    Inner,
    JqError,
    Variables,
    arithmetic,
    compare,
    index_value,
    iterate,
    kind,
    split,
    tojson,
    truth,
)
from feedmill.errors import PATTERN_ERRORS

_NAMED = re.compile(r"(?<!\\)\(\?<(?=[A-Za-z_])")  # as in (?<name>...), which Python writes (?P<name>...)


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


@plain("utf8bytelength")
def _utf8bytelength(value: Any) -> int:
    return len(need(value, str).encode())


@plain("keys")
def _keys(value: Any) -> list[Any]:
    return sorted(value) if type(value) is dict else list(range(len(need(value, list))))


@plain("keys_unsorted")
def _keys_unsorted(value: Any) -> list[Any]:
    return list(value) if type(value) is dict else list(range(len(need(value, list))))


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


@plain("inside")
def _inside(a: Any, b: Any) -> bool:
    return bool(_contains(b, a))


@plain("add")
def _add(value: Any) -> Any:
    total = None
    for item in iterate(value):
        total = arithmetic("+", total, item)
    return total


@plain("type")
def _type(value: Any) -> str:
    return kind(value)


@plain("tojson")
def _tojson(value: Any) -> str:
    return tojson(value)


@plain("fromjson")
def _fromjson(value: Any) -> Any:
    try:
        return json.loads(need(value, str))
    except ValueError as error:
        raise JqError(f"cannot parse JSON: {error}") from None


@plain("tonumber")
def _tonumber(value: Any) -> Any:
    if type(value) is str:
        try:
            value = json.loads(value)
        except ValueError:
            raise JqError(f"cannot parse {tojson(value)} as a number") from None
    return number(value)


@plain("error")
def _error(value: Any) -> Any:
    raise JqError(value)


@plain("error")
def _error_with(_value: Any, message: Any) -> Any:
    raise JqError(message)


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
plain("explode")(lambda value: [ord(c) for c in need(value, str)])
plain("implode")(lambda value: "".join(chr(need(c, int)) for c in need(value, list)))
plain("reverse")(lambda value: [] if value is None else need(value, list, str)[::-1])
plain("sort")(lambda value: sorted(need(value, list), key=KEY))
plain("unique")(lambda value: [next(group) for _, group in groupby(sorted(need(value, list), key=KEY), KEY)])
plain("min")(lambda value: min(need(value, list), key=KEY, default=None))
plain("max")(lambda value: max(reversed(need(value, list)), key=KEY, default=None))
plain("first")(lambda value: index_value(value, 0))
plain("last")(lambda value: index_value(value, -1))
plain("nth")(lambda value, n: index_value(value, n))
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


@plain("join")
def _join(value: Any, separator: Any) -> Any:
    items = list(iterate(value))
    if not items:
        return None if type(value) is not list else ""
    return need(separator, str).join("" if i is None else i if type(i) is str else tojson(i) for i in items)


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


@plain("split")
def _split_by(value: Any, text: Any, flags: Any) -> list[Any]:
    pattern, target = _regex(value, text, flags)
    cuts = [match.span() for match in pattern.finditer(target)]
    begins = [0, *(end for _, end in cuts)]
    return [target[low:high] for low, high in zip(begins, [*(start for start, _ in cuts), len(target)], strict=True)]


def _place(match: re.Match[str], group: int = 0) -> dict[str, Any]:
    start, end = match.span(group)
    return {"offset": start, "length": end - start, "string": match[group]}


def _matches(value: Any, text: Any, flags: Any = "") -> Iterator[dict[str, Any]]:
    pattern, target = _regex(value, text, flags)
    names = {number: name for name, number in pattern.groupindex.items()}
    for match in islice(pattern.finditer(target), None if "g" in (flags or "") else 1):
        groups = [k for k in range(1, pattern.groups + 1) if match[k] is not None]
        captures = [_place(match, k) | ({"name": names[k]} if k in names else {}) for k in groups]
        yield {**_place(match), "captures": captures}


def _captured(match: dict[str, Any]) -> dict[str, Any]:
    return {capture["name"]: capture["string"] for capture in match["captures"] if "name" in capture}


def _per_match(name: str, result: Callable[[dict[str, Any]], Any]) -> None:
    def make(text: Inner, flags: Inner | None = None) -> Inner:
        def run(variables: Variables, value: Any) -> Iterator[Any]:
            for one in text(variables, value):
                for how in [""] if flags is None else flags(variables, value):
                    yield from map(result, _matches(value, one, how))

        return run

    FUNCTIONS[name, 1] = FUNCTIONS[name, 2] = make


_per_match("match", lambda match: match)
_per_match("capture", _captured)
_per_match("scan", lambda match: match["string"])


def _splits(text: Inner, flags: Inner | None = None) -> Inner:
    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for one in text(variables, value):
            for how in [""] if flags is None else flags(variables, value):
                yield from _split_by(value, one, how)

    return run


FUNCTIONS["splits", 1] = FUNCTIONS["splits", 2] = _splits


@plain("transpose")
def _transpose(value: Any) -> list[Any]:
    rows = [need(row, list) for row in need(value, list)]
    return [list(column) for column in zip_longest(*rows)]


def _substitute(count: int) -> Make:
    def make(text: Inner, replacement: Inner, flags: Inner | None = None) -> Inner:
        def run(variables: Variables, value: Any) -> Iterator[Any]:
            for one in text(variables, value):
                how = next(flags(variables, value), None) or "" if flags is not None else ""
                pattern, target = _regex(value, one, how)

                def put(match: re.Match[str]) -> str:
                    return str(need(next(replacement(variables, match.groupdict()), ""), str))

                yield pattern.sub(put, target, count=0 if "g" in how else count)

        return run

    return make


FUNCTIONS["sub", 2] = FUNCTIONS["sub", 3] = _substitute(1)
FUNCTIONS["gsub", 2] = FUNCTIONS["gsub", 3] = _substitute(0)
