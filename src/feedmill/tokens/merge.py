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
from feedmill.storage.limits import parse_size
from feedmill.tokens.corpus import Corpus, open_corpus
from feedmill.tokens.outputs import LINES
from feedmill.tokens.rewrite import Report, start
from feedmill.tokens.targets import (
    cut_by_size,
    ends_of,
    form_for,
    has_parts,
    larger_files,
    need_parts,
    numbered_parts,
    numbered_target,
    part_path,
    warn_of_one_file,
)
from feedmill.tokens.units import Chunks, Documents, Numbers, Units, in_blocks, interleaved, lengths_of


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
        pieces = divided(units, numbers, at_least=max_tokens_per_file, most=max_tokens)
        if limit is not None:
            pieces = divided_by_size(units, pieces[0], form, limit)
        elif len(pieces) == 1:
            warn_of_one_file(output, min(corpus.tokens, max_tokens or corpus.tokens) * form.token_size)
        done = run.write(units, numbered_parts(output, pieces), mask=mask, numbered=output, allow_empty=allow_empty)
        if form.format == "ds" and has_parts(output) and active() is None:
            _write_total(output, form, sum(d.tokens for d in done))
        report = run.finish()
        count_left_out(report, units, sum(len(piece) for piece in pieces))
        note_larger(report, form, limit)
        _note_unknown(report, corpus)
        return report


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


def divided(
    units: Units, numbers: Numbers, *, at_least: int | None = None, most: int | None = None, beyond: bool = False
) -> list[Numbers]:
    """Divide a sequence of units into files by their tokens.

    Args:
        at_least: a file ends with the unit that brings it to this many tokens. None writes one file.
        most: the sequence ends with the unit that brings it to this many tokens.
        beyond: a file ends only if it has more than `at_least` tokens, as in datatrove's tokenizer.

    Returns:
        The numbers of each file; at least one file.
    """
    for name, value in (("tokens per file", at_least), ("tokens", most)):
        if value is not None and value < 1:
            raise ConfigError(f"a limit of {value} {name}", kind="bad-option", fix="Give 1 or more.")
    if at_least is None and most is None:
        return [numbers]
    ends = np.cumsum(lengths_of(units, numbers))
    count = len(ends)
    if most is not None:
        count = min(count, int(np.searchsorted(ends, most, side="left")) + 1)
    if at_least is None:
        return [numbers[:count]]
    out, first = [], 0
    while first < count:
        base = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, base + at_least, side="right" if beyond else "left")) + 1
        last = max(first + 1, min(last, count))
        out.append(numbers[first:last])
        first = last
    return out or [numbers[:0]]


def limited(output: str, tokens: int | None, size: int | str | None) -> tuple[str, int | None]:
    """Return the output and the limit of bytes per file, for a limit of tokens or a size.

    Raises:
        ConfigError: both are given, the size is invalid, or the output has no ``{part}`` for a limit of tokens.
    """
    limit = parse_size(size, "--max-file-size")
    if tokens is not None:
        need_parts(output, "a limit of tokens per file")
    if limit is None:
        return output, None
    if tokens is not None:
        raise ConfigError(
            "files cannot be limited by tokens and by size",
            kind="bad-option",
            fix="Use either --max-tokens-per-file or --max-file-size.",
        )
    return numbered_target(output), limit


def divided_by_size(units: Units, numbers: Numbers, form: Form, limit: int) -> list[Numbers]:
    """Return the numbers of each file, at least one, so that no file is larger than `limit` unless by one unit."""
    if form.format == LINES:
        documents = np.isin(np.asarray(numbers, np.int64), units.corpus.firsts[1:] - 1).astype(np.int64)
    else:
        documents = in_blocks(units.documents, numbers)
    pieces = cut_by_size(form, ends_of(lengths_of(units, numbers), documents), limit)
    return [numbers[piece] for piece in pieces] or [numbers[:0]]


def note_larger(report: Report, form: Form, limit: int | None) -> None:
    """Note in a report which files are larger than the limit."""
    files = [(done.tokens, 0 if form.format == LINES else done.documents) for done in report.outputs]
    note = None if limit is None else larger_files(form, files, limit)
    if note:
        report.notes.append(note)


def _write_total(output: str, form: Form, tokens: int) -> None:
    """Write datatrove's ``<name>.ds.metadata`` of all files; its name is the output's name without the part number."""
    from feedmill.formats.tokens.ds import METADATA, metadata_text

    folder, name = split_url(part_path(output, ""))
    text = metadata_text(form.tokenizer, form.token_size, tokens)
    open_store(folder).write_bytes(name.lstrip("_-.") + METADATA, text.encode())


def count_left_out(report: Report, units: Units, written: int) -> None:
    """Add to a report what chunks do not contain, and units that were not written."""
    chunked = isinstance(units, Chunks)
    if isinstance(units, Chunks):
        lost = {"tokens in tails shorter than a chunk": units.left_out, "documents without tokens": units.empty}
        report.left_out.update({reason: count for reason, count in lost.items() if count})
    if len(units) > written:
        what = "chunks" if chunked else "documents"
        report.left_out[f"{what} beyond the limit of tokens"] = len(units) - written


def _note_unknown(report: Report, corpus: Corpus) -> None:
    unknown = sum(manifest is None or manifest.tokenizer is None for manifest in corpus.manifests)
    if corpus.format != "jsonl" and len(corpus.shards) > 1 and unknown:
        report.notes.append(
            f"the tokenizer of {unknown} of {len(corpus.shards)} files is unknown: they have no manifest that"
            " records it"
        )
