"""Provide Dolma's import names while a user's module with taggers is loaded.

Imports like ``from dolma import add_tagger, BaseTagger`` import the modules of the package in `PACKAGE`, which has
Dolma's names. They exist only while the module is loaded. During that time they hide an installed Dolma.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from feedmill.provided import home_of

PACKAGE = home_of("dolma")
"""Imported by name, as its room is above this one: it is needed only by modules that import Dolma."""


class _Finder(MetaPathFinder, Loader):
    """Finds ``dolma.x`` as `PACKAGE` ``.x``: the module itself, not a copy."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        name = _renamed(fullname)
        if name is None or find_spec(name) is None:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        name = _renamed(module.__name__)
        assert name is not None
        sys.modules[module.__name__] = import_module(name)


def _renamed(name: str) -> str | None:
    first, dot, rest = name.partition(".")
    return f"{PACKAGE}{dot}{rest}" if first == "dolma" else None


@contextlib.contextmanager
def importable() -> Iterator[None]:
    """Return a context in which ``import dolma`` imports Feedmill's classes."""
    before = {name: module for name, module in sys.modules.items() if _renamed(name)}
    for name in before:
        del sys.modules[name]
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _renamed(name)]:
            del sys.modules[name]
        sys.modules.update(before)
