"""Dolma's taggers of quality as classes."""

from feedmill.curation.plugins import BuiltInTagger


class DclmQualityClassifier(BuiltInTagger, tagger="dclm-oh-eli5"):
    """DCLM's score of how likely the text is of high quality."""


class Dolma17QualityClassifier(BuiltInTagger, tagger="dolma17-quality"):
    """All labels of Dolma 1.7's classifier of sources for the text."""
