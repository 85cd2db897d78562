"""Load the user's modules with taggers. Loading a module runs its code.

Provide Dolma's import names while a user's module with taggers is loaded.

Imports like ``from dolma import add_tagger, BaseTagger`` import the modules of the package in `PACKAGE`, which has
Dolma's names. They exist only while the module is loaded. During that time they hide an installed Dolma.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import xxhash

from feedmill.errors import ConfigError
from feedmill.provided import home_of

_loaded: dict[str, str] = {}


def load_modules(names: Iterable[str]) -> None:
    """Import modules once per process, and again if they change.

    Dolma's import names are available while a module is loaded.

    Args:
        names: Names of modules, or paths of ``.py`` files or package folders.

    Raises:
        ConfigError: A module does not exist or fails to load (kind ``bad-module``).
    """
    for name in names:
        if name in _loaded and _loaded[name] == module_hashes([name])[name]:
            continue
        try:
            with importable():
                _load(name)
        except ConfigError:
            raise
        except ImportError as error:
            raise _not_importable(name, error) from error
        except Exception as error:  # the user's code may raise anything
            raise ConfigError(
                f"the module with taggers failed to load ({type(error).__name__}: {error})",
                file=name,
                kind="bad-module",
                fix="Fix the module, or install what it imports.",
            ) from error
        _loaded[name] = module_hashes([name])[name]


def _not_importable(name: str, error: ImportError) -> ConfigError:
    what = f"the module with taggers failed to load ({type(error).__name__}: {error})"
    fix = "Fix the module, or install what it imports."
    if (error.name or "").startswith(("dolma.", f"{PACKAGE}.")):
        what = f"the module imports a part of Dolma that Feedmill does not have ({error})"
        fix = "See 'What is unsupported' in docs/internals/dolma.md for what to use instead."
    return ConfigError(what, file=name, kind="bad-module", fix=fix)


def module_hashes(names: Iterable[str]) -> dict[str, str]:
    """Return the hash of each module's source, or of a whole package.

    Attributes are computed again if the hash of their tagger's module changes.
    """
    hashes = {}
    for name in names:
        path = name if os.path.exists(name) else getattr(sys.modules.get(name), "__file__", None) or ""
        if os.path.basename(path) == "__init__.py":
            path = os.path.dirname(path)
        state = xxhash.xxh3_128()
        for source in _sources(path) if os.path.isdir(path) else [path] if os.path.isfile(path) else []:
            if source != path:
                state.update(f"{os.path.relpath(source, path)}\0".encode())
            with open(source, "rb") as f:
                state.update(f.read())
        hashes[name] = state.hexdigest()
    return hashes


def _sources(folder: str) -> list[str]:
    """Return the Python files of a package and its subpackages, sorted."""
    return sorted(glob.glob(os.path.join(glob.escape(folder), "**", "*.py"), recursive=True))


def _forget(name: str) -> None:
    """Remove a module and its submodules, so that they are imported again."""
    for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]


def _load(name: str) -> None:
    if not (name.endswith(".py") or os.sep in name or os.path.isdir(name)):
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        if name in _loaded:
            _forget(name)
            importlib.invalidate_caches()
        importlib.import_module(name)
        return
    path = os.path.join(name, "__init__.py") if os.path.isdir(name) else name
    if not os.path.isfile(path):
        raise ConfigError("module with taggers not found", file=name, kind="bad-module", fix="Check the path.")
    stem = os.path.basename(os.path.normpath(name)).removesuffix(".py")
    key = f"feedmill_user_{hashlib.sha256(os.path.abspath(path).encode()).hexdigest()[:8]}_{stem}"
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _forget(key)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        raise


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
