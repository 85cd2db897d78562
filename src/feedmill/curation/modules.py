"""Load the user's modules with taggers. Loading a module runs its code."""

from __future__ import annotations

import glob
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable

import xxhash

from feedmill.curation.dolma_api import PACKAGE, importable
from feedmill.errors import ConfigError

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
