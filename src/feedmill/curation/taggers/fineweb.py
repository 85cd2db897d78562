"""FineWeb's own signals of quality (Penedo et al. 2024, arXiv:2406.17557), after those of Gopher and C4.

As for the other taggers, limits are applied when documents are filtered; the preset ``fineweb`` has the published ones.
"""

from __future__ import annotations

import numpy as np
import regex

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans

SHORT = 30
"""Most characters of a short line."""
_ENDS = regex.compile(r"\p{Sentence_Terminal}\Z")
_NAMES = (
    "fraction_of_lines_ending_with_punctuation",
    "fraction_of_short_lines",
    "fraction_of_characters_in_duplicate_lines",
    "newlines_per_word",
)


@register("fineweb_v1")
def fineweb_v1(batch: Batch) -> Spans:
    """Score each document by FineWeb's signals: ends of lines, short lines, repeated lines, newlines per word.

    Lines are those that are not blank; words are separated by white space. A document without words has the scores 0,
    0, 0 and 1.
    """
    rows = np.array([_signals(text) for text in batch.texts]).reshape(len(batch), len(_NAMES))
    return Spans.of_documents(batch.lengths, **dict(zip(_NAMES, rows.T, strict=True)))


def _signals(text: str) -> tuple[float, float, float, float]:
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    if not lines:
        return 0.0, 0.0, 0.0, 1.0
    ended = sum(_ENDS.search(line, pos=len(line) - 1) is not None for line in lines)
    short = sum(len(line) <= SHORT for line in lines)
    repeated = sum(map(len, lines)) - sum(map(len, set(lines)))
    newlines = text.count("\n")
    return ended / len(lines), short / len(lines), repeated / (len(text) - newlines), newlines / len(text.split())
