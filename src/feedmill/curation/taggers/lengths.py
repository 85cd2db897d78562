"""Lengths of documents and paragraphs in characters, bytes and pieces."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.kernels.text import characters
from feedmill.kernels.text.lengths import byte_lengths, count_pieces, stripped_lengths


@register("char_length_v1")
def char_length(batch: Batch) -> Spans:
    """Score each document by its number of characters."""
    return Spans.of_documents(batch.lengths, length=batch.lengths)


@register("char_length_strip_ws_v1")
def char_length_strip_ws(batch: Batch) -> Spans:
    """Score each document by its number of characters without white space at both ends."""
    lengths = stripped_lengths(batch.codes, batch.offsets, characters.table())
    return Spans.of_documents(batch.lengths, length_no_ws=lengths)


@register("bytes_length_v1")
def bytes_length(batch: Batch) -> Spans:
    """Score each document by its number of UTF-8 bytes."""
    return Spans.of_documents(batch.lengths, bytes=byte_lengths(batch.codes, batch.offsets))


@register("doc_count_v1")
def doc_count(batch: Batch) -> Spans:
    """Give each document the score 1, so that sums of the scores count documents."""
    return Spans.of_documents(batch.lengths, docs=np.ones(len(batch)))


def paragraph_spans(batch: Batch, chosen: npt.NDArray[np.int64], **scores: npt.ArrayLike) -> Spans:
    """Return spans over the `chosen` columns of ``batch.paragraphs``: one of each kind per paragraph, in order."""
    document, start, end = chosen[0], chosen[1], chosen[2]
    base = batch.offsets[document]
    many = len(scores)
    score = np.stack([np.asarray(column, np.float64) for column in scores.values()], axis=1).reshape(-1)
    kind = np.tile(np.arange(many), len(document))
    low, high = np.repeat(start - base, many), np.repeat(end - base, many)
    return Spans(tuple(scores), np.repeat(document, many), kind, low, high, score)


def per_word(batch: Batch, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the counts of each document by its number of words, float64[n]; -1 for a document without words."""
    words = np.diff(batch.words[1])
    return np.where(words > 0, counts / np.maximum(words, 1), -1.0)


def sums(batch: Batch, document: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sum of the paragraphs' values for each document, int64[n]."""
    return np.bincount(document, values, len(batch)).astype(np.int64)


@register("char_length_with_paragraphs_v1")
def char_length_with_paragraphs(batch: Batch) -> Spans:
    """Score each paragraph that is not blank, and each document, by its number of characters."""
    chosen = batch.filled
    return Spans.joined(
        [
            paragraph_spans(batch, chosen, paragraph=chosen[2] - chosen[1]),
            Spans.of_documents(batch.lengths, document=batch.lengths),
        ]
    )


@register("whitespace_tokenizer_v1")
def whitespace_tokenizer(batch: Batch) -> Spans:
    """Score each document by its runs of word characters and its runs of other visible characters, plus one."""
    counts = count_pieces(batch.codes, batch.offsets[:-1], batch.offsets[1:], characters.table()) + 1
    return Spans.of_documents(batch.lengths, length=counts)


@register("whitespace_tokenizer_with_paragraphs_v1")
def whitespace_tokenizer_with_paragraphs(batch: Batch) -> Spans:
    """Score each paragraph that is not blank as `whitespace_tokenizer` does, and each document by their sum."""
    chosen = batch.filled
    counts = count_pieces(batch.codes, chosen[1], chosen[2], characters.table()) + 1
    return Spans.joined(
        [
            paragraph_spans(batch, chosen, paragraph=counts),
            Spans.of_documents(batch.lengths, document=sums(batch, chosen[0], counts)),
        ]
    )


@register("random_number_v1")
def random_number(batch: Batch) -> Spans:
    """Score each document by a number from 0 to 1 that is uniformly distributed.

    The number is a hash of the document's source, id and text, so it is the same in every run.
    """
    hashes = [xxhash.xxh3_64_intdigest(f"{row.source}\0{row.id}\0{row.text}".encode()) for row in batch.rows]
    return Spans.of_documents(batch.lengths, random=np.array(hashes, np.uint64) / 2.0**64)
