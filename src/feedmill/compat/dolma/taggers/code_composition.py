"""Dolma's taggers of code and prose as classes."""

from feedmill.curation.plugins import BuiltInTagger


class CodeProseCompositionClassifier(BuiltInTagger, tagger="code_composition"):
    """Shares of lines of code and of prose, by a fastText model: pass its path as `file`."""
