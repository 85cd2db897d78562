"""Lengths in words by Unicode's rules (UAX 29), and in the pieces of OLMo's pre-tokenizer."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.curation.taggers.lengths import filled, paragraph_spans, sums
from feedmill.errors import MissingExtra

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def segments(text: str) -> list[str]:
    """The words and what is between them, by the package uniseg. Raises `MissingExtra`."""
    try:
        from uniseg.wordbreak import words
    except ImportError:
        raise MissingExtra("words by Unicode's rules need the package uniseg", "curation") from None
    return list(words(text))


class _Uniseg:
    """What the taggers over word segments share; says at once if the package is missing."""

    metadata = False

    def __init__(self) -> None:
        segments("a")


@register("uniseg_length_v1")
class UnisegLength(_Uniseg):
    """All segments of the stripped text, white space too."""

    def tag(self, batch: Batch) -> Spans:
        return Spans.of_documents(batch.lengths, length=[len(segments(text.strip())) for text in batch.texts])


class _UnisegParagraphs(_Uniseg):
    blank, document = False, False

    def tag(self, batch: Batch) -> Spans:
        chosen = batch.paragraphs if self.blank else filled(batch)
        counts = _words(batch, chosen)
        parts = [paragraph_spans(batch, chosen, paragraph=counts, negative_paragraph=-counts)]
        if self.document:
            total = sums(batch, chosen[0], counts)
            parts.append(Spans.of_documents(batch.lengths, document=total, negative_document=-total))
        return Spans.joined(parts)


def _words(batch: Batch, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64[paragraphs]: segments that are not blank."""
    base = batch.offsets[chosen[0]]
    columns = (chosen[0].tolist(), (chosen[1] - base).tolist(), (chosen[2] - base).tolist())
    counts = [
        sum(not piece.isspace() for piece in segments(batch.texts[k][low:high]))
        for k, low, high in zip(*columns, strict=True)
    ]
    return np.array(counts, np.int64)


@register("uniseg_length_paragraphs_v1")
class UnisegParagraphs(_UnisegParagraphs):
    """Segments that are not blank, for each paragraph, also negative for filters that have a lower bound only."""


@register("uniseg_length_paragraphs_with_empty_v1")
class UnisegParagraphsWithEmpty(_UnisegParagraphs):
    """Blank paragraphs too."""

    blank = True


@register("uniseg_length_paragraphs_with_doc_length_v1")
class UnisegParagraphsWithDocument(_UnisegParagraphs):
    """And their sum."""

    document = True


@cache
def _pretokenizer() -> tuple[Any, Any, Any]:
    import regex

    return regex.compile(r" ?\p{P}"), regex.compile(r" ?\p{Nd}"), regex.compile(_GPT2)


def count_olmo_pieces(text: str) -> int:
    """Pieces after every punctuation character and every digit (each with one space before it) was set apart and the
    rest was divided by GPT-2's rule."""
    punctuation, digit, rest = _pretokenizer()
    count = 0
    for part in _apart(text, punctuation):
        for piece in _apart(part, digit):
            count += len(rest.findall(piece))
    return count


def _apart(text: str, pattern: Any) -> list[str]:
    found, at = [], 0
    for match in pattern.finditer(text):
        found += [text[at : match.start()], match[0]]
        at = match.end()
    return [piece for piece in (*found, text[at:]) if piece]


@register("olmo_pretokenizer_v1")
def olmo_pretokenizer(batch: Batch) -> Spans:
    return Spans.of_documents(batch.lengths, length=[count_olmo_pieces(text) for text in batch.texts])


@register("olmo_pretokenizer_with_paragraphs_v1")
def olmo_pretokenizer_with_paragraphs(batch: Batch) -> Spans:
    chosen = filled(batch)
    base = batch.offsets[chosen[0]]
    columns = (chosen[0].tolist(), (chosen[1] - base).tolist(), (chosen[2] - base).tolist())
    counts = [count_olmo_pieces(batch.texts[k][low:high]) for k, low, high in zip(*columns, strict=True)]
    values = np.array(counts, np.int64)
    return Spans.joined(
        [
            paragraph_spans(batch, chosen, paragraph=values),
            Spans.of_documents(batch.lengths, document=sums(batch, chosen[0], values)),
        ]
    )
