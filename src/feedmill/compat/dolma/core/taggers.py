"""Dolma's base classes of taggers."""

from feedmill.curation.plugins import (
    BaseTagger,
    BaseTaggerWithMetadata,
    DocResult,
    Document,
    DocumentWithMetadata,
    Span,
    TextSlice,
)

__all__ = [
    "BaseTagger",
    "BaseTaggerWithMetadata",
    "DocResult",
    "Document",
    "DocumentWithMetadata",
    "Span",
    "TextSlice",
]
