"""Dolma's taggers of repetitions as classes."""

from feedmill.curation.plugins import BuiltInTagger


class RepetitionsTagger(BuiltInTagger, tagger="repetitions_v1"): ...


class ParagraphRepetitionsTagger(BuiltInTagger, tagger="paragraph_repetitions_v1"): ...


class TokenizerRepetitionsTagger(BuiltInTagger, tagger="tokenizer_repetitions_v1"): ...


class ParagraphTokenizerRepetitionsTagger(BuiltInTagger, tagger="paragraph_tokenizer_repetitions_v1"): ...


class TokenizerRepetitionsSkipEmptyTagger(BuiltInTagger, tagger="tokenizer_repetitions_v2r2"): ...
