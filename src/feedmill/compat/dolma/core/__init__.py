"""Dolma's core module: its base classes and data types."""

from feedmill.curation.plugins import BaseTagger, DocResult, Document, Span, TaggerRegistry

__all__ = ["BaseTagger", "DocResult", "Document", "Span", "TaggerRegistry"]
