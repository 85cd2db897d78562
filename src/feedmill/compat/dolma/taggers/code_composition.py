"""Dolma's taggers of code and prose as classes."""

from feedmill.curation.plugins import BuiltInTagger


class CodeProseCompositionClassifier(BuiltInTagger, tagger="code_composition"): ...
