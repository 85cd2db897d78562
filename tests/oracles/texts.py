"""What kernels over the code points of texts find, in plain Python and regular expressions."""

from __future__ import annotations

import re
from typing import Any

from feedmill.kernels.text.hints import ADDRESS, EMAIL, PHONE


def paragraphs(text: str) -> list[tuple[int, int, bool]]:
    """Return (start, end, blank) for each paragraph.

    A paragraph includes its newline; text after the last newline is a paragraph too.

    >>> paragraphs("a\\n\\nb")
    [(0, 2, False), (2, 3, True), (3, 4, False)]
    """
    found, start = [], 0
    while start < len(text):
        newline = text.find("\n", start)
        end = newline + 1 if newline >= 0 else len(text)
        found.append((start, end, not text[start:end].strip()))
        start = end
    return found


def words(text: str) -> list[tuple[int, int]]:
    """Return (start, end) for each word of ``text.split()``."""
    found, at = [], 0
    for word in text.split():
        at = text.index(word, at)
        found.append((at, at + len(word)))
        at += len(word)
    return found


def count_pieces(text: str) -> int:
    """Count the runs of word characters and the runs of characters that are neither word characters nor white space."""
    regex: Any = __import__("regex")
    return len(regex.findall(r"\w+|[^\w\s]+", text))


def c4_lines(text: str) -> list[tuple[int, int, bool, bool]]:
    """Return (start, end, unpunctuated, short) for each line.

    `unpunctuated` means that the line does not end in punctuation, `short` that it has fewer than three words. Each
    line but the last includes its newline; the last may be empty.
    """
    found, start = [], 0
    pieces = text.split("\n")
    for number, piece in enumerate(pieces):
        end = start + len(piece) + (number + 1 < len(pieces))
        found.append((start, end, not piece.strip().endswith((".", "?", "!", '"')), len(piece.split()) < 3))
        start = end
    return found


_PHONE = re.compile(r"\s\(?\d{3}\)?[-. ]*\d{3}")
_ADDRESS = re.compile(r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]")


def hints(text: str) -> int:
    """Return the bits of what the text may contain."""
    return EMAIL * ("@" in text) | PHONE * bool(_PHONE.search(text)) | ADDRESS * bool(_ADDRESS.search(text))


_REPETITION = re.compile(r"(.+?)(?:\s?\1){3,}")


def repetitions(text: str) -> list[tuple[int, int, int]]:
    """Return (start, end, characters of the unit) for each repetition, from the left, without overlap."""
    return [(match.start(), match.end(), len(match[1])) for match in _REPETITION.finditer(text)]
