"""Dolma's taggers of Gopher as classes."""

from feedmill.curation.plugins import BuiltInTagger


class GopherTagger(BuiltInTagger, tagger="gopher_v1"):
    """Gopher's 19 signals of the document; every newline ends a line."""


class GopherTaggerV2(BuiltInTagger, tagger="gopher_v2"):
    """Gopher's 19 signals of the document; a run of newlines ends a line."""
