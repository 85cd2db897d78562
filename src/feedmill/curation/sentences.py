"""Split a text into sentences."""

from __future__ import annotations

from feedmill.errors import MissingExtra


def sentences(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each sentence, in characters, by BlingFire. Raises `MissingExtra`."""
    try:
        from blingfire import text_to_sentences_and_offsets
    except ImportError:
        raise MissingExtra("splitting sentences requires the package blingfire", "curation") from None
    if not text:
        return []
    _, offsets = text_to_sentences_and_offsets(text)
    return [(int(low), int(high)) for low, high in offsets]
