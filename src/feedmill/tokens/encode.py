"""Encode a batch of texts to the stored bytes: ids, BOS and EOS, and loss masks; by paragraphs, as Dolma can."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.documents.batch import Batch
from feedmill.errors import FeedmillError
from feedmill.formats.tokens.base import Int64s
from feedmill.kernels.bos_eos import add_bos_eos
from feedmill.kernels.bounds import ranges
from feedmill.tokens.engines import Encoded
from feedmill.tokens.sentences import Sentences, split_sentences
from feedmill.tokens.tokenizer import Tokenizer

_UNFIT = "does not fit tokens of"
_NUMBER = re.compile(rf"the token id (\d+)\b.* {_UNFIT}")


@dataclass(frozen=True, slots=True)
class Encoding:
    """Options of encoding. Each of them affects the output bytes.

    Attributes:
        bos, eos: ids added before and after each document, or None.
        always: add them even if the document already has them (as Megatron-LM and datatrove do; Modalities and Dolma
            do not).
        template, ordinary: see `Tokenizer`.
        limit: the largest id that all outputs can store.
        dtype: type of tokens in pieces, ``<u2`` or ``<u4``.
        segment: whether to encode each paragraph separately; `prefix`: whether the tokenizer adds a space before each
            text. See `paragraphs`.
        keep_empty: whether a text without tokens is stored as an empty document; otherwise it is an invalid document.
        chat: whether the first field of a text are the ranges of characters that contribute to the loss (None for all),
            and the second whether an EOS after it does.
        sentences: how texts are split into sentences, each of which is encoded by itself, or None.
        loss: whether to make a loss mask; `cut`: whether to use datatrove's rule, which truncates some documents.
    """

    bos: int | None
    eos: int | None
    always: bool
    template: bool
    ordinary: bool
    limit: int
    dtype: str
    loss: bool = False
    cut: bool = False
    segment: bool = False
    prefix: bool = False
    keep_empty: bool = False
    chat: bool = False
    sentences: Sentences | None = None

    @property
    def marks(self) -> bool:
        """Return whether there is a mark for each token: of the loss, or of the first token of a sentence."""
        return self.loss or self.sentences is not None


@dataclass(slots=True)
class Encodings:
    """Encoded documents of a batch, as stored.

    Attributes:
        data: tokens of all documents as bytes, in the encoding's dtype.
        lengths: int64[n], tokens per document.
        loss: bool[tokens], the loss mask, or the first tokens of sentences if texts are split; or None.
        kept: ascending numbers of their texts in the batch; None for all.
    """

    data: bytes | memoryview
    lengths: Int64s
    loss: npt.NDArray[np.bool_] | None
    kept: list[int] | None


def does_not_fit(number: int, limit: int, what: str = "") -> str:
    """Return the message for an id that is larger than the outputs can store; see `larger_size`.

    >>> does_not_fit(400, 255)
    'the token id 400 does not fit tokens of 1 byte (at most 255)'
    """
    size = max(1, limit.bit_length() // 8)
    return f"the token id {number}{what and f' of {what}'} {_UNFIT} {size} byte{'s' * (size > 1)} (at most {limit})"


def larger_size(number: int) -> str:
    """Return what to do about an id that does not fit."""
    return f"Pass --token-size {2 if number < 1 << 16 else 4} (in Python token_size=...)."


def fix_of(reason: str) -> str | None:
    """Return what to do about an invalid document if it is not the document's fault: an id does not fit. Else None."""
    match = _NUMBER.match(reason)
    return None if match is None else larger_size(int(match[1]))


def encode_batch(tokenizer: Tokenizer, how: Encoding, batch: Batch) -> Encodings:
    """Encode the texts of a batch. Texts that cannot be stored are added to ``batch.bad``."""
    failed: dict[int, str] = {}
    masked: dict[int, tuple[Any, Any]] = {}
    sentences: tuple[Int64s, Int64s] | None = None
    marks: npt.NDArray[np.bool_] | None = None
    if how.sentences is not None and batch.texts:
        ids, lengths, sentences = _encode_sentences(tokenizer, how.sentences, batch.texts, failed)
    elif how.chat:
        (ids, lengths), marks = tokenizer.masked(batch.texts, [fields[0] for fields in batch.fields])
    elif how.segment and batch.texts:
        ids, lengths = _encode_segments(tokenizer, how, batch.texts, failed)
    else:
        ids, lengths = _encode(tokenizer, batch.texts, failed)
    ends = np.cumsum(lengths)
    if not how.keep_empty:
        for index in np.flatnonzero(lengths == 0).tolist():
            failed.setdefault(index, "the text has no tokens")
    if tokenizer.size > how.limit + 1 and len(ids) and int(ids.max()) > how.limit:
        for at in np.flatnonzero(ids > how.limit).tolist():
            index = int(np.searchsorted(ends, at, side="right"))
            failed.setdefault(index, does_not_fit(int(ids[at]), how.limit))
    batch.bad.extend((batch.rows[index], reason) for index, reason in failed.items())
    if how.loss and not how.chat:
        masked = _masked(tokenizer, how, batch, failed)
    kept = np.ones(len(lengths), np.bool_)
    kept[list(failed)] = False
    tokens, stored, before = add_bos_eos(
        ids, lengths, kept, bos=how.bos, eos=how.eos, always=how.always, dtype=how.dtype
    )
    which = np.flatnonzero(kept).tolist() if failed else None
    loss = None
    if marks is not None:
        loss = _chat_loss(batch, marks, lengths, kept, stored, before) if how.loss else None
    elif how.loss:
        tokens, stored, loss = _with_loss(tokens, stored, before, masked)
    elif how.sentences is not None:
        loss = _begins(sentences, stored, kept)
    return Encodings(tokens.view(np.uint8).data, stored[kept] if failed else stored, loss, which)


def _encode_segments(tokenizer: Tokenizer, how: Encoding, texts: list[str], failed: dict[int, str]) -> Encoded:
    pieces, counts = paragraphs(texts, how.prefix)
    wrong: dict[int, str] = {}
    ids, lengths = joined(*_encode(tokenizer, pieces, wrong), counts, how.prefix)
    ends = np.cumsum(counts)
    for piece, reason in wrong.items():
        failed.setdefault(int(np.searchsorted(ends, piece, side="right")), reason)
    return Encoded(ids, lengths)


def _encode_sentences(
    tokenizer: Tokenizer, how: Sentences, texts: list[str], failed: dict[int, str]
) -> tuple[npt.NDArray[Any], Int64s, tuple[Int64s, Int64s]]:
    """Return the ids of texts and their number, and the text and the first token in it of each sentence with tokens."""
    pieces, counts = split_sentences(texts, how)
    owner = np.repeat(np.arange(len(texts)), counts)
    wrong: dict[int, str] = {}
    ids, lengths = _encode(tokenizer, pieces, wrong)
    for piece, reason in wrong.items():
        failed.setdefault(int(owner[piece]), reason)
    totals = np.bincount(owner, lengths, len(texts)).astype(np.int64)
    first = np.cumsum(lengths) - lengths - (np.cumsum(totals) - totals)[owner]
    real = np.flatnonzero(lengths)
    return ids, totals, (owner[real], first[real])


def _begins(sentences: tuple[Int64s, Int64s] | None, lengths: Int64s, kept: npt.NDArray[np.bool_]) -> Any:
    """Return the marks of the first tokens of sentences, bool[tokens], in the stored tokens of the kept texts."""
    marks = np.zeros(int(lengths.sum()), np.bool_)
    if sentences is not None:
        owner, first = sentences
        mine = kept[owner]
        marks[(np.cumsum(lengths) - lengths)[owner[mine]] + first[mine]] = True
    return marks


def _chat_loss(
    batch: Batch,
    marks: npt.NDArray[np.bool_],
    lengths: Int64s,
    kept: npt.NDArray[np.bool_],
    stored: Int64s,
    before: Int64s,
) -> npt.NDArray[np.bool_]:
    """Return the mask of stored conversations, bool[tokens], from the marks of their own tokens.

    In one with ranges, a BOS is not in the loss, and an EOS is if it ends an answer.
    """
    if int(stored.sum()) == len(marks) and kept.all():
        return marks
    every = np.array([fields[0] is None for fields in batch.fields], np.bool_)
    closing = np.array([fields[1] for fields in batch.fields], np.bool_)
    loss = np.repeat(every, stored)
    first = np.cumsum(stored) - stored + before
    loss[ranges(first[kept], lengths[kept])] = marks[np.repeat(kept, lengths)]
    ended = kept & (stored > before + lengths)
    loss[(first + lengths)[ended]] = (closing | every)[ended]
    return loss


def _encode(tokenizer: Tokenizer, texts: list[str], failed: dict[int, str]) -> Encoded:
    """Return the ids of all texts. If the engine fails, encode texts one at a time to find the failing one."""
    try:
        return tokenizer.encode(texts)
    except BaseException as error:  # a panic of compiled code is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if len(texts) == 1:
            failed[0] = f"the tokenizer failed ({type(error).__name__}: {error})"
            return Encoded(np.zeros(0, np.uint32), np.zeros(1, np.int64))
    batches = []
    for index, text in enumerate(texts):
        alone: dict[int, str] = {}
        batches.append(_encode(tokenizer, [text], alone))
        if alone:
            failed[index] = alone[0]
    return Encoded(
        np.concatenate([batch_.ids for batch_ in batches]), np.concatenate([batch_.lengths for batch_ in batches])
    )


def _with_loss(
    tokens: npt.NDArray[Any],
    lengths: Int64s,
    before: Int64s,
    masked: dict[int, tuple[Any, Any]],
) -> tuple[npt.NDArray[Any], Int64s, npt.NDArray[np.bool_]]:
    """Mask the documents that have ranges. The truncating rule shortens some of them."""
    loss, keep, lengths = np.ones(len(tokens), np.bool_), np.ones(len(tokens), np.bool_), lengths.copy()
    ends = np.cumsum(lengths).tolist()
    for index, (mask, stop) in masked.items():
        end, inner = ends[index], ends[index] - int(lengths[index]) + int(before[index])
        loss[inner : inner + len(mask)] = mask
        if stop is not None:
            keep[inner + stop : end] = False
            lengths[index] -= end - (inner + stop)
    return tokens[keep], lengths, loss[keep]


def _masked(tokenizer: Tokenizer, how: Encoding, batch: Batch, failed: dict[int, str]) -> dict[int, tuple[Any, Any]]:
    """Return the loss mask, bool[tokens], of texts with excluded ranges, and the truncated length or None."""
    out: dict[int, tuple[Any, Any]] = {}
    for index, fields in enumerate(batch.fields):
        if index in failed:
            continue
        try:
            ranges = loss_ranges(fields)
        except ValueError as error:
            failed[index] = str(error)
            batch.bad.append((batch.rows[index], str(error)))
            continue
        if ranges:
            ids, offsets = tokenizer.offsets(batch.texts[index])
            if not np.array_equal(ids, tokenizer.encode([batch.texts[index]]).ids):
                raise FeedmillError(
                    "the tokenizer's engines differ on a document with a loss mask", kind="verification-failed"
                )
            out[index] = _datatrove(offsets, ranges) if how.cut else (_mask(offsets, ranges), None)
    return out


def loss_ranges(fields: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the character ranges in ``no_loss_ranges`` of the document or its ``metadata``. Raises ValueError."""
    own, metadata = fields[0], fields[1]
    given = own if own is not None else metadata.get("no_loss_ranges") if isinstance(metadata, dict) else None
    if given is None:
        return []
    try:
        ranges = [(start, end) for start, end in given]
    except (TypeError, ValueError):
        ranges = [(-1, -1)]
    if not all(type(s) is int and type(e) is int and 0 <= s <= e for s, e in ranges):
        raise ValueError("no_loss_ranges is not a list of character ranges, [[begin, end], ...]")
    return ranges


def _mask(offsets: Int64s, ranges: list[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Return False for tokens in the ranges, including tokens that begin before a range and extend into it."""
    mask = np.ones(len(offsets), np.bool_)
    begins, ends = offsets[:, 0], offsets[:, 1]
    for start, stop in ranges:
        mask &= ~((ends > start) & (ends <= stop) & (ends > begins))
    return mask


def _datatrove(offsets: Int64s, ranges: list[tuple[int, int]]) -> tuple[npt.NDArray[np.bool_], int | None]:
    """Return the mask by datatrove's rule: a range whose end matches no token truncates the document at its start."""
    mask, stop = np.ones(len(offsets), np.bool_), None
    for start, end in ranges:
        first, last = _token_at(offsets, start), _token_at(offsets, end)
        mask[first:last] = False
        if last is None:
            stop = min(len(offsets) if first is None else first, len(offsets) if stop is None else stop)
    return mask, stop


def _token_at(offsets: Int64s, character: int) -> int | None:
    tokens = np.flatnonzero((offsets[:, 0] <= character) & (character < offsets[:, 1]))
    return int(tokens[0]) if len(tokens) else None


_PARAGRAPH = re.compile(r"\n*[^\n]+|\n+")


def paragraphs(texts: list[str], prefix: bool) -> tuple[list[str], Int64s]:
    """Return the paragraphs of all texts, and int64[texts], the number of paragraphs of each.

    Dolma can encode paragraph by paragraph, for tokenizers that are slow on long texts. A paragraph begins with the
    newlines before it. Some tokenizers add a space before every text, and would add one before every paragraph. For
    them (`prefix`), a space is added to each paragraph but the first, and the first token, which then covers both
    spaces, is dropped.

    >>> paragraphs(["a\\n\\nb", "c"], True)[0]
    ['a', ' \\n\\nb', 'c']
    """
    found = [_PARAGRAPH.findall(text) or [""] for text in texts]
    if prefix:
        found = [[pieces[0], *(" " + piece for piece in pieces[1:])] for pieces in found]
    return [piece for pieces in found for piece in pieces], np.fromiter(map(len, found), np.int64, len(found))


def joined(ids: npt.NDArray[Any], lengths: Int64s, counts: Int64s, prefix: bool) -> tuple[npt.NDArray[Any], Int64s]:
    """Join the ids of paragraphs to the ids of texts. Return the ids, and int64[texts], the number of ids of each.

    Args:
        ids, lengths: concatenated ids of all paragraphs, and their numbers.
        counts: int64[texts], number of paragraphs of each text.
        prefix: whether to drop the first token of each paragraph except the first of a text.
    """
    firsts = np.cumsum(counts) - counts
    if prefix:
        drop = lengths > 0
        drop[firsts] = False
        keep = np.ones(len(ids), np.bool_)
        keep[(np.cumsum(lengths) - lengths)[drop]] = False
        ids, lengths = ids[keep], lengths - drop
    return ids, np.add.reduceat(lengths, firsts) if len(firsts) else np.zeros(0, np.int64)
