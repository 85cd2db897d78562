"""Repetitions of short units of characters, and paragraphs without letters or digits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.kernels.text import characters
from feedmill.kernels.text.repetitions import repetitions as repetitions_in

# Punctuation, symbols, white space, and the characters that only emoji patterns match.
_NO_WORDS = r"[[:punct:]\s\u2776-\u2793\U0001F6DA\U0001F6DB\U0001F6ED-\U0001F6EF\U0001F6FD-\U0001F6FF\u200d\ufe0f]+"


@register("repetitions_v1")
def repetitions(batch: Batch) -> Spans:
    """Tag repetitions in the whole text. The copies may be on separate lines."""
    return _found(batch, np.arange(len(batch)), batch.offsets[:-1], batch.offsets[1:])


@register("paragraph_repetitions_v1")
def paragraph_repetitions(batch: Batch) -> Spans:
    """Tag repetitions within each paragraph."""
    document, starts, ends, _ = batch.paragraphs
    return _found(batch, document, starts, ends)


def _found(
    batch: Batch, document: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Spans:
    which, low, high, unit = repetitions_in(batch.codes, starts, ends, characters.table())
    owner = document[which]
    low, high = low - batch.offsets[owner], high - batch.offsets[owner]
    score = np.empty(len(owner))
    columns = zip(owner.tolist(), low.tolist(), high.tolist(), unit.tolist(), strict=True)
    for i, (k, start, end, size) in enumerate(columns):
        text = batch.texts[k]
        score[i] = text[start:end].count(text[start : start + size])
    n = len(batch)
    longest, most = np.zeros(n), np.zeros(n)
    np.maximum.at(longest, owner, high - low)
    np.maximum.at(most, owner, score)
    share = np.bincount(owner, high - low, n) / np.maximum(batch.lengths, 1)
    each = Spans(("repetition",), owner, np.zeros_like(owner), low, high, score)
    documents = Spans.of_documents(
        batch.lengths,
        doc_max_score_repetition=most,
        doc_max_length_repetition=longest,
        doc_frac_repetition=share,
    )
    return Spans.joined([each, documents])


@register("not_alphanum_paragraph_v1")
def not_alphanum_paragraph(batch: Batch) -> Spans:
    """Tag paragraphs of punctuation, symbols and emoji. A document without any gets one span with the score 0."""
    import regex

    matches = regex.compile(_NO_WORDS).fullmatch
    document, starts, ends, blank = batch.paragraphs
    base = batch.offsets[document]
    by_document: list[list[tuple[int, int, int, float]]] = [[] for _ in batch.texts]
    chosen = np.flatnonzero(blank == 0)
    # A paragraph whose first character is a letter or digit cannot match.
    first = characters.table()[batch.codes[starts[chosen]]] & characters.ALNUM
    chosen = chosen[first == 0]
    columns = (document[chosen], (starts - base)[chosen], (ends - base)[chosen])
    for k, low, high in zip(*(column.tolist() for column in columns), strict=True):
        if matches(batch.texts[k], low, high):
            by_document[k].append((0, low, high, 1.0))
    for k, spans in enumerate(by_document):
        if not spans:
            spans.append((0, 0, len(batch.texts[k]), 0.0))
    return Spans.of_lists(("all_punct",), by_document)
