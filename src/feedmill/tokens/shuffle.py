"""Shuffle the documents of token files, or the lines of JSONL files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Int64s
from feedmill.jobs.dry_run import can_run_dry
from feedmill.storage import paths_of
from feedmill.tokens.corpus import Corpus, open_corpus
from feedmill.tokens.merge import count_left_out, divided, divided_by_size, limited, note_larger
from feedmill.tokens.rewrite import Report, start
from feedmill.tokens.targets import Part, form_for, numbered_parts, warn_of_one_file
from feedmill.tokens.units import Chunks, Documents, Units, chunk_range, chunk_shuffled, generator, shuffled

Order = Literal["feedmill", "modalities", "datatrove"]


@can_run_dry
def shuffle(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    seed: int | None = None,
    order: Order = "feedmill",
    chunk: int | None = None,
    documents_too: bool = False,
    max_tokens_per_file: int | None = None,
    max_file_size: int | str | None = None,
    token_size: int | None = None,
    mixed_tokenizers: bool = False,
    drop_loss: bool = False,
    allow_empty: bool = False,
    dry_run: bool = False,  # noqa: ARG001 - see `can_run_dry`
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool | None = None,
) -> Report:
    """Write all documents of some files in a shuffled order.

    Memory holds only the order (8 bytes per document) and one batch. To resume a killed run, repeat the call.

    Args:
        inputs: files, or folders of files of one format; paths or URLs. JSONL files are shuffled by lines.
        output: the file to write; with ``{part}`` in its name if `max_tokens_per_file` is given.
        seed: seed of the order; drawn at random and reported by default.
        order: ``feedmill`` for the keyed permutation; ``modalities`` or ``datatrove`` for the order of these tools.
        chunk: shuffle chunks of N tokens instead of documents. A document that spans several chunks becomes one
            document per chunk. With datatrove's order the tail of each file is dropped.
        documents_too: shuffle documents first, then chunks of them.
        max_tokens_per_file: start a new file once a file has more tokens.
        max_file_size, token_size, mixed_tokenizers, drop_loss, allow_empty, dry_run, overwrite, workers: as in `merge`.

    Returns:
        A report; `seed` is the one that was used.

    Raises:
        EmptyResult: the inputs hold no documents.
        ConfigError: the inputs are incompatible, the output exists, or the order does not support the other options.
    """
    inputs = paths_of(inputs)
    output = os.fspath(output)
    if chunk is not None and order == "modalities":
        raise ConfigError(
            "Modalities has no order of chunks", fix="Use --order feedmill or datatrove.", kind="bad-option"
        )
    output, limit = limited(output, max_tokens_per_file, max_file_size)
    corpus = open_corpus(inputs, token_size=token_size, mixed=mixed_tokenizers)
    form = form_for(output, corpus, drop_loss=drop_loss)
    if chunk is not None and form.format == "jsonl":
        raise ConfigError("lines of text cannot be cut into chunks", file=output, fix="Omit --chunk.")
    options = {
        "verb": "shuffle",
        "order": order,
        "chunk": chunk,
        "documents_too": documents_too,
        "max_tokens_per_file": max_tokens_per_file,
        "max_file_size": limit,
    }
    running: dict[str, Any] = {"overwrite": overwrite, "workers": workers, "progress": progress}
    with start(output, corpus, form, options, seed=seed, **running) as run:
        units, numbers = ordered(corpus, order, run.seed, chunk, documents_too)
        pieces = divided(units, numbers, at_least=max_tokens_per_file, beyond=True)
        if limit is not None:
            pieces = divided_by_size(units, numbers, form, limit)
        elif len(pieces) == 1:
            warn_of_one_file(output, corpus.tokens * form.token_size)
        run.write(units, numbered_parts(output, pieces), numbered=output, allow_empty=allow_empty)
        report = run.finish()
        count_left_out(report, units, len(numbers))
        note_larger(report, form, limit)
        return report


def ordered(
    corpus: Corpus, order: str, seed: int, chunk: int | None, documents_too: bool = False
) -> tuple[Units, Int64s]:
    """Return the units to shuffle, and their shuffled numbers, int64[n]. Raises as `shuffle`."""
    if chunk is None:
        return Documents(corpus), shuffled(len(corpus), seed, order)
    if order == "datatrove":
        # One generator for both: the chunks' permutation continues where that of the documents ended.
        random = generator(seed)
        documents = random.permutation(len(Documents(corpus))) if documents_too else None
        chunks = Chunks(corpus, chunk, documents, keep_tails=False)
        return chunks, random.permutation(len(chunks))
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
) -> Report:
    """Write Modalities' shuffled chunk: chunk `chunk` of `chunks` of every file, concatenated and shuffled.

    Args:
        inputs: files of one format.
        output: the file to write.
        chunk, chunks: number of the chunk, and number of chunks; see `feedmill.tokens.units.chunk_range`.
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
