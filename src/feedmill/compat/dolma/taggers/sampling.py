"""Dolma's taggers of sampling as classes."""

from feedmill.curation.plugins import BuiltInTagger


class RandomNumberTagger(BuiltInTagger, tagger="random_number_v1"):
    """A number from 0 to 1, computed from the document, so it is the same in every run."""
