"""Dolma's taggers of punctuation as classes."""

from feedmill.curation.plugins import BuiltInTagger


class NotAlphanumParagraphV1(BuiltInTagger, tagger="not_alphanum_paragraph_v1"):
    """Paragraphs of punctuation, symbols and emoji; a document without any has one span with the score 0."""
