"""Units that are ordered: whole documents, or chunks of a fixed number of tokens.

Both map numbers of units to the spans of tokens to write. A chunk covers parts of several documents. Each part is
written as a separate document, so that documents stay separated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Int64s
from feedmill.kernels.bounds import bounds_of, ranges
from feedmill.tokens.corpus import Corpus
from feedmill.tokens.orders import Numbers

_BLOCK = 1 << 20


class Spans(NamedTuple):
    """Tokens ``[start, start + length)`` of the files `shard`; int64[n] each."""

    shard: Int64s
    start: Int64s
    length: Int64s


class Units(Protocol):
    """Interface of a numbered sequence of units of a corpus."""

    corpus: Corpus

    def __len__(self) -> int: ...

    def lengths(self, numbers: Int64s) -> Int64s:
        """Return the number of tokens of each unit, int64[n]."""

    def documents(self, numbers: Int64s) -> Int64s:
        """Return the number of documents that each unit becomes, at most, int64[n]."""

    def spans(self, numbers: Int64s) -> Spans:
        """Return the concatenated spans of these units; at least one for each unit that has tokens."""

    def origins(self, numbers: Int64s) -> tuple[Int64s, Int64s] | None:
        """Return the file, and the document in it, of each span; None if a file has no index of documents."""


class Documents(Units):
    """Units that are the documents of a corpus, with one span each."""

    def __init__(self, corpus: Corpus) -> None:
        if not corpus.indexed:
            for store, shard in corpus.shards:
                if shard.documents is None:
                    raise ConfigError(
                        "the index of documents is missing",
                        file=store.locate(shard.path),
                        kind="no-index",
                        fix="Restore the index, or shuffle chunks of tokens: --chunk 2048.",
                    )
        self.corpus = corpus

    def __len__(self) -> int:
        return len(self.corpus)

    def lengths(self, numbers: Int64s) -> Int64s:
        return self.spans(numbers).length

    def documents(self, numbers: Int64s) -> Int64s:
        return np.ones(len(numbers), np.int64)

    def origins(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        shard = np.searchsorted(self.corpus.firsts, numbers, side="right").astype(np.int64) - 1
        return shard, numbers - self.corpus.firsts[shard]

    def spans(self, numbers: Int64s) -> Spans:
        numbers = np.asarray(numbers, np.int64)
        firsts, shards = self.corpus.firsts, self.corpus.shards
        if len(shards) == 1:
            bounds = shards[0][1].bounds
            start = np.asarray(bounds[numbers], np.int64)
            return Spans(np.zeros(len(numbers), np.int64), start, np.asarray(bounds[numbers + 1], np.int64) - start)
        shard = np.searchsorted(firsts, numbers, side="right") - 1
        start, stop = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
        for number in np.unique(shard).tolist():
            rows = np.flatnonzero(shard == number)
            local = numbers[rows] - firsts[number]
            bounds = shards[number][1].bounds
            start[rows], stop[rows] = bounds[local], bounds[local + 1]
        return Spans(shard.astype(np.int64), start, stop - start)


class Chunks(Units):
    """Units that are chunks of a fixed number of tokens.

    Args:
        corpus: the documents.
        size: tokens per chunk.
        order: order of documents, int64[n], whose concatenation is cut; None cuts each file separately.
        keep_tails: whether the tokens left at the end of a sequence are a shorter chunk; otherwise they are dropped.

    Attributes:
        left_out: number of tokens at the ends that are in no chunk.
        empty: number of documents without tokens, which are in no chunk.
        counts: number of chunks of each sequence.
    """

    def __init__(self, corpus: Corpus, size: int, order: Int64s | None = None, *, keep_tails: bool = True) -> None:
        if size < 1:
            raise ConfigError(f"invalid chunk size: {size} tokens", kind="bad-chunk-size", fix="Use 1 or more.")
        self.corpus, self.size, self._order = corpus, size, order
        if order is None:
            row_tokens = [shard.tokens for _, shard in corpus.shards]
            self._ends = _document_ends(corpus)
        else:
            row_tokens = [corpus.tokens]
            self._ends = np.cumsum(Documents(corpus).lengths(order))
        self.empty = int((np.diff(self._ends, prepend=0) == 0).sum())
        tokens = np.asarray(row_tokens, np.int64)
        self._begins = np.cumsum(tokens) - tokens
        whole, tails = np.divmod(tokens, size)
        self.counts: list[int] = (whole + (tails > 0) if keep_tails else whole).tolist()
        self.left_out = 0 if keep_tails else int(tails.sum())
        self._stops = self._begins + (tokens if keep_tails else whole * size)
        self._firsts = bounds_of(self.counts)

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def _range(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return where chunks begin and end, in tokens of all concatenated sequences."""
        row = np.searchsorted(self._firsts, numbers, side="right") - 1
        begin = self._begins[row] + (numbers - self._firsts[row]) * self.size
        return begin, np.minimum(begin + self.size, self._stops[row])

    def lengths(self, numbers: Int64s) -> Int64s:
        begin, end = self._range(np.asarray(numbers, np.int64))
        return end - begin

    def documents(self, numbers: Int64s) -> Int64s:
        return self._pieces(*self._range(np.asarray(numbers, np.int64)))[1]

    def _pieces(self, begin: Int64s, end: Int64s) -> tuple[Int64s, Int64s]:
        """Return the first document of each range of tokens, and their number, with empty ones."""
        first = np.searchsorted(self._ends, begin, side="right")
        return first, np.searchsorted(self._ends, end, side="left") - first + 1

    def spans(self, numbers: Int64s) -> Spans:
        begin, end = self._range(np.asarray(numbers, np.int64))
        first, counts = self._pieces(begin, end)
        unit = np.repeat(np.arange(len(begin)), counts)
        document = ranges(first, counts)  # their numbers in the sequence
        stop = self._ends[document]
        start = np.where(document > 0, self._ends[document - 1], 0)
        low, high = np.maximum(start, begin[unit]), np.minimum(stop, end[unit])
        filled = high > low  # empty documents inside a chunk are dropped
        document, low, high, start = document[filled], low[filled], high[filled], start[filled]
        if self._order is None:
            shard = np.searchsorted(self._begins, low, side="right") - 1
            return Spans(shard.astype(np.int64), low - self._begins[shard], high - low)
        places = Documents(self.corpus).spans(self._order[document])
        return Spans(places.shard, places.start + (low - start), high - low)

    def origins(self, numbers: Int64s) -> tuple[Int64s, Int64s] | None:
        if not self.corpus.indexed:
            return None
        shard, start, _ = self.spans(numbers)
        row = np.empty(len(start), np.int64)
        for number in np.unique(shard).tolist():
            of = np.flatnonzero(shard == number)
            row[of] = np.searchsorted(self.corpus.shards[number][1].bounds, start[of], side="right") - 1
        return shard, row


def _document_ends(corpus: Corpus) -> Int64s:
    """Return the end of each document, in tokens of all concatenated files. A file without an index is one document."""
    ends, base = [np.zeros(0, np.int64)], 0
    for _, shard in corpus.shards:
        if shard.documents is None:
            ends.append(np.asarray([base + shard.tokens], np.int64))
        else:
            ends.append(np.asarray(shard.bounds[1:], np.int64) + base)
        base += shard.tokens
    return np.concatenate(ends)


def lengths_of(units: Units, numbers: Numbers) -> Int64s:
    """Return the number of tokens of each unit, int64[n], computed in batches."""
    return in_blocks(units.lengths, numbers)


def in_blocks(function: Callable[[Int64s], Int64s], numbers: Numbers) -> Int64s:
    """Return the results of a function of units, int64[n], computed in batches."""
    blocks = [function(np.asarray(numbers[low : low + _BLOCK], np.int64)) for low in range(0, len(numbers), _BLOCK)]
    return np.concatenate([np.zeros(0, np.int64), *blocks])
