"""Words, paragraphs and their word n-grams in plain Python, see `feedmill.kernels.text.paragraphs`."""

from __future__ import annotations

from typing import NamedTuple

from feedmill.kernels.text.paragraphs import CHARACTERS, DOLMA
from feedmill.kernels.text.wordbreak import BLANK, _kind, segments


def words(text: str) -> list[str]:
    """Return the word segments that are not blank."""
    return [piece for piece in segments(text) if not all(_kind(c) & BLANK for c in piece)]


class Piece(NamedTuple):
    """A paragraph: its characters [start, end) with the separator, and its text without the separator."""

    start: int
    end: int
    text: str


def pieces(text: str, separator: str, rule: int) -> list[Piece]:
    """Return the paragraphs of a text; an empty text has none."""
    if not text:
        return []
    parts = text.split(separator)
    size = len(text.encode()) if rule == DOLMA else len(text)
    step = 1 if rule == DOLMA else len(separator)
    found, offset = [], 0
    for number, part in enumerate(parts):
        start = offset
        offset += len(part)
        if offset < size - 1 if rule == DOLMA else number < len(parts) - 1:
            offset += step
        elif rule == CHARACTERS and not part:
            break
        found.append(Piece(start, offset, part))
    return found


def windows(text: str, length: int, stride: int, rule: int) -> list[list[str]]:
    """Return the n-grams of a paragraph that are looked up."""
    found = words(text)
    used, last = [], 0
    for start in range(len(found) - length + 1):
        if rule == CHARACTERS:
            take = start % max(1, stride) == 0
        else:
            take = last == 0 or start - last >= stride
        if take:
            last = start
            used.append(found[start : start + length])
    return used
