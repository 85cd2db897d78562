"""Compile the tree of an expression to functions of a value, and those to functions of a document.

Comparison operators of JSONPath filters. They compare the values that two paths find; see `jsonpath`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from feedmill.documents.expressions.functions import FUNCTIONS, IDENTITY, Compiled, One, Variables, lifted, single
from feedmill.documents.expressions.jq import read_jq
from feedmill.documents.expressions.jsonpath import read_path
from feedmill.documents.expressions.tree import DOCUMENT, Mentions, Node, keys_of, names_document
from feedmill.documents.expressions.values import (
    MISSING,
    JqError,
    arithmetic,
    below,
    compare,
    index_value,
    iterate,
    kind,
    tojson,
    truth,
    walk,
)
from feedmill.errors import PATTERN_ERRORS, ConfigError

Filter = Callable[[Any], list[Any]]
_NONE: Variables = {}


@cache
def compile_jq(text: str) -> Filter:
    """Return a function from a JSON value to the list of outputs; it raises `JqError` where jaq does.

    >>> compile_jq(".a | map(.n + 1)")({"a": [{"n": 1}, {"n": 2}]})
    [[2, 3]]

    Raises:
        ConfigError: Of kind ``bad-expression``, with the position of the invalid or unsupported part.
    """
    with _not_deep("jq expression", "bad-expression"):
        many, one, _ = build(read_jq(text))

    def run(value: Any) -> list[Any]:
        try:
            return list(many(_NONE, value)) if one is None else [one(_NONE, value)]
        except RecursionError:
            raise JqError("a value is nested too deeply") from None

    return run


@cache
def compile_path(text: str) -> Filter:
    """Return a function from a JSON value to the list of values that a JSONPath finds.

    >>> compile_path("$.a[?(@.n > 1)].t")({"a": [{"n": 1, "t": "x"}, {"n": 2, "t": "y"}]})
    ['y']

    Raises:
        ConfigError: The path is invalid (kind ``bad-expression``); the message has the position of the error.
    """
    with _not_deep("JSONPath", "bad-expression"):
        tree = read_path(text)
        return _on_documents(_values(tree), tree)


@cache
def compile_test(text: str) -> Callable[[Any], bool]:
    """Return a function that tests whether a JSONPath finds anything in a JSON value.

    Raises:
        ConfigError: See `compile_path`.
    """
    with _not_deep("JSONPath", "bad-expression"):
        tree = read_path(text)
        return _on_documents(_one(("exists", tree)), tree)


@cache
def compile_straight(text: str) -> Callable[[Any], Any] | None:
    """Return a function to the value at a JSONPath of plain keys and indices, or to `MISSING`; None for other paths.

    Raises:
        ConfigError: See `compile_path`.
    """
    keys = keys_of(read_path(text), "find")
    return None if keys is None else partial(walk, keys=keys)


def named_below(text: str, key: str, *, jq: bool) -> tuple[str, ...]:
    """Return the keys that an expression names directly below a key of the document, as far as they are constant.

    >>> named_below("(.attributes.a[0][2]? // 0) > 1 and (.attributes | .b)", "attributes", jq=True)
    ('a', 'b')
    >>> named_below("$.attributes[?(@.a[0][2] > 1 && !@.b)]", "attributes", jq=False)
    ('a', 'b')

    Raises:
        ConfigError: The expression is invalid.
    """
    tree = read_jq(text) if jq else read_path(text)
    return tuple(dict.fromkeys(Mentions(tree, key).named))


@contextmanager
def _not_deep(what: str, kind: str) -> Iterator[None]:
    """Refuse an expression that is nested too deeply."""
    try:
        yield
    except RecursionError:
        raise ConfigError(f"the {what} is nested too deeply", kind=kind, fix="Simplify it.") from None


def _on_documents(function: One, tree: Node) -> Callable[[Any], Any]:
    """Return a function of a document, which is also a variable if the path names it."""
    if not names_document(tree):
        return partial(function, _NONE)
    return lambda document: function({DOCUMENT[1]: document}, document)


def build(tree: Node) -> Compiled:
    """Return the function of a node."""
    return _BUILDERS[tree[0]](tree)


def _one(tree: Node) -> One:
    """Return the function of a node that always has one output."""
    one = build(tree).one
    assert one is not None
    return one


def _literal(tree: Node) -> Compiled:
    value = tree[1]
    return single(lambda _variables, _value: value)


def _variable(tree: Node) -> Compiled:
    name = tree[1]
    return single(lambda variables, _value: variables[name])


def _index(tree: Node) -> Compiled:
    keys = keys_of(tree, "index")
    if keys is None:
        of, by = build(tree[1]), build(tree[2])
        if of.one is not None and by.one is not None:
            return lifted(index_value, of, by)
        return Compiled(
            lambda variables, value: (
                index_value(one, key) for one in of.many(variables, value) for key in by.many(variables, value)
            )
        )

    def straight(_variables: Variables, value: Any) -> Any:
        for key in keys:
            value = index_value(value, key)
        return value

    return single(straight)


def _find(tree: Node) -> Compiled:
    straight = keys_of(tree, "find")
    source = IDENTITY.many if straight is not None else build(tree[1]).many
    keys = [tree[2][1]] if tree[2][0] == "literal" else tree[2][1]
    paths = [straight] if straight is not None else [[key] for key in keys]

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for one in source(variables, value):
            for path in paths:
                found = walk(one, path)
                if found is not MISSING:
                    yield found

    return Compiled(run)


def _each(tree: Node) -> Compiled:
    source = build(tree[1]).many
    return Compiled(lambda variables, value: (item for one in source(variables, value) for item in iterate(one)))


def _slice(tree: Node) -> Compiled:
    return lifted(_sliced, *(build(part or ("literal", None)) for part in tree[1:]))


def _sliced(value: Any, low: Any, high: Any) -> Any:
    if type(value) not in (list, str) or any(bound is not None and type(bound) is not int for bound in (low, high)):
        raise JqError(f"cannot slice {kind(value)} with {tojson(low)} and {tojson(high)}")
    return value[low:high]


def _part(tree: Node) -> Compiled:
    source, (start, end, step) = build(tree[1]).many, tree[2:]

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for one in source(variables, value):
            size = len(one) if isinstance(one, list) else -1
            if size < 0 or max(start, end) > size or min(start, end) < -size:
                continue
            low, high = start + size * (start < 0), end + size * (end < 0)
            yield from one[low : high or size : step]

    return Compiled(run)


def _pipe(tree: Node) -> Compiled:
    left, right = build(tree[1]), build(tree[2])
    if left is IDENTITY:
        return right
    if left.one is not None:
        first = left.one
        if right.one is not None:
            second = right.one
            return single(lambda variables, value: second(variables, first(variables, value)))
        return Compiled(lambda variables, value: right.many(variables, first(variables, value)))
    return Compiled(
        lambda variables, value: (out for one in left.many(variables, value) for out in right.many(variables, one))
    )


def _comma(tree: Node) -> Compiled:
    left, right = build(tree[1]).many, build(tree[2]).many

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        yield from left(variables, value)
        yield from right(variables, value)

    return Compiled(run)


def _alternative(tree: Node) -> Compiled:
    left, right = build(tree[1]), build(tree[2])
    first = left.one or left.maybe
    if first is not None and right.one is not None:
        second = right.one

        def either(variables: Variables, value: Any) -> Any:
            found = first(variables, value)
            return found if truth(found) else second(variables, value)

        return single(either)

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        found = False
        for one in left.many(variables, value):  # in jaq, unlike in jq, an error here is one of the whole expression
            if truth(one):
                found = True
                yield one
        if not found:
            yield from right.many(variables, value)

    return Compiled(run)


def _logic(tree: Node) -> Compiled:
    left, right, decides = build(tree[1]), build(tree[2]), tree[0] == "or"
    if left.one is not None and right.one is not None:
        first, second = left.one, right.one

        def both(variables: Variables, value: Any) -> bool:
            return decides if truth(first(variables, value)) == decides else truth(second(variables, value))

        return single(both)

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for one in left.many(variables, value):
            if truth(one) == decides:
                yield decides
            else:
                yield from (truth(other) for other in right.many(variables, value))

    return Compiled(run)


_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda b, a: compare(a, b) == 0,
    "!=": lambda b, a: compare(a, b) != 0,
    "<": lambda b, a: compare(a, b) < 0,
    "<=": lambda b, a: compare(a, b) <= 0,
    ">": lambda b, a: compare(a, b) > 0,
    ">=": lambda b, a: compare(a, b) >= 0,
}


def _binary(tree: Node) -> Compiled:
    left, right, sign = tree[1:]
    function = _ORDER.get(sign) or (lambda b, a: arithmetic(sign, a, b))
    second, first = build(right), build(left)
    if first.one is None or second.one is None:
        return Compiled(
            lambda variables, value: (
                function(b, a) for b in list(second.many(variables, value)) for a in first.many(variables, value)
            )
        )
    general = lifted(function, second, first)
    limit = _literal_number(right)
    keys = keys_of(left, "index")
    if keys and limit is not None and sign in _SIGNS and all(type(key) in (str, int) for key in keys):
        assert general.one is not None
        return single(_number_test(keys, sign, limit, general.one))
    return general


def _literal_number(tree: Node) -> int | float | None:
    """Return the value of a literal number; None for other expressions."""
    value = tree[1] if tree[0] == "literal" else None
    return value if type(value) is int or type(value) is float else None


def _number_test(keys: list[Any], sign: str, limit: float, otherwise: One) -> One:
    """Return a fast function for the most common test, the comparison of the value at a path with a number.

    Args:
        keys: The path.
        sign: The comparison.
        limit: The number.
        otherwise: Handles what is no number at the path: a missing key, an error, another kind of value.
    """
    test = _SIGNS[sign]

    # Indexing a value that is no container raises, and indexing a string gives no number: types need no check.
    def run(variables: Variables, value: Any) -> Any:
        at = value
        try:
            for key in keys:
                at = at[key]
        except (LookupError, TypeError):
            return otherwise(variables, value)
        return test(at, limit) if type(at) is float or type(at) is int else otherwise(variables, value)

    return run


def _negative(tree: Node) -> Compiled:
    return lifted(lambda value: arithmetic("-", 0, value), build(tree[1]))


def _array(tree: Node) -> Compiled:
    if tree[1] is None:
        return single(lambda _variables, _value: [])
    source = build(tree[1]).many
    return single(lambda variables, value: list(source(variables, value)))


def _object(tree: Node) -> Compiled:
    def made(*parts: Any) -> dict[str, Any]:
        if not all(type(key) is str for key in parts[::2]):
            raise JqError("the keys of objects must be strings")
        return dict(zip(parts[::2], parts[1::2], strict=True))

    return lifted(made, *(build(part) for entry in tree[1] for part in entry))


def _string(tree: Node) -> Compiled:
    def joined(*parts: Any) -> str:
        return "".join(part if type(part) is str else tojson(part) for part in parts)

    return lifted(joined, *map(build, tree[1]))


def _try(tree: Node) -> Compiled:
    many, one, _ = build(tree[1])
    caught = build(tree[2]).many if tree[2] is not None else None

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        try:
            yield from many(variables, value)
        except JqError as error:
            if caught is None:
                return
            problem = error.value
        else:
            return
        yield from caught(variables, problem)

    if one is None or caught is not None:
        return Compiled(run)

    def maybe(variables: Variables, value: Any) -> Any:
        try:
            return one(variables, value)
        except JqError:
            return None

    return Compiled(run, maybe=maybe)


def _if(tree: Node) -> Compiled:
    test, then, other = map(build, tree[1:])

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for one in test.many(variables, value):
            yield from (then if truth(one) else other).many(variables, value)

    return Compiled(run)


def _as(tree: Node) -> Compiled:
    source, name, body = build(tree[1]).many, tree[2], build(tree[3]).many
    return Compiled(
        lambda variables, value: (
            out for one in source(variables, value) for out in body({**variables, name: one}, value)
        )
    )


def _reduce(tree: Node) -> Compiled:
    source, name, start, update = build(tree[1]).many, tree[2], build(tree[3]).many, build(tree[4]).many

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for state in list(start(variables, value)):
            for one in source(variables, value):
                outputs = list(update({**variables, name: one}, state))
                if not outputs:
                    return
                state = outputs[-1]
            yield state

    return Compiled(run)


def _call(tree: Node) -> Compiled:
    return FUNCTIONS[tree[1], len(tree[2])](*map(build, tree[2]))


def _values(tree: Node) -> Callable[[Variables, Any], list[Any]]:
    """Return the function to the list of all outputs of a node, which is faster for a path of plain keys."""
    if tree[0] == "literal":
        values = [tree[1]]
        return lambda _variables, _value: values
    keys = keys_of(tree, "find")
    if keys is None:
        many = build(tree).many
        return lambda variables, value: list(many(variables, value))

    def straight(_variables: Variables, value: Any) -> list[Any]:
        found = walk(value, keys)
        return [] if found is MISSING else [found]

    return straight


def _compare(tree: Node) -> Compiled:
    left, right, sign = tree[1:]
    first, second, test = _values(left), _values(right), COMPARISONS[sign]

    def general(variables: Variables, value: Any) -> bool:
        return test(first(variables, value), second(variables, value))

    keys, limit = keys_of(left, "find"), _literal_number(right)
    if keys is None or limit is None or sign not in "<>":
        return single(general)
    return single(_number_test(keys, sign, limit, lambda _variables, _value: False))


def _filter(tree: Node) -> Compiled:
    source, test = build(tree[1]).many, _one(tree[2])

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for one in source(variables, value):
            for element in one if isinstance(one, list) else (one,):
                if test(variables, element):
                    yield element

    return Compiled(run)


def _exists(tree: Node) -> Compiled:
    """Return the test of whether a node has any output, without iterators for a plain path, or a filter on it."""
    inner = tree[1]
    keys = keys_of(inner, "find")
    if keys is not None:
        return single(lambda _variables, value: walk(value, keys) is not MISSING)
    source = keys_of(inner[1], "find") if inner[0] == "filter" else None
    if source is not None:
        return single(_any_below(source, inner[2]))
    many = build(inner).many
    return single(lambda variables, value: next(many(variables, value), MISSING) is not MISSING)


def _any_below(keys: list[Any], tree: Node) -> One:
    """Return the test of whether a filter on the value at `keys` has any output.

    A number in an object there is compared directly.
    """
    test = _one(tree)

    def run(variables: Variables, value: Any) -> bool:
        value = walk(value, keys)
        if type(value) is list:
            return any(test(variables, element) for element in value)
        return value is not MISSING and bool(test(variables, value))

    if tree[0] != "compare" or tree[3] not in "<>":
        return run
    below, limit = keys_of(tree[1], "find"), _literal_number(tree[2])
    if not below or limit is None or type(below[0]) is not str:
        return run
    return _number_test([*keys, *below], tree[3], limit, run)


def _size(tree: Node) -> Compiled:
    """Return the node of ``.length()``: the number of values, or of elements of the array that is the only value."""
    source, many = _values(tree[1]), tree[2]

    def run(variables: Variables, value: Any) -> Iterator[int]:
        found = source(variables, value)
        if found and (many or isinstance(found[0], list)):
            yield len(found if many else found[0])

    return Compiled(run)


_BUILDERS: dict[str, Callable[[Node], Compiled]] = {
    "literal": _literal,
    "identity": lambda _tree: IDENTITY,
    "variable": _variable,
    "index": _index,
    "find": _find,
    "each": _each,
    "slice": _slice,
    "part": _part,
    "pipe": _pipe,
    "comma": _comma,
    "alternative": _alternative,
    "and": _logic,
    "or": _logic,
    "binary": _binary,
    "compare": _compare,
    "negative": _negative,
    "array": _array,
    "object": _object,
    "string": _string,
    "try": _try,
    "if": _if,
    "as": _as,
    "reduce": _reduce,
    "filter": _filter,
    "exists": _exists,
    "size": _size,
    "call": _call,
}


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


def _has_size(left: list[Any], right: list[Any]) -> bool:
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
    "size": _has_size,
    "anyOf": _any_of,
    "noneOf": lambda left, right: not _any_of(left, right),
    "subsetOf": _subset,
}
