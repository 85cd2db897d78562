"""Dolma's taggers of sampling as classes."""

from feedmill.curation.plugins import BuiltInTagger


class RandomNumberTagger(BuiltInTagger, tagger="random_number_v1"): ...
