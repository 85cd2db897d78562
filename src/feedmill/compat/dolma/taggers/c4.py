"""Dolma's taggers of C4 as classes."""

from feedmill.curation.plugins import BuiltInTagger


class C4Tagger(BuiltInTagger, tagger="c4_v1"): ...


class FasterC4Tagger(BuiltInTagger, tagger="c4_v2"): ...
