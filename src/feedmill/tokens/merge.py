"""Merge token files or JSONL files: one after another, or in the order of datatrove's merger."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Form, Int64s, Tokens
from feedmill.jobs.dry_run import active, can_run_dry
from feedmill.storage import open_store, paths_of, split_url
from feedmill.tokens.corpus import Chunks, Corpus, Documents, Numbers, Units, open_corpus
from feedmill.tokens.outputs import LINES, has_parts, part_path
from feedmill.tokens.rewrite import Report, form_for, limited, start
from feedmill.tokens.shuffle import generator


@can_run_dry
def merge(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    order: Literal["stored", "datatrove"] = "stored",
    seed: int | None = None,
    chunk: int | None = None,
    max_tokens_per_file: int | None = None,
    max_file_size: int | str | None = None,
    max_tokens: int | None = None,
    token_size: int | None = None,
    mixed_tokenizers: bool = False,
    drop_loss: bool = False,
    allow_empty: bool = False,
    learn_between: tuple[int, int] | None = None,
    dry_run: bool = False,  # noqa: ARG001 - see `can_run_dry`
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool | None = None,
) -> Report:
    """Write the documents of several files to one (or, by size, several) of any token format.

    To resume a killed run, repeat the call.

    Args:
        inputs: files, or folders of files of one format; paths or URLs.
        output: the file to write; with ``{part}`` in its name if `max_tokens_per_file` is given. Numbered ``.ds`` files
            get a joint ``.metadata``, as datatrove writes it.
        order: ``stored`` is one file after another; ``datatrove`` is the order of its merger, which shuffles the files
            that documents come from.
        seed: seed of datatrove's order; drawn at random by default.
        chunk: merge chunks of N tokens instead of documents; the tail of a file is dropped, as in datatrove.
        max_tokens_per_file: start a new file once a file has this many tokens.
        max_file_size: write numbered files of at most this size, in bytes or such as ``"2GB"``. A longer document makes
            a longer file. An `output` without ``{part}`` gets ``_{part}`` before its suffix.
        max_tokens: stop once the output has this many tokens.
        token_size: bytes per token of the output, if the inputs differ.
        mixed_tokenizers: allow inputs from different tokenizers.
        drop_loss: drop the loss masks of the inputs.
        allow_empty: write the output even if it has no documents.
        learn_between: ids of a begin and an end marker: write a loss mask that selects the tokens between them in each
            document; see `feedmill.tokens.instruct.between`.
        dry_run: write nothing; the report has what would be written.
        overwrite: overwrite existing files.
        workers: processes that write files; default: one per core if there are several files and much to do.

    Raises:
        ConfigError: the inputs are incompatible, or the output exists.
        EmptyResult: the inputs have no documents.
    """
    inputs = paths_of(inputs)
    output = os.fspath(output)
    if chunk is not None and order != "datatrove":
        raise ConfigError("chunks can only be merged in datatrove's order", fix="Add --order datatrove.")
    if order not in ("stored", "datatrove"):
        raise ConfigError(f"unknown order {order!r}", kind="bad-option", fix="Use stored or datatrove.")
    output, limit = limited(output, max_tokens_per_file, max_file_size)
    corpus = open_corpus(inputs, token_size=token_size, mixed=mixed_tokenizers)
    form = form_for(output, corpus, drop_loss=drop_loss)
    if chunk is not None and form.format == LINES:
        raise ConfigError("lines of text cannot be cut into chunks", file=output, fix="Omit --chunk.")
    mask = None
    if learn_between is not None:
        form, mask = _marked(form, output, chunk), partial(_mask_between, learn_between)
    options = {
        "verb": "merge",
        "order": order,
        "chunk": chunk,
        "max_tokens_per_file": max_tokens_per_file,
        "max_file_size": limit,
        "max_tokens": max_tokens,
        "learn_between": learn_between,
    }
    mixed = order == "datatrove"
    running: dict[str, Any] = {"overwrite": overwrite, "workers": workers, "progress": progress}
    with start(output, corpus, form, options, seed=seed, seeded=mixed, **running) as run:
        units: Units = Documents(corpus) if chunk is None else Chunks(corpus, chunk, keep_tails=False)
        counts = [shard.documents or 0 for _, shard in corpus.shards]
        if isinstance(units, Chunks):
            counts = units.counts
        numbers: Numbers = range(len(units)) if order == "stored" else interleaved(counts, run.seed)
        done = run.divide(
            units,
            numbers,
            output,
            tokens=max_tokens_per_file,
            size=limit,
            most=max_tokens,
            mask=mask,
            empty=allow_empty,
        )
        if form.format == "ds" and has_parts(output) and active() is None:
            _write_total(output, form, sum(d.tokens for d in done))
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
