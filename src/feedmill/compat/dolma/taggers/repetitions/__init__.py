"""Dolma's taggers of repetitions as classes."""

from feedmill.curation.plugins import BuiltInTagger


class RepetitionsTagger(BuiltInTagger, tagger="repetitions_v1"):
    """Repetitions in the whole text; the copies may be on separate lines."""


class ParagraphRepetitionsTagger(BuiltInTagger, tagger="paragraph_repetitions_v1"):
    """Repetitions within each paragraph."""


class TokenizerRepetitionsTagger(BuiltInTagger, tagger="tokenizer_repetitions_v1"):
    """Repetitions of tokens in the whole text."""


class ParagraphTokenizerRepetitionsTagger(BuiltInTagger, tagger="paragraph_tokenizer_repetitions_v1"):
    """Repetitions of tokens within each paragraph."""


class TokenizerRepetitionsSkipEmptyTagger(BuiltInTagger, tagger="tokenizer_repetitions_v2r2"):
    """Repetitions of tokens in windows of 100,000 characters."""
