"""Extract the units of rows of documents and their keys: documents, paragraphs, or n-grams of paragraphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.curation.options import DOCUMENTS, Dedupe
from feedmill.documents.rows import bad_row, dump, ids_of, is_blank, load, parse_texts
from feedmill.errors import DataError
from feedmill.formats.documents import rows_of
from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.text import paragraphs
from feedmill.kernels.text.paragraphs import CHARACTERS, DOLMA
from feedmill.kernels.text.wordbreak import count_words, tables

Ints = npt.NDArray[np.int64]
EMPTY_LIST, NO_KEY = 0, 1
"""Attribute of a row without duplicates: an empty list, or no attribute."""


@dataclass(slots=True)
class Units:
    """Units of a block of rows, and their keys.

    Attributes:
        ids: Id of each row, as JSON.
        states: `EMPTY_LIST` or `NO_KEY` for each row, uint8[rows].
        rows, starts, ends: Row and span of each unit, int64[units].
        bounds: The keys of unit i are ``bounds[0, i]:bounds[1, i]``, int64[2, units].
        data: Text of the rows as UTF-8.
        lows, highs: Part p of a key is ``data[lows[p]:highs[p]]``.
        firsts, counts: Key k consists of the ``counts[k]`` parts from ``firsts[k]`` on.
    """

    ids: list[bytes]
    states: npt.NDArray[np.uint8]
    rows: Ints
    starts: Ints
    ends: Ints
    bounds: Ints
    data: npt.NDArray[np.uint8]
    lows: Ints
    highs: Ints
    firsts: Ints
    counts: Ints


def read_units(lines: bytes, options: Dedupe, file: str, first: int) -> Units:
    """Return the units of the rows of these whole lines.

    Args:
        file: File name for error messages.
        first: Line number of the first row.

    Raises:
        DataError: A row is not a document, has no id, or lacks the key.
    """
    if options.by == DOCUMENTS and options.key != "$.text":
        ids, texts = _by_path(rows_of(lines), options, file, first)
    else:
        parsed = parse_texts(lines, file, first)
        ids = ids_of(parsed, file, first)
        texts = [row.text for row in parsed]
    if not all(ids):
        line = first + ids.index(b"")
        if not options.defects:
            raise bad_row(b"-", "the row has no 'id'", file, line)
        ids = [one or b"null" for one in ids]
    make = _documents if options.by == DOCUMENTS else _paragraphs
    return make(ids, texts, options)


def _joined(texts: list[str]) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the concatenated texts as UTF-8, and the offset of each, int64[n + 1]."""
    encoded = [text.encode() for text in texts]
    offsets = bounds_of([len(text) for text in encoded])
    # The padding keeps the array from being empty.
    return np.frombuffer(b"".join(encoded) + bytes(8), np.uint8), offsets


def _by_path(rows: Sequence[bytes], options: Dedupe, file: str, first: int) -> tuple[list[bytes], list[str]]:
    from feedmill.documents.expressions import compile_path

    path = compile_path(options.key)
    ids, texts = [], []
    for line, row in enumerate(rows, first):
        try:
            document = load(row)
        except orjson.JSONDecodeError as error:
            raise bad_row(row, str(error), file, line) from None
        value = _first(path, document)
        if type(value) in (int, float) and not options.dolma:  # for example ids
            value = dump(value).decode()
        if not isinstance(value, str):
            raise DataError(
                f"{options.key} is {'missing' if value is None else 'not a string'}, but documents are compared by it",
                file=file,
                record=f"line {line}",
                kind="bad-document",
                fix="Use another key, or fix the document.",
            )
        ids.append(dump(document["id"]) if "id" in document else b"")
        texts.append(value)
    return ids, texts


def _first(path: Callable[[Any], list[Any]], document: Any) -> Any:
    found = path(document) if isinstance(document, dict) else []
    return found[0] if found else None


def _documents(ids: list[bytes], texts: list[str], options: Dedupe) -> Units:
    data, offsets = _joined(texts)
    lows, highs = offsets[:-1], offsets[1:]
    sizes = highs - lows
    chosen = sizes >= options.min_length
    if not options.keep_empty:
        chosen &= np.array([not is_blank(text) for text in texts], np.bool_)
    if options.min_words:
        enough = count_words(data, lows, highs, *tables(), options.min_words)
        chosen &= enough
        states = np.where(enough if options.defects else chosen, NO_KEY, EMPTY_LIST).astype(np.uint8)
        if options.defects:
            chosen[:] = False
    else:
        states = np.where(chosen, NO_KEY, EMPTY_LIST).astype(np.uint8)
    rows = np.flatnonzero(chosen)
    ends = sizes[rows] if options.dolma else np.array([len(text) for text in texts], np.int64)[rows]
    count = len(rows)
    return Units(
        ids, states, rows, np.zeros(count, np.int64), ends, np.stack([np.arange(count), np.arange(1, count + 1)]), data,
        lows[rows], highs[rows], np.arange(count), np.ones(count, np.int64),
    )  # fmt: skip


def _paragraphs(ids: list[bytes], texts: list[str], options: Dedupe) -> Units:
    index, pages = tables()
    data, offsets = _joined(texts)
    separator = np.frombuffer(options.separator.encode(), np.uint8)
    rule = DOLMA if options.dolma else CHARACTERS
    most = int(np.count_nonzero(data == separator[0])) + len(ids) + 1
    rows, starts, ends, lows, highs, lengths = np.empty((6, most), np.int64)
    count = paragraphs.pieces(data, offsets, separator, rule, rows, starts, ends, lows, highs, lengths)
    rows, starts, ends, lows, highs, lengths = (a[:count] for a in (rows, starts, ends, lows, highs, lengths))
    chosen = lengths >= options.min_length
    if not options.keep_empty:
        chosen &= ~paragraphs.all_blank(data, lows, highs, index, pages)
    if options.min_words:
        chosen &= not options.defects
        chosen &= count_words(data, lows, highs, index, pages, options.min_words)
    states = np.where(np.diff(offsets) == 0, NO_KEY, EMPTY_LIST).astype(np.uint8)
    if options.ngram == 0:
        rows, starts, ends, lows, highs = (a[chosen] for a in (rows, starts, ends, lows, highs))
        number = np.arange(len(rows))
        return Units(
            ids, states, rows, starts, ends, np.stack([number, number + 1]), data,
            lows, highs, number, np.ones(len(rows), np.int64),
        )  # fmt: skip
    parts, keys = np.empty((2, len(data) + 2 * count + 1), np.int64), np.empty((2, len(data) + 2 * count + 1), np.int64)
    stride = options.stride
    used, made, bounds = paragraphs.ngrams(
        data, lows, highs, chosen, options.ngram, stride, rule, not options.skip_short, index, pages, parts, keys
    )
    return Units(
        ids, states, rows, starts, ends, bounds, data,
        parts[0, :used].copy(), parts[1, :used].copy(), keys[0, :made].copy(), keys[1, :made].copy(),
    )  # fmt: skip
