"""The kernels of `feedmill.kernels.text.questions` in plain Python."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from feedmill.kernels.hashing.shingles import IGNORED, LETTER, WORD, characters
from feedmill.kernels.text.questions import REFERENCE, TAG

_TAG = re.compile(r"</?[A-Za-z/][^<>\n]*>")
_REFERENCE = re.compile(r"&[#0-9A-Za-z]+;")


def fold(character: str) -> tuple[int, str]:
    """Return the class of a character, and what it is compared as."""
    if unicodedata.combining(character):
        return IGNORED, ""
    code = ord(character)
    if code >= 0x80 and not 0xAC00 <= code <= 0xD7A3:
        code = ord(unicodedata.normalize("NFKD", character)[0])
    where, pages = characters(True, True)
    entry = int(pages[(int(where[code >> 8]) << 8) + (code & 255)])
    return entry & 3, chr(code + (entry >> 2))


def words(text: str) -> list[tuple[str, int, int]]:
    """Return the words of a text, each with the characters where it begins and ends."""
    found, word, start, at = list[tuple[str, int, int]](), "", 0, 0
    while at < len(text):
        kind, folded, end = *fold(text[at]), at + 1
        for pattern, most in ((_TAG, TAG), (_REFERENCE, REFERENCE)):
            match = pattern.match(text, at)
            if match and len(match.group().encode()) <= most:
                end = match.end()
        if kind == LETTER:
            start = at if not word else start
            word += folded
        elif kind != IGNORED:
            if word:
                found.append((word, start, at))
                word = ""
            if kind == WORD:
                found.append((folded, at, end))
        at = end
    return [*found, (word, start, len(text))] if word else found


def in_order(a: Sequence[object], b: Sequence[object]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for one in a:
        before = row
        row = [0]
        for at, other in enumerate(b):
            row.append(before[at] + 1 if one == other else max(before[at + 1], row[at]))
    return row[-1]
