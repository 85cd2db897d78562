"""Spans of paragraphs and of their word n-grams, in bytes and in characters.

The test oracle of `feedmill.kernels.text.paragraphs_compiled`. Two rules define where a paragraph ends in characters:

* `CHARACTERS`: a paragraph includes the separator after it. Empty text after the last separator is not a paragraph.
* `DOLMA`: counts as Dolma 1.2 does. It adds one character for the separator while the offset is below the number of
  bytes minus one. So the last newline of an ASCII text is skipped, the last end in other texts may lie one character
  beyond the text, and offsets drift if the separator has several characters.

Windows of n words begin at every `stride`-th word; under the `DOLMA` rule at 0, 1, 1 + stride, 1 + 2 stride, ...
"""

from __future__ import annotations

from typing import NamedTuple

from feedmill.kernels.text.wordbreak import words

CHARACTERS, DOLMA = 0, 1


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
