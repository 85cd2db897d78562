"""Dolma's taggers of C4 as classes."""

from feedmill.curation.plugins import BuiltInTagger


class C4Tagger(BuiltInTagger, tagger="c4_v1"):
    """Lines that break a rule of C4, then the unwanted features of the document."""


class FasterC4Tagger(BuiltInTagger, tagger="c4_v2"):
    """The spans of `C4Tagger` with those of the document first."""
