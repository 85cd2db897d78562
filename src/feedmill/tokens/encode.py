"""From a batch of texts to the bytes that are stored: ids, BOS and EOS, loss masks, and what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import FeedmillError
from feedmill.tokens.documents import Batch
from feedmill.tokens.segments import joined, paragraphs
from feedmill.tokens.tokenizer import Encoded, Int64s, Tokenizer


@dataclass(frozen=True, slots=True)
class Encoding:
    """How texts become tokens; everything here decides the bytes.

    Attributes:
        bos, eos: ids put before and after each document, or None.
        always: put them there even where the document has one already (Megatron-LM, datatrove); else not (Modalities,
            Dolma).
        template, ordinary: see `Tokenizer`.
        limit: the largest id that all outputs can store.
        dtype: ``<u2`` or ``<u4``, how pieces store tokens.
        segment: whether to encode paragraph by paragraph; `prefix`: for a tokenizer that puts a space before each text.
            See `feedmill.tokens.segments`.
        keep_empty: whether a text without tokens is a document (without BOS and EOS); else it cannot be stored.
        loss: whether to make a mask; `cut`: by datatrove's rule, which drops what follows a range at a text's end.
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


@dataclass(slots=True)
class Encodings:
    """The documents of a batch as they are stored.

    Attributes:
        data: the tokens of all of them, in the encoding's dtype.
        lengths: int64[n], tokens of each.
        loss: bool[tokens] or None.
        kept: which texts of the batch they are, rising; None for all.
    """

    data: bytes
    lengths: Int64s
    loss: npt.NDArray[np.bool_] | None
    kept: list[int] | None


def encode_batch(tokenizer: Tokenizer, how: Encoding, batch: Batch) -> Encodings:
    """Encode the texts of a batch; those that can't be stored join ``batch.bad``."""
    failed: dict[int, str] = {}
    segmented = how.segment and batch.texts
    ids, lengths = (
        _encode_segments(tokenizer, how, batch.texts, failed) if segmented else _encode(tokenizer, batch.texts, failed)
    )
    ends = np.cumsum(lengths)
    if not how.keep_empty:
        for index in np.flatnonzero(lengths == 0).tolist():
            failed.setdefault(index, "the text has no tokens")
    if len(ids) and int(ids.max()) > how.limit:
        for at in np.flatnonzero(ids > how.limit).tolist():
            index = int(np.searchsorted(ends, at, side="right"))
            failed.setdefault(index, f"its token id {ids[at]} does not fit the output (ids up to {how.limit} do)")
    batch.bad.extend((batch.rows[index], reason) for index, reason in failed.items())
    masked = _masked(tokenizer, how, batch, failed) if how.loss else {}
    need_bos, need_eos = _needed(how, ids, lengths, ends)
    if not failed and not masked and not need_bos.any() and not need_eos.any():
        loss = np.ones(len(ids), np.bool_) if how.loss else None
        return Encodings(ids.astype(how.dtype).tobytes(), lengths, loss, None)
    return _joined(how, ids, lengths, (need_bos, need_eos), failed, masked)


def _encode_segments(tokenizer: Tokenizer, how: Encoding, texts: list[str], failed: dict[int, str]) -> Encoded:
    pieces, counts = paragraphs(texts, how.prefix)
    wrong: dict[int, str] = {}
    ids, lengths = joined(*_encode(tokenizer, pieces, wrong), counts, how.prefix)
    ends = np.cumsum(counts)
    for piece, reason in wrong.items():
        failed.setdefault(int(np.searchsorted(ends, piece, side="right")), reason)
    return Encoded(ids, lengths)


def _encode(tokenizer: Tokenizer, texts: list[str], failed: dict[int, str]) -> Encoded:
    """The ids of all texts; where the engine gives up, one text at a time, to find the one that it fails on."""
    try:
        return tokenizer.encode(texts)
    except BaseException as error:  # a panic of compiled code is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if len(texts) == 1:
            failed[0] = f"the tokenizer fails on it ({type(error).__name__}: {error})"
            return Encoded(np.zeros(0, np.uint32), np.zeros(1, np.int64))
    found = []
    for index, text in enumerate(texts):
        alone: dict[int, str] = {}
        found.append(_encode(tokenizer, [text], alone))
        if alone:
            failed[index] = alone[0]
    return Encoded(np.concatenate([one.ids for one in found]), np.concatenate([one.lengths for one in found]))


def _needed(how: Encoding, ids: npt.NDArray[Any], lengths: Int64s, ends: Int64s) -> tuple[Any, Any]:
    """bool[n] both: which documents get a BOS, and which an EOS."""
    count = len(lengths)
    bos = np.full(count, how.bos is not None)
    eos = np.full(count, how.eos is not None)
    if not how.always and len(ids):
        if how.bos is not None:
            bos &= (ids[np.minimum(ends - lengths, len(ids) - 1)] != how.bos) | (lengths == 0)
        if how.eos is not None:
            eos &= (ids[np.maximum(ends - 1, 0)] != how.eos) | (lengths == 0)
    if how.keep_empty:
        bos &= lengths > 0
        eos &= lengths > 0
    return bos, eos


def _joined(
    how: Encoding,
    ids: npt.NDArray[Any],
    lengths: Int64s,
    needed: tuple[Any, Any],
    failed: dict[int, str],
    masked: dict[int, tuple[Any, Any]],
) -> Encodings:
    size = np.dtype(how.dtype).itemsize
    stored = ids.astype(how.dtype).data.cast("B") if len(ids) else memoryview(b"")
    bos, eos = (b"" if i is None else int(i).to_bytes(size, "little") for i in (how.bos, how.eos))
    kept = [i for i in range(len(lengths)) if i not in failed] if failed else range(len(lengths))
    stops = [0, *(np.cumsum(lengths) * size).tolist()]
    # One join of all: before, text, after of each document in turn.
    parts: list[Any] = [b""] * (3 * len(kept))
    parts[1::3] = [stored[stops[i] : stops[i + 1]] for i in kept]
    for place, token, flags in ((0, bos, needed[0]), (2, eos, needed[1])):
        if token:
            parts[place::3] = [token if flag else b"" for flag in flags[kept].tolist()]
    out = (lengths + needed[0] + needed[1])[kept] if failed else lengths + needed[0] + needed[1]
    if not how.loss:
        return Encodings(b"".join(parts), out, None, list(kept) if failed else None)
    data, out, loss = _with_loss(how, b"".join(parts), out, list(kept), masked, needed)
    return Encodings(data, out, loss, list(kept) if failed else None)


def _with_loss(
    how: Encoding, data: bytes, lengths: Int64s, kept: list[int], masked: dict[int, tuple[Any, Any]], needed: Any
) -> tuple[bytes, Int64s, npt.NDArray[np.bool_]]:
    """Mask the documents that have ranges; by the cutting rule some become shorter."""
    tokens = np.frombuffer(data, how.dtype)
    loss = np.ones(len(tokens), np.bool_)
    lengths = lengths.copy()
    keep = np.ones(len(tokens), np.bool_)
    begin = 0
    for place, index in enumerate(kept):
        end = begin + int(lengths[place])
        if index in masked:
            mask, stop = masked[index]
            inner = begin + int(needed[0][index])
            loss[inner : inner + len(mask)] = mask
            if stop is not None:
                keep[inner + stop : end] = False
                lengths[place] -= end - (inner + stop)
        begin = end
    return tokens[keep].tobytes(), lengths, loss[keep]


def _masked(tokenizer: Tokenizer, how: Encoding, batch: Batch, failed: dict[int, str]) -> dict[int, tuple[Any, Any]]:
    """For texts with ranges that are not to be learnt: bool[tokens of the text], and where it is cut or None."""
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
                raise FeedmillError("the tokenizer's engines differ on a document with a loss mask", kind="self-check")
            out[index] = _datatrove(offsets, ranges) if how.cut else (_mask(offsets, ranges), None)
    return out


def loss_ranges(fields: Sequence[Any]) -> list[tuple[int, int]]:
    """Ranges of characters from ``no_loss_ranges``, of the document or its ``metadata``. Raises ValueError."""
    own, metadata = fields[0], fields[1]
    found = own if own is not None else metadata.get("no_loss_ranges") if isinstance(metadata, dict) else None
    if found is None:
        return []
    try:
        ranges = [(start, end) for start, end in found]
    except (TypeError, ValueError):
        ranges = [(-1, -1)]
    if not all(type(s) is int and type(e) is int and 0 <= s <= e for s, e in ranges):
        raise ValueError("its no_loss_ranges are not pairs of characters, [[begin, end], ...]")
    return ranges


def _mask(offsets: Int64s, ranges: list[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """False for tokens in the ranges: those that begin before a range does and reach into it count as in it."""
    mask = np.ones(len(offsets), np.bool_)
    begins, ends = offsets[:, 0], offsets[:, 1]
    for start, stop in ranges:
        mask &= ~((ends > start) & (ends <= stop) & (ends > begins))
    return mask


def _datatrove(offsets: Int64s, ranges: list[tuple[int, int]]) -> tuple[npt.NDArray[np.bool_], int | None]:
    """The mask by datatrove's rule: a range whose end is at no token drops everything from its beginning on."""
    mask, stop = np.ones(len(offsets), np.bool_), None
    for start, end in ranges:
        first, last = _token_at(offsets, start), _token_at(offsets, end)
        mask[first:last] = False
        if last is None:
            stop = min(len(offsets) if first is None else first, len(offsets) if stop is None else stop)
    return mask, stop


def _token_at(offsets: Int64s, character: int) -> int | None:
    found = np.flatnonzero((offsets[:, 0] <= character) & (character < offsets[:, 1]))
    return int(found[0]) if len(found) else None
