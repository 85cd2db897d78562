"""Functions of higher rooms that lower ones use, by name, which the public face registers (`feedmill/__init__.py`).

A room imports no room above it, and yet a dataset has `map`, whose views lie in `samples`, and a card in notebooks,
which `web` draws. Such a function is imported by its name when it is called: most programs need few of its packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
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
