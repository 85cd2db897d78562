"""Units of a corpus, their orders, and reading them: whole documents, or chunks of a fixed number of tokens.

Both map numbers of units to the spans of tokens to write. A chunk covers parts of several documents. Each part is
written as a separate document, so that documents stay separated.

Feedmill's own order is the keyed permutation of `feedmill.planning.permutation`, which is computed on demand without
memory. Those of Modalities and datatrove, bit for bit, are whole permutations, 8 bytes per document:

    modalities  `shuffle_tokenized_data` and `shuffle_jsonl_data`: `random.Random(seed).shuffle` of the documents
    chunk       Modalities' shuffled chunks: `numpy.random.default_rng(hashed seed).shuffle`, see `chunk_seed`
    datatrove   `numpy.random.default_rng(seed).permutation`; its merger permutes the *files* that documents come from

Units are read in batches of bounded size. Within a batch, documents are read in stored order, and adjacent ones at
once, so that a merge copies and a shuffle reads forward.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Int64s, Tokens
from feedmill.kernels.bounds import bounds_of, ranges
from feedmill.planning.permutation import derive, permute
from feedmill.tokens.corpus import Corpus, Mapped, Reads

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
                        kind="not-prepared",
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
            raise ConfigError(f"invalid chunk size: {size} tokens", kind="bad-option", fix="Use 1 or more.")
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


Numbers = Int64s | range
"""Numbers of documents, in the order in which they are written."""

ORDERS = ("feedmill", "modalities", "datatrove")

_LISTED = 4 << 20


def shuffled(n: int, seed: int, order: str = "feedmill") -> Int64s:
    """Return the numbers ``0 ... n-1`` in a shuffled order, int64[n].

    >>> shuffled(5, 11, "modalities").tolist()
    [2, 0, 1, 4, 3]

    Raises:
        ConfigError: the order is unknown, or it does not support the seed.
    """
    if order == "feedmill":
        out = np.empty(n, np.int64)
        key = derive(seed, "shuffle documents")
        for low in range(0, n, _BLOCK):
            high = min(low + _BLOCK, n)
            out[low:high] = permute(np.arange(low, high), n, key)
        return out
    if order == "modalities":
        # A list is three times as fast to shuffle, and five times as large.
        row: list[int] | array[int] = list(range(n)) if n < _LISTED else array("q", range(n))
        random.Random(seed).shuffle(row)
        return np.asarray(row, np.int64)
    if order == "datatrove":
        return generator(seed).permutation(n)
    raise ConfigError(f"unknown order {order!r}", kind="bad-option", fix=f"Known are: {', '.join(ORDERS)}.")


def generator(seed: int) -> np.random.Generator:
    """Return numpy's `default_rng`. Raises `ConfigError` for negative seeds, which it does not support."""
    if seed < 0:
        raise ConfigError(f"the seed is {seed}", kind="bad-option", fix="Use a seed of 0 or more.")
    return np.random.default_rng(seed)


def interleaved(counts: Sequence[int], seed: int | None) -> Int64s:
    """Return the order of datatrove's merger: the sequence of source files is shuffled, each file keeps its own order.

    Args:
        counts: documents of each file; they are numbered consecutively in this order.
        seed: None keeps the files one after another.

    Returns:
        int64[sum(counts)], documents in the order of writing.
    """
    rows = np.asarray(counts, np.int64)
    total = int(rows.sum())
    if seed is None:
        return np.arange(total)
    files = generator(seed).permutation(np.repeat(np.arange(len(rows)), rows))
    out = np.empty(total, np.int64)
    begin = 0
    for file, count in enumerate(rows.tolist()):
        out[files == file] = np.arange(begin, begin + count)
        begin += count
    return out


def chunk_range(n: int, chunks: int, chunk: int) -> range:
    """Return which of n documents belong to chunk number `chunk` of `chunks`, as Modalities divides them.

    The first ``n mod chunks`` chunks have ``ceil(n / chunks)`` documents, the others one less (all are equal if
    `chunks` divides n).

    >>> [len(chunk_range(10, 4, i)) for i in range(4)]
    [3, 3, 2, 2]

    Raises:
        ConfigError: there is no such chunk.
    """
    if chunks < 1 or not 0 <= chunk < chunks:
        raise ConfigError(
            f"chunk {chunk} of {chunks} does not exist",
            kind="bad-option",
            fix=f"Chunks are numbered from 0 to {max(0, chunks - 1)}." if chunks > 0 else "Use at least 1 chunk.",
        )
    size, more = divmod(n, chunks)
    begin = chunk * size + min(chunk, more)
    return range(begin, begin + size + (chunk < more))


def chunk_seed(*words: int | str) -> int:
    """Return the seed with which Modalities shuffles a chunk: `words` are the global seed and the chunk's number.

    The seed is the sum of their SHA-256 digests as numbers, modulo 2^32 - 1. Sums commute, so chunk 0 with seed 1 and
    chunk 1 with seed 0 are shuffled alike.

    >>> chunk_seed(42, 7)
    2113767392
    """
    digests = (hashlib.sha256(str(word).encode()).hexdigest() for word in words)
    return sum(int(digest, 16) for digest in digests) % (2**32 - 1)


def chunk_shuffled(n: int, global_seed: int, chunk: int) -> Int64s:
    """Return the order in which Modalities writes the n documents of a chunk, int64[n]."""
    row = np.arange(n)
    np.random.default_rng(chunk_seed(global_seed, chunk)).shuffle(row)
    return row


def parts_by_ratio(n: int, ratio: Sequence[float], seed: int) -> list[Int64s]:
    """Divide n documents at random into parts of exact sizes; each part keeps the stored order.

    Args:
        ratio: weights of 0 or more. Sizes are rounded by largest remainder.
        seed: seed of the assignment of documents to parts.

    Returns:
        The documents of each part in ascending order, int64.

    Raises:
        ConfigError: there are no weights, or they are negative or all zero.
    """
    if not ratio or min(ratio) < 0 or not 0 < sum(ratio) < float("inf"):
        raise ConfigError(
            f"invalid ratio {', '.join(map(str, ratio))}",
            kind="bad-option",
            fix="Pass numbers of 0 or more that are not all 0, e.g. 8,1,1.",
        )
    exact = np.asarray(ratio, np.float64) / sum(ratio) * n
    sizes = np.floor(exact).astype(np.int64)
    missing = n - int(sizes.sum())
    sizes[np.argsort(-(exact - sizes), kind="stable")[:missing]] += 1
    ends = np.cumsum(sizes)
    key = derive(seed, "split documents")
    part = np.empty(n, np.int16)
    for low in range(0, n, _BLOCK):
        high = min(low + _BLOCK, n)
        part[low:high] = np.searchsorted(ends, permute(np.arange(low, high), n, key), side="right")
    return [np.flatnonzero(part == number) for number in range(len(ratio))]


BATCH = 2 << 20
"""Bytes of tokens gathered at once; data that stays in the processor's cache is written fastest."""
_AT_ONCE = 1 << 16
_GAP = 1 << 20
"""Bytes between ranges of a remote file up to which they are read as one."""

Copy = Callable[[Iterable[tuple[int, int, int, int, int]], npt.NDArray[Any]], None]


def reads_of(corpus: Corpus, units: Units, numbers: Numbers) -> dict[int, Reads]:
    """Return what units read of each remote file, by the number of the file: 24 bytes of memory for each span."""
    if corpus.is_local:
        return {}
    blocks = [
        units.spans(np.asarray(numbers[low : low + _AT_ONCE], np.int64)) for low in range(0, len(numbers), _AT_ONCE)
    ]
    if not blocks:
        return {}
    shard, start, length = (np.concatenate(columns) for columns in zip(*blocks, strict=True))
    order = np.lexsort((start, shard))
    shard, start, length = shard[order], start[order], length[order]
    numbers_of, firsts = np.unique(shard, return_index=True)
    found = {}
    for number, low, high in zip(numbers_of.tolist(), firsts, [*firsts[1:], len(shard)], strict=True):
        # An empty document may come after one that begins at the same token.
        begins, ends = start[low:high], np.maximum.accumulate(start[low:high] + length[low:high])
        gap = _GAP // corpus.shards[number][1].dtype.itemsize
        apart = np.flatnonzero(begins[1:] - ends[:-1] > gap) + 1
        found[number] = Reads(
            begins[np.concatenate(([0], apart))], ends[np.append(apart - 1, -1)], int(length[low:high].sum())
        )
    return found


def gathered(
    corpus: Corpus, mapped: Mapped, units: Units, numbers: Numbers, loss: bool
) -> Iterator[tuple[Tokens, Int64s, npt.NDArray[np.bool_] | None]]:
    """Yield the tokens of units in batches: concatenated ids, tokens per document, and the mask if `loss`."""
    for low in range(0, len(numbers), _AT_ONCE):
        block = np.asarray(numbers[low : low + _AT_ONCE], np.int64)
        spans = units.spans(block)
        ends = np.cumsum(spans.length)
        first = 0
        while first < len(ends):
            base = int(ends[first - 1]) if first else 0
            limit = base + BATCH // corpus.dtype.itemsize
            last = max(int(np.searchsorted(ends, limit, side="right")), first + 1)
            batch = Spans(*(column[first:last] for column in spans))
            yield (
                _gather(mapped.tokens, mapped.copy, batch, corpus.dtype),
                batch.length,
                _gather(mapped.loss, None, batch, np.dtype(np.bool_)) if loss else None,
            )
            mapped.was_read((int(ends[last - 1]) - base) * corpus.dtype.itemsize)
            first = last


def _gather(
    file: Callable[[int], npt.NDArray[Any]], copy: Copy | None, spans: Spans, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return the concatenated tokens of spans. Adjacent spans are copied at once; one range is not copied."""
    shard, start, length = spans
    breaks = np.flatnonzero((shard[1:] != shard[:-1]) | (start[1:] != start[:-1] + length[:-1])) + 1
    first = np.concatenate(([0], breaks))
    to = np.cumsum(length) - length  # position of each span in the output
    total = int(length.sum())
    begins = start[first]
    sizes = np.add.reduceat(length, first)
    if len(first) == 1:
        piece = file(int(shard[0]))[int(begins[0]) : int(begins[0]) + total]
        return piece.astype(dtype, copy=False)
    out = np.empty(total, dtype)
    order = np.lexsort((begins, shard[first]))
    columns = (shard[first], begins, begins + sizes, to[first], to[first] + sizes)
    pieces = zip(*(column[order].tolist() for column in columns), strict=True)
    if copy is not None:
        copy(pieces, out)
        return out
    for number, low, high, at, end in pieces:
        out[at:end] = file(number)[low:high]
    return out
