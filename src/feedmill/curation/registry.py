"""Registry of taggers. A tagger maps a batch of documents to spans; see `Tagger`.

Users have taggers in modules of their own (`load_modules`), whose code runs when they are loaded. Dolma's import names,
such as ``from dolma import add_tagger, BaseTagger``, exist only meanwhile: they are those of the package `PACKAGE`, and
hide an installed Dolma.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import xxhash

from feedmill.curation.documents import Batch
from feedmill.curation.records import local_state
from feedmill.curation.spans import Spans
from feedmill.errors import ConfigError, NotFound, suggestion
from feedmill.provided import home_of
from feedmill.storage.hashed import hash_file

if TYPE_CHECKING:
    from feedmill.curation.models.files import Settings


class Tagger(Protocol):
    """Interface of taggers. One instance is created per process.

    Attributes:
        metadata: Whether the tagger reads the field ``metadata`` of documents.
    """

    metadata: bool

    def tag(self, batch: Batch) -> Spans:
        """Return the spans of all documents of the batch."""
        ...


class FunctionTagger(Tagger):
    """Tagger that calls a function from batches to spans."""

    def __init__(self, function: Callable[[Batch], Spans], metadata: bool) -> None:
        self.function = function
        self.metadata = metadata

    def tag(self, batch: Batch) -> Spans:
        return self.function(batch)


MODULES = ("lengths", "words", "c4", "gopher", "pii", "repetitions", "code", "starcoder", "licenses", "urls",
           "fineweb", "language", "detectors", "secrets", "models", "token_repetitions")  # fmt: skip
MODEL = "model"
"""Word of a tagger that is a model: ``model:PATH``."""
FOLDER_VARIABLE = "FEEDMILL_MODELS"
"""Environment variable with a folder of the model files that taggers need, under their original names."""

_FACTORIES: dict[str, Callable[..., Any]] = {}
_WHERE: dict[str, str] = {}
_FILES: dict[str, str] = {}
_REASONS = {"pii_presidio_v1": "it needs Presidio with a spaCy model, which runs code from the model"}
"""Taggers of Dolma that Feedmill does not provide, each with the reason."""


def register(*names: str, metadata: bool = False, file: str | None = None) -> Callable[[Any], Any]:
    """Return a decorator that registers a function from batches to spans, or a class of taggers.

    Args:
        names: Names that users can pass.
        metadata: Whether the function reads the metadata of documents.
        file: For a class that takes the path of a model or list: the name under which that file is published, or "" if
            it has no such name.
    """

    def note(thing: Any) -> Any:
        for name in names:
            _FACTORIES[name] = thing if isinstance(thing, type) else lambda: FunctionTagger(thing, metadata)
            _WHERE[name] = f"{thing.__module__}.{thing.__qualname__}"
            if file is not None:
                _FILES[name] = file
        return thing

    return note


class Choice(NamedTuple):
    """Tagger as the user selects it: ``name``, ``name=path of its model or list``, or ``model:PATH``.

    Attributes:
        settings: Of a model; None for other taggers.
    """

    name: str
    file: str | None
    settings: Settings | None = None

    @classmethod
    def parse(cls, text: str) -> Choice:
        """Parse a tagger and the path of its file.

        Raises:
            ConfigError: The tagger is unknown, its file is not given, or it takes no file; or a model's settings are
                invalid, or its name is that of another tagger.
            NotFound: The file does not exist.
        """
        name, equals, path = text.partition("=")
        if text.startswith(f"{MODEL}:"):
            return cls._of_model("", text)
        if path.startswith(f"{MODEL}:"):
            return cls._of_model(name, path)
        check_names([name], path)
        if name not in _FILES:
            if equals:
                raise ConfigError(f"the tagger {name!r} takes no file", fix=f"Write {name!r} alone.")
            return cls(name, None)
        published = _FILES[name]
        folder = os.environ.get(FOLDER_VARIABLE)
        if not equals and published and folder:
            path = os.path.join(folder, published)
        if not path:
            known_as = f", or set {FOLDER_VARIABLE} to a folder with {published!r}" if published else ""
            raise ConfigError(
                f"the tagger {name!r} requires a file; models are not downloaded",
                kind="bad-model",
                fix=f"Pass it as {name}=PATH{known_as}.",
            )
        if not os.path.isfile(path):
            raise NotFound(f"the file of the tagger {name!r} does not exist", file=path, fix=f"Pass {name}=PATH.")
        return cls(name, path)

    @classmethod
    def _of_model(cls, name: str, text: str) -> Choice:
        from feedmill.curation.models.files import find_model, name_of, parse

        path, settings = parse(text)
        find_model(path)
        name = name or name_of(path)
        _load()
        if name in _FACTORIES or name in _REASONS:
            raise ConfigError(
                f"{name!r} is the name of another tagger", kind="name-clash", fix=f"Name the model: -t NAME={text}."
            )
        return cls(name, path, settings)

    def create(self) -> Tagger:
        """Create the tagger.

        Raises:
            MissingExtra: A package is not installed.
            ConfigError: The tagger's file is invalid.
        """
        if self.settings is not None and self.file is not None:
            return self._model(self.file, self.settings)
        check_names([self.name])
        made: Tagger = _FACTORIES[self.name](self.file) if self.file else _FACTORIES[self.name]()
        return made

    def _model(self, path: str, settings: Settings) -> Tagger:
        from feedmill.curation.models.files import Settings as Every
        from feedmill.curation.models.files import bad_model, find_model
        from feedmill.curation.models.tagger import ModelTagger, load

        model = find_model(path)
        if model.kind != "fasttext":
            return ModelTagger(load(model, settings, vectors=False))
        if settings != Every():
            raise bad_model("a fastText model has no settings: it reads whole texts", path, "Write its path alone.")
        _load()
        made: Tagger = _FACTORIES["fasttext_doc"](path)
        return made

    def content(self) -> Any:
        """Return what identifies the content of its file, and the settings of a model, for fingerprints."""
        if self.settings is None or self.file is None:
            return None if self.file is None else hash_file(self.file)
        from feedmill.curation.models.files import find_model

        return {**find_model(self.file).hashes(), "settings": self.settings.deciding()}

    def state(self) -> Any:
        """Return what changes if its file is replaced."""
        if self.settings is None or self.file is None:
            return local_state(self.file)
        from feedmill.curation.models.files import find_model

        return find_model(self.file).state()


def add(name: str, factory: Callable[[], Any], where: str) -> None:
    """Register a tagger of a user's module. Raises `ConfigError` if another tagger has the name."""
    _load()
    if _WHERE.get(name, where) != where:
        raise ConfigError(
            f"the tagger name {name!r} of {where} is already used by {_WHERE[name]}",
            kind="name-clash",
            fix="Rename the new tagger.",
        )
    _FACTORIES[name] = factory
    _WHERE[name] = where


def remove(name: str) -> None:
    """Remove a tagger, if it is registered."""
    _FACTORIES.pop(name, None)
    _WHERE.pop(name, None)


def known() -> dict[str, str]:
    """Return the name and origin of each tagger, sorted by name."""
    _load()
    return dict(sorted(_WHERE.items()))


def needs_file(name: str) -> bool:
    """Return whether a tagger requires a file: ``name=path``."""
    return name in _FILES


def check_names(names: Iterable[str], path: str = "") -> None:
    """Raise `ConfigError` of kind ``no-such-tagger`` for the first name that is not registered.

    Args:
        path: the path that is given with the name; it may be that of a model.
    """
    _load()
    for name in names:
        if name in _REASONS and name not in _FACTORIES:
            raise ConfigError(
                f"Dolma's tagger {name!r} is not available in Feedmill: {_REASONS[name]}",
                kind="no-such-tagger",
                fix="Omit it, or add your own with --tagger-modules.",
            )
        if name not in _FACTORIES:
            hint = suggestion(name, _FACTORIES, most=3)
            if path:
                hint = f"A model is written {name}={MODEL}:{path}."
            raise ConfigError(
                f"unknown tagger {name!r}",
                kind="no-such-tagger",
                fix=f"{hint} 'feedmill tag --list' lists all taggers; --tagger-modules adds your own.".strip(),
            )


def create(text: str) -> Tagger:
    """Create a tagger from ``name`` or ``name=path``. Raises the errors of `Choice.parse` and `Choice.create`."""
    return Choice.parse(text).create()


def _load() -> None:
    for module in MODULES:
        import_module(f"feedmill.curation.taggers.{module}")


_loaded: dict[str, str] = {}


def load_modules(names: Iterable[str]) -> None:
    """Import modules with taggers once per process, and again if they change.

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
                _load_module(name)
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


def _load_module(name: str) -> None:
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
