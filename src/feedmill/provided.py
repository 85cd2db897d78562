"""Functions of higher rooms that lower ones use, by name, which the public face registers (`feedmill/__init__.py`).

A room imports no room above it, and yet a dataset has `map`, whose views lie in `samples`, and a card in notebooks,
which `web` draws. Such a function is imported by its name when it is called: most programs need few of its packages.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # see `feedmill/__init__.py`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_HOMES: dict[str, str] = {}


def register(homes: Mapping[str, str]) -> None:
    """Register functions, or modules: dotted path by name."""
    _HOMES.update(homes)


def home_of(name: str) -> str:
    """Return the dotted path of what is registered by a name."""
    return _HOMES[name]


def provided(name: str) -> Any:
    """Import a function and return it."""
    module, _, function = home_of(name).rpartition(".")
    return getattr(import_module(module), function)


def lazily(group: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose public names are imported when they are first used.

    Args:
        group: name of the package in `feedmill`.
        homes: name -> its module in `feedmill`.
    """

    def get(name: str) -> Any:
        if name in homes:
            return getattr(import_module(f"feedmill.{homes[name]}"), name)
        raise AttributeError(f"module 'feedmill.{group}' has no attribute {name!r}", name=name)

    return get, lambda: sorted(homes)
