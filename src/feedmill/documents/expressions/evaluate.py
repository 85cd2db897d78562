"""Compile the tree of a jq expression to functions that take the variables and a value, and yield outputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any

from feedmill.documents.expressions.jq import Node, Parser
from feedmill.documents.expressions.registry import FUNCTIONS
from feedmill.documents.expressions.values import (
    Inner,
    JqError,
    Variables,
    arithmetic,
    compare,
    index_value,
    iterate,
    kind,
    tojson,
    truth,
)
from feedmill.errors import ConfigError

Filter = Callable[[Any], list[Any]]


@cache
def compile_jq(text: str) -> Filter:
    """Return a function from a JSON value to the list of outputs; it raises `JqError` where jaq does.

    >>> compile_jq(".a | map(.n + 1)")({"a": [{"n": 1}, {"n": 2}]})
    [[2, 3]]

    Raises:
        ConfigError: Of kind ``bad-jq``, with the position of the invalid or unsupported part.
    """
    try:
        tree = Parser(text).whole()
        inner = build(tree, frozenset())
    except RecursionError:
        raise ConfigError("the jq expression is nested too deeply", kind="bad-jq", fix="Simplify it.") from None
    except _Unknown as error:
        raise ConfigError(
            f"Feedmill does not support {error}, used in the jq expression {text!r}",
            kind="bad-jq",
            fix=_fix(str(error)),
        ) from None

    def run(value: Any) -> list[Any]:
        try:
            return list(inner({}, value))
        except RecursionError:
            raise JqError("the expression does not end") from None

    return _number_test(tree, run) or run


_ROOT: Node = ("identity",)


def _keys(tree: Node) -> list[Any] | None:
    """Return the keys of a path that starts at the input and has only constant keys; None for other expressions."""
    keys: list[Any] = []
    while tree[0] == "index" and tree[2][0] == "literal":
        keys.insert(0, tree[2][1])
        tree = tree[1]
    return keys if keys and tree == _ROOT else None


def _number_test(tree: Node, otherwise: Filter) -> Filter | None:
    """Return a fast function, without generators, for the comparison of a path with a number; None for others.

    Args:
        tree: The expression.
        otherwise: Handles the other cases: a missing key, an error, another kind of value.
    """
    if tree[0] != "binary" or tree[3] not in _SIGNS or tree[2][0] != "literal":
        return None
    keys, limit, test = _keys(tree[1]), tree[2][1], _SIGNS[tree[3]]
    if keys is None or type(limit) not in (int, float) or not all(type(key) in (str, int) for key in keys):
        return None

    # The other cases raise, or do not find a number.
    def run(value: Any) -> list[Any]:
        at = value
        try:
            for key in keys:
                at = at[key]
        except (LookupError, TypeError):
            return otherwise(value)
        return [test(at, limit)] if type(at) is float or type(at) is int else otherwise(value)

    return run


_NEITHER = ("IN", "getpath", "index", "inputs", "$ENV")
"""Functions that Dolma's jq does not have either."""


def _fix(what: str) -> str:
    if what.partition("/")[0] in _NEITHER:
        return "Dolma does not support it either. See docs/filter.md for the supported functions."
    return (
        "If it is a function of jq, Dolma may support it. See docs/filter.md for the functions that Feedmill supports."
    )


class _Unknown(Exception):
    pass


def build(tree: Node, names: frozenset[str]) -> Inner:
    """Return the function of a node; `names` are the variables that are bound around it."""
    return _BUILDERS[tree[0]](tree, names)


def _literal(tree: Node, _names: frozenset[str]) -> Inner:
    value = tree[1]
    return lambda _variables, _value: iter((value,))


def _identity(_tree: Node, _names: frozenset[str]) -> Inner:
    return lambda _variables, value: iter((value,))


def _variable(tree: Node, names: frozenset[str]) -> Inner:
    name = tree[1]
    if name not in names:
        raise _Unknown(name)
    return lambda variables, _value: iter((variables[name],))


def _index(tree: Node, names: frozenset[str]) -> Inner:
    keys = _keys(tree)
    if keys is not None:

        def straight(_variables: Variables, value: Any) -> Iterator[Any]:
            for key in keys:
                value = index_value(value, key)
            return iter((value,))

        return straight
    of, by = build(tree[1], names), build(tree[2], names)

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for one in of(variables, value):
            for key in by(variables, value):
                yield index_value(one, key)

    return run


def _each(tree: Node, names: frozenset[str]) -> Inner:
    source = build(tree[1], names)
    return lambda variables, value: (item for one in source(variables, value) for item in iterate(one))


def _slice(tree: Node, names: frozenset[str]) -> Inner:
    source, *bounds = (build(part or ("literal", None), names) for part in tree[1:])

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for one in source(variables, value):
            for low, high in product(*(list(bound(variables, value)) for bound in bounds)):
                if type(one) not in (list, str) or any(b is not None and type(b) is not int for b in (low, high)):
                    raise JqError(f"cannot slice {kind(one)} with {tojson(low)} and {tojson(high)}")
                yield one[low:high]

    return run


def _pipe(tree: Node, names: frozenset[str]) -> Inner:
    left, right = build(tree[1], names), build(tree[2], names)
    return lambda variables, value: (out for one in left(variables, value) for out in right(variables, one))


def _comma(tree: Node, names: frozenset[str]) -> Inner:
    left, right = build(tree[1], names), build(tree[2], names)

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        yield from left(variables, value)
        yield from right(variables, value)

    return run


def _alternative(tree: Node, names: frozenset[str]) -> Inner:
    left, right = build(tree[1], names), build(tree[2], names)

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        found = False
        for one in left(variables, value):  # in jaq, unlike in jq, an error here is an error of the whole expression
            if truth(one):
                found = True
                yield one
        if not found:
            yield from right(variables, value)

    return run


def _logic(tree: Node, names: frozenset[str]) -> Inner:
    left, right = build(tree[1], names), build(tree[2], names)
    decides = tree[0] == "or"

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for one in left(variables, value):
            if truth(one) == decides:
                yield decides
            else:
                yield from (truth(other) for other in right(variables, value))

    return run


_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ORDER: dict[str, Callable[[int], bool]] = {
    "==": lambda c: c == 0,
    "!=": lambda c: c != 0,
    "<": lambda c: c < 0,
    "<=": lambda c: c <= 0,
    ">": lambda c: c > 0,
    ">=": lambda c: c >= 0,
}


def _binary(tree: Node, names: frozenset[str]) -> Inner:
    left, right, sign = build(tree[1], names), build(tree[2], names), tree[3]
    test = _ORDER.get(sign)

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for b in list(right(variables, value)):
            for a in left(variables, value):
                yield test(compare(a, b)) if test is not None else arithmetic(sign, a, b)

    return run


def _negative(tree: Node, names: frozenset[str]) -> Inner:
    source = build(tree[1], names)
    return lambda variables, value: (arithmetic("-", 0, one) for one in source(variables, value))


def _array(tree: Node, names: frozenset[str]) -> Inner:
    if tree[1] is None:
        return lambda _variables, _value: iter(([],))
    source = build(tree[1], names)
    return lambda variables, value: iter((list(source(variables, value)),))


def _object(tree: Node, names: frozenset[str]) -> Inner:
    entries = [(build(key, names), build(value, names)) for key, value in tree[1]]

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        outputs = [list(f(variables, value)) for entry in entries for f in entry]
        for chosen in product(*outputs):
            if not all(type(key) is str for key in chosen[::2]):
                raise JqError("the keys of objects must be strings")
            yield dict(zip(chosen[::2], chosen[1::2], strict=True))

    return run


def _string(tree: Node, names: frozenset[str]) -> Inner:
    parts = [build(part, names) for part in tree[1]]

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for chosen in product(*(list(part(variables, value)) for part in parts)):
            yield "".join(one if type(one) is str else tojson(one) for one in chosen)

    return run


def _try(tree: Node, names: frozenset[str]) -> Inner:
    body = build(tree[1], names)
    caught = build(tree[2], names) if tree[2] is not None else None

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        try:
            yield from body(variables, value)
        except JqError as error:
            if caught is None:
                return
            problem = error.value
        else:
            return
        yield from caught(variables, problem)

    return run


def _if(tree: Node, names: frozenset[str]) -> Inner:
    test, then, other = (build(part, names) for part in tree[1:])

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for one in test(variables, value):
            yield from (then if truth(one) else other)(variables, value)

    return run


def _as(tree: Node, names: frozenset[str]) -> Inner:
    source, name, body = build(tree[1], names), tree[2], build(tree[3], names | {tree[2]})
    return lambda variables, value: (
        out for one in source(variables, value) for out in body({**variables, name: one}, value)
    )


def _fold(tree: Node, names: frozenset[str]) -> Inner:
    source, name = build(tree[1], names), tree[2]
    start = build(tree[3][0], names)
    update, *extract = (build(part, names | {name}) for part in tree[3][1:])

    def run(variables: Variables, value: Any) -> Iterator[Any]:
        for state in list(start(variables, value)):
            for one in source(variables, value):
                bound = {**variables, name: one}
                outputs = list(update(bound, state))
                if not outputs:
                    return
                state = outputs[-1]
                if tree[0] == "foreach":
                    yield from extract[0](bound, state) if extract else (state,)
            if tree[0] == "reduce":
                yield state

    return run


def _call(tree: Node, names: frozenset[str]) -> Inner:
    name, arguments = tree[1], tree[2]
    make = FUNCTIONS.get((name, len(arguments)))
    if make is None:
        raise _Unknown(f"{name}/{len(arguments)}")
    return make(*(build(argument, names) for argument in arguments))


_BUILDERS: dict[str, Callable[[Node, frozenset[str]], Inner]] = {
    "literal": _literal,
    "identity": _identity,
    "variable": _variable,
    "index": _index,
    "each": _each,
    "slice": _slice,
    "pipe": _pipe,
    "comma": _comma,
    "alternative": _alternative,
    "and": _logic,
    "or": _logic,
    "binary": _binary,
    "negative": _negative,
    "array": _array,
    "object": _object,
    "string": _string,
    "try": _try,
    "if": _if,
    "as": _as,
    "reduce": _fold,
    "foreach": _fold,
    "call": _call,
}
