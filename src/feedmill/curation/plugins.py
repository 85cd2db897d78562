"""Base classes of user-defined taggers, which receive documents. The names are those of Dolma.

from feedmill.curation.plugins import BaseTagger, DocResult, Document, Span, add_tagger

@add_tagger("shouting")
class Shouting(BaseTagger):
    def predict(self, doc: Document) -> DocResult:
        capitals = sum(map(str.isupper, doc.text))
        return DocResult(doc, [Span(0, len(doc.text), "capitals", capitals / max(1, len(doc.text)))])

A tagger that is faster on many documents at once overrides `BaseTagger.tag_batch` instead.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from feedmill.curation import registry
from feedmill.curation.documents import Batch, Row
from feedmill.curation.models.files import PREFIX
from feedmill.curation.plugin_types import DocResult, Document, DocumentWithMetadata, Span, TextSlice
from feedmill.curation.spans import attribute_name
from feedmill.errors import FeedmillError, MissingExtra

__all__ = [
    "BaseRegistry", "BaseTagger", "BaseTaggerWithMetadata", "BuiltInTagger", "DocResult", "Document",
    "DocumentWithMetadata", "Span", "TaggerRegistry", "TextSlice", "add_tagger", "split_paragraphs",
    "split_sentences", "split_words",
]  # fmt: skip

Found = dict[str, list[tuple[int, int, float]]]
_DIGITS = 5


class BaseTagger:
    """Base class of taggers. Override `predict`, or `tag_batch`.

    Attributes:
        DOCUMENT: the class of documents that the tagger receives.
    """

    FIELDS: Sequence[str] = ("id", "text", "source")
    DOCUMENT: type[Document] = Document

    @classmethod
    def train(cls, *_args: Any, **_kwargs: Any) -> Any:
        """Raise `RuntimeError`; a tagger that can be trained overrides this."""
        raise RuntimeError(f"{cls.__name__} has no training")

    @classmethod
    def test(cls, *_args: Any, **_kwargs: Any) -> Any:
        """Raise `RuntimeError`; a tagger that can be tested overrides this."""
        raise RuntimeError(f"{cls.__name__} has no test")

    @property
    def defaults(self) -> Iterable[str]:
        """Kinds that are written for every document, with an empty list if no span is found."""
        return ()

    @abstractmethod
    def predict(self, doc: Any) -> DocResult:
        """Return the spans of one document."""
        return self.tag_batch([doc])[0]

    def tag_batch(self, documents: Sequence[Any]) -> list[DocResult]:
        """Return the spans of each of several documents, about a megabyte of text. By default, call `predict`."""
        if type(self).predict is BaseTagger.predict:
            raise NotImplementedError(f"{type(self).__name__} has neither predict nor tag_batch")
        return [self.predict(document) for document in documents]

    def group_output(self, predictions: DocResult) -> Found:
        """Return the spans by kind, with rounded scores."""
        found: Found = {name: [] for name in self.defaults}
        for span in predictions.spans:
            found.setdefault(span.type, []).append((span.start, span.end, round(float(span.score), _DIGITS)))
        return found

    def tag(self, row: Any) -> Found:
        """Return the row to write for one document."""
        return self.group_output(self.predict(self.DOCUMENT.from_spec(row)))


class BaseTaggerWithMetadata(BaseTagger):
    """Base class of taggers that read the metadata of documents."""

    FIELDS = ("id", "text", "source", "metadata")
    DOCUMENT = DocumentWithMetadata


class BuiltInTagger(BaseTagger):
    """A tagger of `feedmill tag` as a class: to call it on documents, and to derive from.

    >>> built_in("char_length_v1")().predict(Document("web", "7", "Good morning.")).spans
    [Span(0, 13, 'length', 13.0)]

    Args:
        file: path of the model or list of a tagger that requires one; by default as `feedmill tag` finds it.

    Raises:
        ConfigError, NotFound, MissingExtra: the errors of `feedmill.curation.registry.create`.
    """

    name: ClassVar[str]

    def __init_subclass__(cls, *, tagger: str | None = None) -> None:
        if tagger is not None:
            cls.name = tagger

    def __init__(self, file: str | None = None) -> None:
        self.inner = registry.create(self.name if file is None else f"{self.name}={file}")
        self.DOCUMENT = DocumentWithMetadata if self.inner.metadata else Document

    def predict(self, doc: Any) -> DocResult:
        return self.tag_batch([doc])[0]

    def tag_batch(self, documents: Sequence[Any]) -> list[DocResult]:
        rows: list[Row] = [document.to_spec() for document in documents]
        spans = self.inner.tag(Batch(rows))
        results = [DocResult(document, []) for document in documents]
        columns = (spans.document, spans.kind, spans.start, spans.end, spans.score)
        for k, kind, start, end, score in zip(*(column.tolist() for column in columns), strict=True):
            results[k].spans.append(Span(start, end, spans.kinds[kind], score))
        return results


@cache
def built_in(name: str) -> type[BuiltInTagger]:
    """Return a built-in tagger as a class, or a model: ``model:PATH``. Raises `ConfigError` if it is unknown."""
    if not name.startswith(PREFIX):
        registry.check_names([name])
    return type(f"BuiltIn_{name}", (BuiltInTagger,), {"name": name})


class PluginTagger:
    """Adapter from a `BaseTagger` to the tagger of a job."""

    def __init__(self, inner: BaseTagger) -> None:
        self.inner = inner
        self.metadata = issubclass(inner.DOCUMENT, DocumentWithMetadata)
        # A class that overrides `predict` or `tag` of a base with `tag_batch` wants its own to be called.
        own = next(cls for cls in type(inner).__mro__ if vars(cls).keys() & {"predict", "tag", "tag_batch"})
        self.batched = own is not BaseTagger and "tag_batch" in vars(own)

    def fragments(self, batch: Batch, experiment: str, name: str) -> list[bytes]:
        """Return the JSON of the attributes of each document, as `feedmill.curation.spans.Spans.fragments` does.

        Raises:
            FeedmillError: The user's code failed.
        """
        place = f"line {batch.line}"
        try:
            if self.batched:
                kinds = self._batch(batch)
            else:
                kinds = []
                for k, row in enumerate(batch.rows):
                    place = batch.place(k)
                    kinds.append(self.inner.tag(row))
            return [_encoded(found, experiment, name) for found in kinds]
        except FeedmillError:
            raise
        except Exception as error:  # the user's code may raise anything
            what = f"these {len(batch):,} documents" if self.batched else "this document"
            raise FeedmillError(
                f"the tagger {name!r} failed on {what} ({type(error).__name__}: {error})",
                record=place,
                kind="function-failed",
                fix="Fix the tagger and run again. Finished files are kept.",
            ) from error

    def _batch(self, batch: Batch) -> list[Found]:
        results = self.inner.tag_batch([self.inner.DOCUMENT.from_spec(row) for row in batch.rows])
        if len(results) != len(batch):
            raise ValueError(f"tag_batch returned {len(results):,} results for {len(batch):,} documents")
        return [self.inner.group_output(result) for result in results]

    def tag(self, batch: Batch) -> Any:
        """Not used: `fragments` writes the attributes."""
        raise NotImplementedError


def _encoded(kinds: Found, experiment: str, name: str) -> bytes:
    return msgspec.json.encode({attribute_name(experiment, name, kind): spans for kind, spans in kinds.items()})[1:-1]


Class = TypeVar("Class", bound=type[Any])
Item = TypeVar("Item")


class BaseRegistry(Generic[Item]):
    """Registry of named things with Dolma's interface. Each subclass has its own entries."""

    _entries: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        cls._entries = {}

    @classmethod
    def add(cls, name: str, desc: str | None = None) -> Callable[[Class], Class]:  # noqa: ARG003
        """Return a decorator that adds a thing. It raises `ValueError` if another thing has the name."""

        def note(thing: Class) -> Class:
            if cls._entries.setdefault(name, thing) is not thing:
                raise ValueError(f"the name {name!r} is already used by {cls._entries[name]}")
            return thing

        return note

    @classmethod
    def get(cls, name: str) -> Item:
        """Return what has this name. Raises `ValueError` if there is nothing."""
        if name not in cls._entries:
            raise ValueError(f"unknown name {name!r}; known are {', '.join(sorted(cls._entries))}")
        found: Item = cls._entries[name]
        return found

    @classmethod
    def has(cls, name: str) -> bool:
        """Return whether something has this name."""
        return name in cls._entries

    @classmethod
    def remove(cls, name: str) -> bool:
        """Remove what has this name. Return whether there was something."""
        return cls._entries.pop(name, None) is not None

    @classmethod
    def items(cls) -> Iterable[tuple[str, Item]]:
        """Return all names and things, sorted by name."""
        return iter(sorted(cls._entries.items()))


class TaggerRegistry(BaseRegistry[Any]):
    """The taggers: those of users by their classes, and the built-in ones as subclasses of `BuiltInTagger`."""

    @classmethod
    def add(cls, name: str, desc: str | None = None) -> Callable[[Class], Class]:  # noqa: ARG003
        """Return a decorator that registers a class. It raises `ConfigError` if another class has the name."""

        def note(tagger: Class) -> Class:
            where = f"{tagger.__module__}.{tagger.__qualname__}"
            made = (lambda: PluginTagger(tagger())) if issubclass(tagger, BaseTagger) else tagger
            registry.add(name, made, where)
            cls._entries[name] = tagger
            return tagger

        return note

    @classmethod
    def get(cls, name: str) -> Any:
        """Return the class of a tagger. Raises `ConfigError` if there is none."""
        return cls._entries.get(name) or built_in(name)

    @classmethod
    def has(cls, name: str) -> bool:
        return name in registry.known()

    @classmethod
    def remove(cls, name: str) -> bool:
        registry.remove(name)
        return super().remove(name)

    @classmethod
    def items(cls) -> Iterable[tuple[str, Any]]:
        return ((name, cls.get(name)) for name in registry.known())


add_tagger = TaggerRegistry.add


def split_paragraphs(text: str, remove_empty: bool = True) -> list[TextSlice]:
    """Return the paragraphs with their newlines, by default without blank paragraphs."""
    found = re.finditer(r"[^\n]*\n|[^\n]+", text)
    return [TextSlice(text, *part.span()) for part in found if not remove_empty or part[0].strip()]


def sentences(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each sentence, in characters, by BlingFire. Raises `MissingExtra`."""
    try:
        from blingfire import text_to_sentences_and_offsets
    except ImportError:
        raise MissingExtra("splitting sentences requires the package blingfire", "curation") from None
    if not text:
        return []
    _, offsets = text_to_sentences_and_offsets(text)
    return [(int(low), int(high)) for low, high in offsets]


def split_sentences(text: str, remove_empty: bool = True) -> list[TextSlice]:  # noqa: ARG001 - Dolma's signature
    """Return the sentences that BlingFire finds. A blank text has one sentence, its first character.

    Raises:
        MissingExtra: The package blingfire is not installed.
    """
    return [TextSlice(text, low, high) for low, high in sentences(text)]


def split_words(text: str, remove_empty: bool = True) -> list[TextSlice]:
    """Return the words by the rules of UAX 29, by default without blank segments."""
    from feedmill.kernels.text.wordbreak import segments

    if remove_empty:
        from feedmill.curation.taggers.words import segment_places

        return [TextSlice(text, low, high) for low, high in segment_places(text)]
    found, at = [], 0
    for piece in segments(text):
        found.append(TextSlice(text, at, at + len(piece)))
        at += len(piece)
    return found
