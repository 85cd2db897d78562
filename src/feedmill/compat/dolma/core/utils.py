"""Dolma's splitters of texts, and its import of modules with taggers."""

from feedmill.curation.plugins import split_paragraphs, split_sentences, split_words
from feedmill.curation.registry import load_modules as import_modules

__all__ = ["import_modules", "make_variable_name", "split_paragraphs", "split_sentences", "split_words"]


def make_variable_name(name: str) -> str:
    """Return a name as a part of an attribute's name.

    >>> make_variable_name("dclm-oh-eli5")
    'dclm_oh_eli5'
    """
    from feedmill.curation.spans import attribute_name

    return attribute_name(name, "", "")
