"""Dolma's taggers of quality as classes."""

from feedmill.curation.plugins import BuiltInTagger


class DclmQualityClassifier(BuiltInTagger, tagger="dclm-oh-eli5"): ...


class Dolma17QualityClassifier(BuiltInTagger, tagger="dolma17-quality"): ...
