"""Paragraphs, words and lengths of texts, in code points: the test oracle of `feedmill.kernels.text.lengths_compiled`.

The compiled forms work on a whole batch: `codes` are the concatenated UTF-32 code points of all texts, `offsets` where
each text begins.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.kernels.bounds import bounds_of

Codes = npt.NDArray[np.uint32]
Positions = npt.NDArray[np.int64]


def encode(texts: list[str]) -> tuple[Codes, Positions]:
    """Return the concatenated code points, uint32[characters], and the offset of each text, int64[len(texts) + 1]."""
    offsets = bounds_of([len(text) for text in texts])
    return np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4"), offsets


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
