"""Dolma's taggers of Gopher as classes."""

from feedmill.curation.plugins import BuiltInTagger


class GopherTagger(BuiltInTagger, tagger="gopher_v1"): ...


class GopherTaggerV2(BuiltInTagger, tagger="gopher_v2"): ...
