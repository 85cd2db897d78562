"""Data that taggers of users receive and return: documents, spans and results. The names are those of Dolma."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from feedmill.curation.documents import Row, RowWithMetadata


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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Span) and all(
            getattr(self, name) == getattr(other, name) for name in ("start", "end", "type", "score")
        )

    def __hash__(self) -> int:
        return hash((self.start, self.end, self.type, self.score))

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
        """The characters of the slice."""
        return self.doc[self.start : self.end]
