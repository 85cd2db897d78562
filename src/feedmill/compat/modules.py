"""Modules of a peer that are made from a table: ``from feedmill.compat.energon.cache.base import Lazy``.

A module that has no code of its own is a row of the table of its face. It takes each name from where it is defined when
the name is first used.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Names = Mapping[str, str]
"""Name -> ``module:name`` of what it stands for."""


def install(package: str, modules: Mapping[str, Names], absent: Names) -> None:
    """Make modules importable below a package, which is being imported.

    Args:
        package: the package.
        modules: module, relative to the package -> its names.
        absent: name that no module has -> what to do instead.
    """
    for name in sorted(modules):  # a package precedes its modules
        full = f"{package}.{name}"
        spec = ModuleSpec(full, None, is_package=any(other.startswith(f"{name}.") for other in modules))
        module = ModuleType(full, "Names of the peer's module of this name.")
        module.__spec__ = spec
        module.__package__ = spec.parent
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        module.__dict__["__all__"] = sorted(modules[name])
        module.__dict__["__getattr__"] = partial(_named, full, modules[name], absent)
        sys.modules[full] = module
        parent, _, last = full.rpartition(".")
        if parent in sys.modules:  # else the parent has a file, which is imported when it is first used
            setattr(sys.modules[parent], last, module)


def _named(module: str, names: Names, absent: Names, name: str) -> Any:
    if name in names:
        where, _, there = names[name].partition(":")
        return getattr(import_module(where), there)
    refuse(module, absent, name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def refuse(module: str, absent: Names, name: str) -> None:
    """Raise `ImportError` for a name that the peer has and the face does not."""
    if name in absent:
        raise ImportError(f"{module} has no {name}: {absent[name]}.")
