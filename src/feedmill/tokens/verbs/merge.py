"""Merge token files or JSONL files: one after another, or in the order of datatrove's merger."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Form, Int64s, Tokens
from feedmill.jobs.dry_run import perform
from feedmill.jobs.options import verb
from feedmill.storage import open_store, paths_of, split_url
from feedmill.tokens.corpus import LINES, Chunks, Corpus, Documents, Numbers, Units, open_corpus
from feedmill.tokens.options import Merge
from feedmill.tokens.outputs import has_parts, part_path
from feedmill.tokens.rewrite import TokensReport, form_for, limited, start
from feedmill.tokens.verbs.shuffle import generator


@verb(Merge)
def merge(options: Merge) -> TokensReport:
    """Numbered ``.ds`` files get a joint ``.metadata``, as datatrove writes it.

    Raises:
        ConfigError: the inputs are incompatible, or the output exists.
        EmptyResult: the inputs have no documents.
    """
    inputs = paths_of(options.inputs)
    output = os.fspath(options.output)
    if options.chunk is not None and options.order != "datatrove":
        raise ConfigError("chunks can only be merged in datatrove's order", fix="Add --order datatrove.")
    if options.order not in ("stored", "datatrove"):
        raise ConfigError(f"unknown order {options.order!r}", kind="bad-option", fix="Use stored or datatrove.")
    output, limit = limited(output, options.max_tokens_per_file, options.max_file_size)
    corpus = open_corpus(inputs, token_size=options.token_size, mixed=options.mixed_tokenizers)
    form = form_for(output, corpus, drop_loss=options.drop_loss)
    if options.chunk is not None and form.format == LINES:
        raise ConfigError("lines of text cannot be cut into chunks", file=output, fix="Omit --chunk.")
    mask = None
    if options.learn_between is not None:
        form, mask = _marked(form, output, options.chunk), partial(_mask_between, options.learn_between)
    identity = {
        "verb": "merge",
        "order": options.order,
        "chunk": options.chunk,
        "max_tokens_per_file": options.max_tokens_per_file,
        "max_file_size": limit,
        "max_tokens": options.max_tokens,
        "learn_between": options.learn_between,
    }
    mixed = options.order == "datatrove"
    running: dict[str, Any] = {name: getattr(options, name) for name in ("overwrite", "workers", "progress")}
    with start(output, corpus, form, identity, seed=options.seed, seeded=mixed, **running) as run:
        units: Units = Documents(corpus) if options.chunk is None else Chunks(corpus, options.chunk, keep_tails=False)
        counts = [shard.documents or 0 for _, shard in corpus.shards]
        if isinstance(units, Chunks):
            counts = units.counts
        numbers: Numbers = range(len(units)) if options.order == "stored" else interleaved(counts, run.seed)
        done = run.divide(
            units,
            numbers,
            output,
            tokens=options.max_tokens_per_file,
            size=limit,
            most=options.max_tokens,
            mask=mask,
            empty=options.allow_empty,
        )
        if form.format == "ds" and has_parts(output):
            total = sum(file.tokens for file in done)
            perform(lambda _: None, partial(_write_total, output, form, total))
        _note_unknown(run.notes, corpus)
        return run.finish()


def _marked(form: Form, output: str, chunk: int | None) -> Form:
    """Return the form with a loss mask. Raises `ConfigError` for lines of text, and for chunks."""
    if form.format == LINES or chunk is not None:
        raise ConfigError(
            "a loss mask can only be made for token files of whole documents",
            file=output,
            kind="unsupported",
            fix="Merge token files, and omit --chunk.",
        )
    return replace(form, loss=True)


def _mask_between(markers: tuple[int, int], tokens: Tokens, lengths: Int64s, number: int) -> npt.NDArray[np.bool_]:
    from feedmill.tokens.instruct import between

    return between(tokens, lengths, *markers, number=number)


def _write_total(output: str, form: Form, tokens: int) -> None:
    """Write datatrove's ``<name>.ds.metadata`` of all files; its name is the output's name without the part number."""
    from feedmill.formats.tokens.ds import METADATA, metadata_text

    folder, name = split_url(part_path(output, ""))
    text = metadata_text(form.tokenizer, form.token_size, tokens)
    open_store(folder).write_bytes(name.lstrip("_-.") + METADATA, text.encode())


def _note_unknown(notes: list[str], corpus: Corpus) -> None:
    unknown = sum(manifest is None or manifest.tokenizer is None for manifest in corpus.manifests)
    if corpus.format != "jsonl" and len(corpus.shards) > 1 and unknown:
        notes.append(
            f"the tokenizer of {unknown} of {len(corpus.shards)} files is unknown: they have no manifest that"
            " records it"
        )


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
