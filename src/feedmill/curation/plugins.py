"""Base classes of user-defined taggers, which receive one document at a time. The names are those of Dolma.

from feedmill.curation.plugins import BaseTagger, DocResult, Document, Span, add_tagger

@add_tagger("shouting")
class Shouting(BaseTagger):
    def predict(self, doc: Document) -> DocResult:
        capitals = sum(map(str.isupper, doc.text))
        return DocResult(doc, [Span(0, len(doc.text), "capitals", capitals / max(1, len(doc.text)))])
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from feedmill.curation import registry
from feedmill.curation.documents import Batch, Row, RowWithMetadata
from feedmill.curation.sentences import sentences
from feedmill.curation.spans import attribute_name
from feedmill.errors import FeedmillError

Found = dict[str, list[tuple[int, int, float]]]
_DIGITS = 5


@dataclass
class Document:
    """Document as passed to a tagger."""

    source: str
    id: str
    text: str
    version: str | None = None

    @classmethod
    def from_spec(cls, spec: Any) -> Document:
        """Make a document from a decoded row."""
        return cls(source=spec.source, version=spec.version, id=spec.id, text=spec.text)

    def to_spec(self) -> Row:
        """Return the document as a row."""
        return Row(id=self.id, text=self.text, source=self.source, version=self.version)

    @classmethod
    def from_json(cls, d: dict[str, Any]) -> Document:
        """Make a document from what `to_json` returns."""
        return cls(**{name: d[name] for name in ("source", "version", "id", "text")})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return {"source": self.source, "version": self.version, "id": self.id, "text": self.text}

    def __str__(self) -> str:
        return f"{type(self).__name__}(source={self.source!r}, id={self.id!r}, text={self.text[:50]!r})"


@dataclass
class DocumentWithMetadata(Document):
    """Document with its metadata, which is empty if it has none."""

    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_spec(cls, spec: Any) -> DocumentWithMetadata:
        return cls(source=spec.source, version=spec.version, id=spec.id, text=spec.text, metadata=spec.metadata or {})

    def to_spec(self) -> RowWithMetadata:
        plain = super().to_spec()
        return RowWithMetadata(
            id=plain.id, text=plain.text, source=plain.source, version=plain.version, metadata=self.metadata
        )


class Span:
    """Scored range of characters: ``text[start:end]``."""

    __slots__ = ("end", "experiment", "score", "start", "tagger", "type")

    def __init__(
        self,
        start: int,
        end: int,
        type: str,
        score: float = 1.0,
        experiment: str | None = None,
        tagger: str | None = None,
    ) -> None:
        self.start, self.end, self.type, self.score = start, end, type, float(score)
        self.experiment, self.tagger = experiment, tagger

    def mention(self, text: str, window: int = 0) -> str:
        """Return the characters of the span, with up to `window` more on each side."""
        return text[max(0, self.start - window) : min(len(text), self.end + window)]

    def select(self, doc: Document) -> str:
        """Return the characters of the span in a document."""
        return doc.text[self.start : self.end]

    def to_spec(self) -> tuple[str, tuple[int, int, float]]:
        """Return the attribute's name and value.

        Raises:
            AssertionError: The span has no experiment or no tagger, so its attribute has no name (as in Dolma).
        """
        for what in ("experiment", "tagger"):
            if getattr(self, what) is None:
                raise AssertionError(f"the span has no {what}, which is part of its attribute's name")
        return f"{self.experiment}__{self.tagger}__{self.type}", (self.start, self.end, self.score)

    @classmethod
    def from_json(cls, di: dict[str, Any]) -> Span:
        """Make a span from what `to_json` returns."""
        return cls(di["start"], di["end"], di["type"], di["score"])

    def to_json(self, text: str | None = None, window: int = 0) -> dict[str, Any]:
        """Return the span as a dictionary. If `text` is given, add the characters of the span as in `mention`."""
        found = {"start": self.start, "end": self.end, "type": self.type, "score": self.score}
        return found if text is None else {**found, "mention": self.mention(text, window)}

    @classmethod
    def from_spec(cls, attribute_name: str, attribute_value: Any) -> Span:
        """Make a span from an attribute's name and one of its values."""
        parts = attribute_name.split("__", 2)
        experiment, tagger, kind = parts if len(parts) == 3 else (attribute_name,) * 3
        start, end, score = attribute_value
        return cls(int(start), int(end), kind, float(score), experiment, tagger)

    def __len__(self) -> int:
        return self.end - self.start

    def __repr__(self) -> str:
        return f"Span({self.start}, {self.end}, {self.type!r}, {self.score})"


@dataclass
class DocResult:
    """Spans that a tagger found in a document."""

    doc: Document
    spans: list[Span] = field(default_factory=list)

    @classmethod
    def from_json(cls, d: dict[str, Any]) -> DocResult:
        """Make a result from what ``to_json(with_doc=True)`` returns."""
        return cls(Document.from_json(d["doc"]), [Span.from_json(span) for span in d["spans"]])

    def to_json(self, with_doc: bool = False, window: int = 0) -> dict[str, Any]:
        """Return the spans with the characters they cover, and with `with_doc` also the document."""
        found: dict[str, Any] = {"spans": [span.to_json(self.doc.text, window) for span in self.spans]}
        return {**found, "doc": self.doc.to_json()} if with_doc else found


@dataclass
class TextSlice:
    """Part of a document. `start` and `end` are characters of the whole document."""

    doc: str
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.doc[self.start : self.end]


class BaseTagger:
    """Base class of taggers. Override `predict`."""

    FIELDS: tuple[str, ...] = ("id", "text", "source")

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
        raise NotImplementedError

    def group_output(self, predictions: DocResult) -> Found:
        """Return the spans by kind, with rounded scores."""
        found: Found = {name: [] for name in self.defaults}
        for span in predictions.spans:
            found.setdefault(span.type, []).append((span.start, span.end, round(float(span.score), _DIGITS)))
        return found

    def tag(self, row: Any) -> Found:
        """Return the row to write for one document."""
        return self.group_output(self.predict(Document.from_spec(row)))


class BaseTaggerWithMetadata(BaseTagger):
    """Base class of taggers that read the metadata of documents."""

    FIELDS = ("id", "text", "source", "metadata")

    def tag(self, row: Any) -> Found:
        return self.group_output(self.predict(DocumentWithMetadata.from_spec(row)))


class PluginTagger:
    """Adapter from a `BaseTagger` to the tagger of a job."""

    def __init__(self, inner: BaseTagger) -> None:
        self.inner = inner
        self.metadata = isinstance(inner, BaseTaggerWithMetadata)

    def fragments(self, batch: Batch, experiment: str, name: str) -> list[bytes]:
        """Return the JSON of the attributes of each document, as `feedmill.curation.spans.Spans.fragments` does.

        Raises:
            FeedmillError: The user's code failed.
        """
        found = []
        for k, row in enumerate(batch.rows):
            try:
                kinds = self.inner.tag(row)
                named = {attribute_name(experiment, name, kind): spans for kind, spans in kinds.items()}
                found.append(msgspec.json.encode(named)[1:-1])
            except FeedmillError:
                raise
            except Exception as error:  # the user's code may raise anything
                raise FeedmillError(
                    f"the tagger {name!r} failed on this document ({type(error).__name__}: {error})",
                    record=batch.place(k),
                    kind="tagger-failed",
                    fix="Fix the tagger and run again. Finished files are kept.",
                ) from error
        return found

    def tag(self, batch: Batch) -> Any:
        """Not used: `fragments` writes the attributes."""
        raise NotImplementedError


Class = TypeVar("Class", bound=type[Any])


class TaggerRegistry:
    """Registry of taggers with the interface of Dolma's registry."""

    @staticmethod
    def add(name: str, desc: str | None = None) -> Callable[[Class], Class]:  # noqa: ARG004
        """Return a decorator that registers a class. It raises `ConfigError` if another class has the name."""

        def note(cls: Class) -> Class:
            where = f"{cls.__module__}.{cls.__qualname__}"
            registry.add(name, lambda: PluginTagger(cls()) if issubclass(cls, BaseTagger) else cls(), where)
            _CLASSES[name] = cls
            return cls

        return note

    @staticmethod
    def get(name: str) -> Any:
        """Return the class registered under a name, or a factory. Raises `ConfigError` if there is none."""
        registry.check_names([name])
        return _CLASSES.get(name) or (lambda: registry.create(name))

    @staticmethod
    def has(name: str) -> bool:
        """Return whether a tagger of this name is registered."""
        return name in registry.known()

    @staticmethod
    def remove(name: str) -> bool:
        """Remove a tagger. Return whether it was a registered class."""
        registry.remove(name)
        return _CLASSES.pop(name, None) is not None

    @staticmethod
    def items() -> list[tuple[str, Any]]:
        """Return the names and classes registered through this interface."""
        return list(_CLASSES.items())


_CLASSES: dict[str, Any] = {}
add_tagger = TaggerRegistry.add


def split_paragraphs(text: str, remove_empty: bool = True) -> list[TextSlice]:
    """Return the paragraphs with their newlines, by default without blank paragraphs."""
    from feedmill.kernels.text.lengths import paragraphs

    return [TextSlice(text, low, high) for low, high, blank in paragraphs(text) if not (blank and remove_empty)]


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
