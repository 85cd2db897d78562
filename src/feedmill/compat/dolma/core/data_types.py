"""Dolma's data types."""

from typing import Any

import msgspec

from feedmill.curation.documents import Row as InputSpec
from feedmill.curation.documents import RowWithMetadata as InputSpecWithMetadata
from feedmill.curation.plugins import DocResult, Document, DocumentWithMetadata, Span, TextSlice

__all__ = [
    "DocResult",
    "Document",
    "DocumentWithMetadata",
    "InputSpec",
    "InputSpecWithMetadata",
    "OutputSpec",
    "Span",
    "TaggerOutputDictType",
    "TaggerOutputType",
    "TaggerOutputValueType",
    "TextSlice",
]

TaggerOutputValueType = tuple[int, int, float]
TaggerOutputType = list[TaggerOutputValueType]
TaggerOutputDictType = dict[str, TaggerOutputType]


class OutputSpec(msgspec.Struct):
    """Row of an attribute file."""

    id: Any
    attributes: TaggerOutputDictType
    source: str | None = None
