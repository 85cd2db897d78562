"""Python faces of Energon that take the settings of a table or of their signature, and no other words."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from feedmill.compat.energon.errors import without_effect
from feedmill.errors import ConfigError, did_you_mean
from feedmill.formats.settings import Fate, Table

Function = TypeVar("Function", bound=Callable[..., Any])


class UnknownArgument(ConfigError, TypeError):
    """A keyword that a function does not have: a `TypeError` as in Energon, with a suggestion."""


def closed(table: Table, *own: str) -> Callable[[Function], Function]:
    """Let a function take the keywords of a table: those without effect are dropped, refused and unknown ones raise.

    Args:
        table: the settings; its keywords that are used, and `own`, are parameters of the function.
        own: keywords of Feedmill.

    Raises:
        UnknownArgument: the function raises it for a keyword that is none of these.
        ConfigError: the function raises it for a refused setting.
    """

    def decorate(function: Function) -> Function:
        taken = inspect.signature(function).parameters
        known = [*own, *table.names(Fate.MAPPED, Fate.NO_EFFECT)]

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            for name, value in list(named.items()):
                setting = table.settings.get(name)
                if setting is None and name not in own:
                    raise _unknown(function, arguments, name, known)
                if setting is None or setting.fate is Fate.MAPPED:
                    continue
                if not setting.accepts(value):
                    raise ConfigError(
                        f"{function.__name__} does not support {name}={value!r:.60}: {_plain(setting.words)}",
                        kind="unsupported",
                        fix="Remove it.",
                    )
                if setting.warns and value is not None:
                    without_effect(name, _plain(setting.words), level=3)
                if name not in taken:
                    del named[name]
            return function(*arguments, **named)

        return call  # type: ignore[return-value]

    return decorate


def signed(function: Function) -> Function:
    """Let a function without ``**options`` suggest a parameter for an unknown keyword.

    Raises:
        UnknownArgument: the function raises it for a keyword that it does not have.
    """
    known = list(inspect.signature(function).parameters)

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        for name in named:
            if name not in known:
                raise _unknown(function, arguments, name, known)
        return function(*arguments, **named)

    return call  # type: ignore[return-value]


def _plain(words: str) -> str:
    return words.replace("`", "")


def _unknown(function: Callable[..., Any], arguments: tuple[Any, ...], name: str, known: list[str]) -> UnknownArgument:
    what = type(arguments[0]).__name__ if function.__name__ == "__init__" and arguments else function.__name__
    return UnknownArgument(
        f"unknown argument {name!r}: {what} has no option of this name{did_you_mean(name, known)}",
        kind="bad-option",
        fix="Remove it, or correct it.",
    )
