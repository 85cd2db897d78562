"""The taggers by name. A tagger looks at a batch of documents and gives spans; see `Tagger`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Protocol

from feedmill.curation.documents import Batch
from feedmill.curation.spans import Spans
from feedmill.errors import ConfigError


class Tagger(Protocol):
    """What the job asks of a tagger; made once for each process.

    Attributes:
        metadata: whether it reads the field ``metadata`` of documents.
    """

    metadata: bool

    def tag(self, batch: Batch) -> Spans:
        """The spans of all documents of the batch."""
        ...


class FunctionTagger:
    """A tagger that is a function from batches to spans."""

    def __init__(self, function: Callable[[Batch], Spans], metadata: bool) -> None:
        self.function = function
        self.metadata = metadata

    def tag(self, batch: Batch) -> Spans:
        return self.function(batch)


MODULES = ("lengths", "words", "c4", "gopher", "pii", "repetitions", "code", "licenses", "language", "models")
_FACTORIES: dict[str, Callable[[], Any]] = {}
_WHERE: dict[str, str] = {}


def register(*names: str, metadata: bool = False) -> Callable[[Any], Any]:
    """Decorate a function from batches to spans, or a class of taggers, with the names that users give."""

    def note(thing: Any) -> Any:
        for name in names:
            _FACTORIES[name] = thing if isinstance(thing, type) else lambda: FunctionTagger(thing, metadata)
            _WHERE[name] = f"{thing.__module__}.{thing.__qualname__}"
        return thing

    return note


def add(name: str, factory: Callable[[], Any], where: str) -> None:
    """Register what a user's module offers. Raises `ConfigError` where the name is taken by something else."""
    _load()
    if _WHERE.get(name, where) != where:
        raise ConfigError(
            f"there is a tagger {name!r} already ({_WHERE[name]}), and {where} wants the same name",
            kind="tagger-exists",
            fix="Give the new one another name.",
        )
    _FACTORIES[name] = factory
    _WHERE[name] = where


def remove(name: str) -> None:
    """Forget a tagger; nothing happens where there is none."""
    _FACTORIES.pop(name, None)
    _WHERE.pop(name, None)


def known() -> dict[str, str]:
    """Name and origin of each tagger, sorted by name."""
    _load()
    return dict(sorted(_WHERE.items()))


def check_names(names: Iterable[str]) -> None:
    """Raises `ConfigError` of kind ``no-such-tagger`` for the first name that nobody has registered."""
    _load()
    for name in names:
        if name not in _FACTORIES:
            near = difflib.get_close_matches(name, _FACTORIES, 3)
            hint = f"Did you mean {' or '.join(near)}? " if near else ""
            raise ConfigError(
                f"there is no tagger {name!r}",
                kind="no-such-tagger",
                fix=f"{hint}'feedmill tag --list' shows all; --tagger-modules brings in your own.",
            )


def create(name: str) -> Tagger:
    """A tagger ready to work. Raises `ConfigError`, and `MissingExtra` where a package is missing."""
    check_names([name])
    made: Tagger = _FACTORIES[name]()
    return made


def _load() -> None:
    for module in MODULES:
        import_module(f"feedmill.curation.taggers.{module}")
