"""Dolma's base class of taggers with a fastText model."""

from feedmill.curation.fasttexts import BaseFastTextTagger, Prediction
from feedmill.curation.plugins import DocResult, Document, Span, TextSlice

__all__ = ["BaseFastTextTagger", "DocResult", "Document", "Prediction", "Span", "TextSlice"]
