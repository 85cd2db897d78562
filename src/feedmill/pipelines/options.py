"""The options of a step against the signature of its verb's function: names, types, and what is required."""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

_WORDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "nothing",
}


class _Names(dict[str, Any]):
    """The names of a module; those that are imported for type checkers only stand for a type that no option has."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, _Unavailable)


class _Unavailable:
    """A type that is not imported."""


def types_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type of each parameter of a function; `Any` without annotation."""
    function = inspect.unwrap(function)
    hints = get_type_hints(function, localns=_Names(vars(sys.modules[function.__module__])))
    return {name: hints.get(name, Any) for name in inspect.signature(function).parameters}


def accepts(value: Any, hint: Any) -> bool:
    """Return whether a value of YAML or JSON is of a type. A text is accepted where a list of paths is."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(accepts(value, one) for one in arguments)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in arguments)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return isinstance(value, list) and len(value) == len(arguments) and all(map(accepts, value, arguments))
    if _is_of(origin, Mapping):
        key, item = arguments
        return isinstance(value, dict) and all(accepts(k, key) and accepts(v, item) for k, v in value.items())
    if _is_of(origin, Iterable):
        if isinstance(value, str):
            return any("PathLike" in str(one) for one in arguments)
        return isinstance(value, list) and all(accepts(item, arguments[0]) for item in value)
    if dataclasses.is_dataclass(hint):
        return isinstance(value, dict) and not isinstance(converted(value, hint), dict)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint in (str, bool, type(None)) and isinstance(value, hint)


def converted(value: Any, hint: Any) -> Any:
    """Return a value with a mapping as the dataclass that a parameter has, such as a `MediaFilter`; else unchanged."""
    for one in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        if isinstance(value, dict) and dataclasses.is_dataclass(one):
            try:
                return msgspec.convert(value, one)
            except msgspec.ValidationError:
                continue
    return value


def described(hint: Any) -> str:
    """Return words for a type: ``a list of texts, or nothing``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        words = dict.fromkeys(described(one) for one in arguments if "PathLike" not in str(one) or get_origin(one))
        return ", or ".join(word for word in words if word)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return f"a list of {len(arguments)} values"
    if _is_of(origin, Mapping):
        return "a mapping"
    if _is_of(origin, Iterable):
        item = described(arguments[0]).split(", or ")[0]
        return f"a list of {item.removeprefix('a ')}s" if item.startswith("a ") else "a list"
    if dataclasses.is_dataclass(hint):
        return "a mapping with the keys " + ", ".join(field.name for field in dataclasses.fields(hint))
    return _WORDS.get(hint, "")


def _is_of(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)


def problems(function: Callable[..., Any], options: Mapping[Any, Any], given: Sequence[str]) -> list[tuple[str, str]]:
    """Return what is wrong with options: the name of each, and the problem with it.

    Args:
        function: the function of the verb.
        options: values from YAML or JSON, all with names of parameters.
        given: names of parameters that are given otherwise.
    """
    hints = types_of(function)
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in options:
            value, hint = options[name], hints[name]
            if not accepts(value, hint):
                is_text = not isinstance(value, str | list | dict | None) and accepts(str(value), hint)
                quotes = f' Write it in quotes: "{str(value)[:40]}".' if is_text else ""
                found.append((name, f"is {_short(value)}: expected {described(hint) or 'another value'}.{quotes}"))
        elif (
            parameter.default is parameter.empty
            and name not in given
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        ):
            words = described(hints[name])
            found.append((name, f"is missing, and the verb requires it{f': {words}' if words else ''}."))
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
