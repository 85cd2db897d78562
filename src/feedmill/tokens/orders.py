"""Orders of documents: Feedmill's own shuffle, and those of Modalities and datatrove, bit for bit.

Feedmill's order is the keyed permutation of `feedmill.planning.permutation`, which is computed on demand without
memory. The other two are whole permutations, 8 bytes per document:

    modalities  `shuffle_tokenized_data` and `shuffle_jsonl_data`: `random.Random(seed).shuffle` of the documents
    chunk       Modalities' shuffled chunks: `numpy.random.default_rng(hashed seed).shuffle`, see `chunk_seed`
    datatrove   `numpy.random.default_rng(seed).permutation`; its merger permutes the *files* that documents come from
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Sequence

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Int64s
from feedmill.planning.permutation import derive, permute

Numbers = Int64s | range
"""Numbers of documents, in the order in which they are written."""

ORDERS = ("feedmill", "modalities", "datatrove")

_BLOCK = 1 << 20
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
    raise ConfigError(f"unknown order {order!r}", kind="unknown-order", fix=f"Known are: {', '.join(ORDERS)}.")


def generator(seed: int) -> np.random.Generator:
    """Return numpy's `default_rng`. Raises `ConfigError` for negative seeds, which it does not support."""
    if seed < 0:
        raise ConfigError(f"the seed is {seed}", kind="bad-seed", fix="Use a seed of 0 or more.")
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
            kind="bad-chunk",
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
            kind="bad-ratio",
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
