"""Lengths in words by the Unicode rules (UAX 29), and in pieces of OLMo's pre-tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.curation.taggers.lengths import paragraph_spans, sums
from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.text.wordbreak import count_segments, tables, words

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def segment_counts(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the number of UAX 29 word segments that are not blank, and of all segments, as int64[2, texts]."""
    encoded = [text.encode() for text in texts]
    bounds = bounds_of([len(data) for data in encoded])
    data = np.frombuffer(b"".join(encoded), np.uint8)
    found: npt.NDArray[np.int64] = count_segments(data, bounds[:-1], bounds[1:], *tables())
    return found


def segment_places(text: str) -> list[tuple[int, int]]:
    """Return the start and end, in characters, of each segment that is not blank."""
    data = np.frombuffer(text.encode(), np.uint8)
    lows, highs = np.empty((2, len(data) + 1), np.int64)
    count = words(data, 0, len(data), *tables(), lows, highs, 0)
    # A character is counted at its first byte.
    characters_before = bounds_of((data & 0xC0) != 0x80)
    places = zip(characters_before[lows[:count]].tolist(), characters_before[highs[:count]].tolist(), strict=True)
    return [(low, high) for low, high in places if text[low:high].strip()]


def _paragraphs(batch: Batch, chosen: npt.NDArray[np.int64]) -> list[str]:
    """Return the texts of the `chosen` columns of ``batch.paragraphs``."""
    base = batch.offsets[chosen[0]]
    columns = (chosen[0].tolist(), (chosen[1] - base).tolist(), (chosen[2] - base).tolist())
    return [batch.texts[k][low:high] for k, low, high in zip(*columns, strict=True)]


@register("uniseg_length_v1")
def uniseg_length(batch: Batch) -> Spans:
    """Score each document by the number of segments of its stripped text, including white space."""
    return Spans.of_documents(batch.lengths, length=segment_counts([text.strip() for text in batch.texts])[1])


def _uniseg_paragraphs(batch: Batch, *, blank: bool = False, document: bool = False) -> Spans:
    chosen = batch.paragraphs if blank else batch.filled
    counts = segment_counts([text.strip() for text in _paragraphs(batch, chosen)])[0]
    parts = [paragraph_spans(batch, chosen, paragraph=counts, negative_paragraph=-counts)]
    if document:
        total = sums(batch, chosen[0], counts)
        parts.append(Spans.of_documents(batch.lengths, document=total, negative_document=-total))
    return Spans.joined(parts)


@register("uniseg_length_paragraphs_v1")
def uniseg_paragraphs(batch: Batch) -> Spans:
    """Score each paragraph that is not blank by its number of segments that are not blank.

    The negative number is written too, for filters that support only a lower bound.
    """
    return _uniseg_paragraphs(batch)


@register("uniseg_length_paragraphs_with_empty_v1")
def uniseg_paragraphs_with_empty(batch: Batch) -> Spans:
    """Score each paragraph as `uniseg_paragraphs` does, including blank paragraphs."""
    return _uniseg_paragraphs(batch, blank=True)


@register("uniseg_length_paragraphs_with_doc_length_v1")
def uniseg_paragraphs_with_document(batch: Batch) -> Spans:
    """Score each paragraph as `uniseg_paragraphs` does, and each document by their sum."""
    return _uniseg_paragraphs(batch, document=True)


@cache
def _pretokenizer() -> tuple[Any, Any, Any]:
    import regex

    return regex.compile(r" ?\p{P}"), regex.compile(r" ?\p{Nd}"), regex.compile(_GPT2)


def count_olmo_pieces(text: str) -> int:
    """Return the number of pieces that OLMo's pre-tokenizer makes of a text.

    It isolates every punctuation character and every digit, each with one space before it, and splits the rest by
    GPT-2's pattern.
    """
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
    """Score each document by its number of OLMo pre-tokenizer pieces."""
    return Spans.of_documents(batch.lengths, length=[count_olmo_pieces(text) for text in batch.texts])


@register("olmo_pretokenizer_with_paragraphs_v1")
def olmo_pretokenizer_with_paragraphs(batch: Batch) -> Spans:
    """Score each paragraph that is not blank by its OLMo pre-tokenizer pieces, and each document by their sum."""
    chosen = batch.filled
    counts = [count_olmo_pieces(text) for text in _paragraphs(batch, chosen)]
    values = np.array(counts, np.int64)
    return Spans.joined(
        [
            paragraph_spans(batch, chosen, paragraph=values),
            Spans.of_documents(batch.lengths, document=sums(batch, chosen[0], values)),
        ]
    )
