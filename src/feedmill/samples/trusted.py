"""Code that a dataset names: loaded only where the user trusts the data.

A description may name a Python file beside it (``sample_loader: sample_loader.py:sample_loader``) or an installed
module (``__module__``). Either runs with the user's rights, so without trust each is refused with an error that says
what to read and which flag to set.
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
    """Finds the functions and classes that one description names.

    Args:
        read_meta: reads a file of the folder that the description stands in, by its path relative to that folder.
        where: path of the description; shown in errors, and its folder is where the code's path begins.
        trust: whether the user allows code to be run.
    """

    def __init__(self, read_meta: Callable[[str], bytes], where: str, trust: bool) -> None:
        self._read_meta = read_meta
        self._where = where
        self._folder = where.rpartition("/")[0]
        self._trust = trust
        self._modules: dict[str, dict[str, Any]] = {}

    def function(self, named: Any, default: str, at: str) -> Callable[..., Any]:
        """Return the function of ``file.py:function``, ``file.py`` (then `default`), or ``{__module__, __function__}``.

        Raises:
            TrustError: the user has not allowed to run code.
            ConfigError: there is no such file, module or function, or the file fails when run.
        """
        if isinstance(named, Mapping):
            return self._callable(self.member(named, "__function__", at), str(named["__function__"]), at)
        if not isinstance(named, str):
            raise ConfigError(f"expected 'file.py:function', found {named!r}", file=at, fix=f"Name {default!r}'s file.")
        file, colon, name = named.rpartition(":")
        file, name = (file, name) if colon else (named, default)
        scope = self._run(file, at)
        if name not in scope:
            raise ConfigError(f"{self._path(file)} has no function {name!r}", file=at, fix="Define it there.")
        return self._callable(scope[name], name, at)

    def member(self, named: Mapping[str, Any], kind: str, at: str) -> Any:
        """The member of an installed module that ``{__module__: ..., <kind>: ...}`` names. Raises like `function`."""
        module, name = named.get("__module__"), named.get(kind)
        if not isinstance(module, str) or not isinstance(name, str):
            raise ConfigError(f"expected '__module__' and '{kind}', found {dict(named)!r}", file=at, fix="Give both.")
        if not self._trust:
            raise TrustError(
                f"the dataset asks to run {name!r} of the Python module {module!r}",
                file=at,
                fix=f"If you trust this dataset, allow it with {FLAG}.",
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
                fix=f"Read that file, and if you trust it, allow it with {FLAG}.",
            )
        if path not in self._modules:
            try:
                source = self._read_meta(file)
            except NotFound:
                raise ConfigError(f"it names {path}, which is not there", file=at, fix="Check the path.") from None
            self._modules[path] = _execute(source, path, at)
        return self._modules[path]

    @staticmethod
    def _callable(found: Any, name: str, at: str) -> Callable[..., Any]:
        if not callable(found):
            raise ConfigError(f"{name!r} is not a function", file=at, fix="Name a function.")
        return found  # type: ignore[no-any-return]


def _execute(source: bytes, path: str, at: str) -> dict[str, Any]:
    module = ModuleType(f"feedmill_trusted_{zlib.crc32(path.encode()):08x}", f"{path}, named by a dataset")
    module.__file__ = path
    # Dataclasses look their module up by name while it runs.
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except FeedmillError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{path} fails when run: {type(error).__name__}: {error}", file=at, fix="Fix that file."
        ) from error
    return module.__dict__
