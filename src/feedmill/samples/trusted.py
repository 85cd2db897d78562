"""Load code that a dataset refers to, but only if the user trusts the dataset.

A description can refer to a Python file beside it (``sample_loader: sample_loader.py:sample_loader``) or to an
installed module (``__module__``). Such code runs with the user's permissions. Without trust, loading raises
`TrustError`, which names the code to read and the option to set.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from feedmill.errors import ConfigError, FeedmillError, NotFound, TrustError

FLAG = "trust=True (on the command line: --trust)"


class TrustedCode:
    """Loader of the functions and classes that one description refers to.

    Args:
        read_meta: Reads a file of the description's folder, by its path relative to that folder.
        where: Path of the description. Errors show it, and paths of code are relative to its folder.
        trust: Whether the user allows code to run.
    """

    def __init__(self, read_meta: Callable[[str], bytes], where: str, trust: bool) -> None:
        self._read_meta = read_meta
        self._where = where
        self._folder = where.rpartition("/")[0]
        self._trust = trust
        self._modules: dict[str, dict[str, Any]] = {}

    @property
    def folder(self) -> str:
        """Return the folder of the description."""
        return self._folder

    def function(self, named: Any, default: str, at: str) -> Callable[..., Any]:
        """Return the function of ``file.py:function``, ``file.py`` (then `default`), or ``{__module__, __function__}``.

        Raises:
            TrustError: The user has not allowed code to run.
            ConfigError: The file, module or function does not exist, or the file fails when run.
        """
        if isinstance(named, Mapping):
            return self._callable(self.member(named, "__function__", at), str(named["__function__"]), at)
        if not isinstance(named, str):
            raise ConfigError(
                f"expected 'file.py:function', found {named!r}", file=at, fix=f"Set the file that defines {default!r}."
            )
        file, colon, name = named.rpartition(":")
        file, name = (file, name) if colon else (named, default)
        scope = self._run(file, at)
        if name not in scope:
            raise ConfigError(f"{self._path(file)} has no function {name!r}", file=at, fix="Define the function there.")
        return self._callable(scope[name], name, at)

    def member(self, named: Mapping[str, Any], kind: str, at: str) -> Any:
        """Return the member of an installed module for ``{__module__: ..., <kind>: ...}``. Raises like `function`."""
        module, name = named.get("__module__"), named.get(kind)
        if not isinstance(module, str) or not isinstance(name, str):
            raise ConfigError(f"expected '__module__' and '{kind}', found {dict(named)!r}", file=at, fix="Set both.")
        if not self._trust:
            raise TrustError(
                f"the dataset asks to run {name!r} of the Python module {module!r}",
                file=at,
                fix=f"If you trust the dataset, pass {FLAG}.",
            )
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError as error:
            raise ConfigError(
                f"the Python module {module!r} cannot be imported: {error}", file=at, fix="Install it."
            ) from error
        except AttributeError:
            raise ConfigError(f"the module {module!r} has no {name!r}", file=at, fix="Check the name.") from None

    def _path(self, file: str) -> str:
        return f"{self._folder}/{file}" if self._folder else file

    def _run(self, file: str, at: str) -> dict[str, Any]:
        path = self._path(file)
        if not self._trust:
            raise TrustError(
                f"the dataset asks to run its own code in {path}",
                file=at,
                fix=f"Read that file; if you trust it, pass {FLAG}.",
            )
        if path not in self._modules:
            try:
                source = self._read_meta(file)
            except NotFound:
                raise ConfigError(f"the code file {path} does not exist", file=at, fix="Check the path.") from None
            self._modules[path] = _execute(source, path, at)
        return self._modules[path]

    @staticmethod
    def _callable(found: Any, name: str, at: str) -> Callable[..., Any]:
        if not callable(found):
            raise ConfigError(f"{name!r} is not a function", file=at, fix="Set the name of a function.")
        return found  # type: ignore[no-any-return]


def _execute(source: bytes, path: str, at: str) -> dict[str, Any]:
    module = ModuleType(f"feedmill_trusted_{zlib.crc32(path.encode()):08x}", f"{path}, referred to by a dataset")
    module.__file__ = path
    # Dataclasses look up their module by name while it runs.
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)  # noqa: S102 - only where the user allows code of the data  # nosec B102
    except FeedmillError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{path} fails when run: {type(error).__name__}: {error}", file=at, fix="Fix that file."
        ) from error
    return module.__dict__
