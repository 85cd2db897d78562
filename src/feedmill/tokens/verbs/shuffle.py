"""Shuffle the documents of token files, or the lines of JSONL files.

Feedmill's own order is the keyed permutation of `feedmill.planning.permutation`, which is computed on demand without
memory. Those of Modalities and datatrove, bit for bit, are whole permutations, 8 bytes per document:

    modalities  `shuffle_tokenized_data` and `shuffle_jsonl_data`: `random.Random(seed).shuffle` of the documents
    chunk       Modalities' shuffled chunks: `numpy.random.default_rng(hashed seed).shuffle`, see `chunk_seed`
    datatrove   `numpy.random.default_rng(seed).permutation`; its merger permutes the *files* that documents come from
"""

from __future__ import annotations

import hashlib
import os
import random
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Int64s
from feedmill.jobs.options import verb
from feedmill.planning.permutation import derive, permute
from feedmill.storage import paths_of
from feedmill.tokens.corpus import Chunks, Corpus, Documents, Units, open_corpus
from feedmill.tokens.options import Shuffle
from feedmill.tokens.rewrite import Part, TokensReport, form_for, limited, start


@verb(Shuffle)
def shuffle(options: Shuffle) -> TokensReport:
    """Return what was written, with the seed that was used.

    Raises:
        EmptyResult: the inputs hold no documents.
        ConfigError: the inputs are incompatible, the output exists, or the order does not support the other options.
    """
    inputs = paths_of(options.inputs)
    output = os.fspath(options.output)
    if options.chunk is not None and options.order == "modalities":
        raise ConfigError(
            "Modalities has no order of chunks", fix="Use --order feedmill or datatrove.", kind="bad-option"
        )
    output, limit = limited(output, options.max_tokens_per_file, options.max_file_size)
    corpus = open_corpus(inputs, token_size=options.token_size, mixed=options.mixed_tokenizers)
    form = form_for(output, corpus, drop_loss=options.drop_loss)
    if options.chunk is not None and form.format == "jsonl":
        raise ConfigError("lines of text cannot be cut into chunks", file=output, fix="Omit --chunk.")
    identity = {
        "verb": "shuffle",
        "order": options.order,
        "chunk": options.chunk,
        "documents_too": options.documents_too,
        "max_tokens_per_file": options.max_tokens_per_file,
        "max_file_size": limit,
    }
    running: dict[str, Any] = {name: getattr(options, name) for name in ("overwrite", "workers", "progress")}
    with start(output, corpus, form, identity, seed=options.seed, **running) as run:
        units, numbers = ordered(corpus, options.order, run.seed, options.chunk, options.documents_too)
        most = options.max_tokens_per_file
        run.divide(units, numbers, output, tokens=most, size=limit, beyond=True, empty=options.allow_empty)
        return run.finish()


def ordered(
    corpus: Corpus, order: str, seed: int, chunk: int | None, documents_too: bool = False
) -> tuple[Units, Int64s]:
    """Return the units to shuffle, and their shuffled numbers, int64[n]. Raises as `shuffle`."""
    if chunk is None:
        return Documents(corpus), shuffled(len(corpus), seed, order)
    if order == "datatrove":
        # One generator for both: the chunks' permutation continues where that of the documents ended.
        chance = generator(seed)
        documents = chance.permutation(len(Documents(corpus))) if documents_too else None
        chunks = Chunks(corpus, chunk, documents, keep_tails=False)
        return chunks, chance.permutation(len(chunks))
    documents = shuffled(len(Documents(corpus)), seed, order) if documents_too else None
    chunks = Chunks(corpus, chunk, documents)
    return chunks, shuffled(len(chunks), seed, order)


def shuffle_chunk(
    inputs: Sequence[str],
    output: str,
    *,
    chunk: int,
    chunks: int,
    global_seed: int | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> TokensReport:
    """Write Modalities' shuffled chunk: chunk `chunk` of `chunks` of every file, concatenated and shuffled.

    Args:
        inputs: files of one format.
        output: the file to write.
        chunk, chunks: number of the chunk, and number of chunks; see `chunk_range`.
        global_seed: seed of the order, together with `chunk`; drawn at random by default.

    Raises:
        ConfigError: no file has a document in that chunk, or as in `shuffle`.
    """
    corpus = open_corpus(inputs)
    form = form_for(output, corpus)
    options = {"verb": "shuffle", "order": "modalities chunk", "chunk": chunk, "chunks": chunks}
    with start(output, corpus, form, options, seed=global_seed, overwrite=overwrite, progress=progress) as run:
        numbers = chunk_documents(corpus, chunk, chunks)
        if not len(numbers):
            raise ConfigError(
                f"no file has a document in chunk {chunk} of {chunks}",
                file=output,
                kind="too-few-samples",
                fix="Use fewer chunks.",
            )
        numbers = numbers[chunk_shuffled(len(numbers), run.seed, chunk)]
        run.write(Documents(corpus), [Part(output, numbers)])
        return run.finish()


def chunk_documents(corpus: Corpus, chunk: int, chunks: int) -> Int64s:
    """Return the documents of one chunk of every file, file after file, int64."""
    rows = []
    for number, (_, shard) in enumerate(corpus.shards):
        part = chunk_range(shard.documents or 0, chunks, chunk)
        rows.append(np.arange(part.start, part.stop) + corpus.firsts[number])
    return np.concatenate(rows)


ORDERS = ("feedmill", "modalities", "datatrove")

_LISTED = 4 << 20
_BLOCK = 1 << 20


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
