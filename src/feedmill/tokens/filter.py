"""Filter the documents of token files, or the lines of JSONL files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError
from feedmill.formats.tokens.base import Int64s, Tokens
from feedmill.jobs.dry_run import can_run_dry
from feedmill.tokens.corpus import Corpus, Documents, gathered, lengths_of, open_corpus
from feedmill.tokens.rewrite import Part, Report, form_for, start

Bools = npt.NDArray[np.bool_]


@can_run_dry
def filter(
    inputs: Sequence[str],
    output: str,
    *,
    min_length: int | None = None,
    max_length: int | None = None,
    keep: Sequence[int] | Int64s | None = None,
    drop: Sequence[int] | Int64s | None = None,
    predicate: Callable[[int, Tokens], bool] | None = None,
    token_size: int | None = None,
    mixed_tokenizers: bool = False,
    drop_loss: bool = False,
    allow_empty: bool = False,
    dry_run: bool = False,  # noqa: ARG001 - see `can_run_dry`
    overwrite: bool = False,
    progress: bool | None = None,
) -> Report:
    """Write the documents that pass all given tests, in stored order.

    Args:
        inputs: files, or folders of files of one format; paths or URLs.
        output: the file to write.
        min_length, max_length: minimum and maximum tokens per document (JSONL: bytes per line).
        keep: keep only documents with these numbers.
        drop: drop documents with these numbers.
        predicate: called with a document's number and tokens; returns whether to keep it.
        token_size, mixed_tokenizers, drop_loss, allow_empty, dry_run, overwrite: as in `feedmill.tokens.merge.merge`.

    Returns:
        A report; `left_out` counts documents by the first test that they failed.

    Raises:
        EmptyResult: no document passes.
        ConfigError: a document number is out of range, the length limits exclude each other, or the output exists.
    """
    if max_length is not None and max_length < (min_length or 0):
        raise ConfigError(
            f"no document has at least {min_length or 0:,} and at most {max_length:,} tokens",
            kind="bad-option",
            fix="Set --max-length to at least --min-length.",
        )
    corpus = open_corpus(inputs, token_size=token_size, mixed=mixed_tokenizers)
    form = form_for(output, corpus, drop_loss=drop_loss)
    documents = Documents(corpus)
    left_out: dict[str, int] = {}
    kept = np.ones(len(documents), np.bool_)

    def demand(passed: Bools, reason: str) -> None:
        failed = int((kept & ~passed).sum())
        if failed:
            left_out[reason] = failed
        np.logical_and(kept, passed, out=kept)

    if keep is not None:
        demand(_marked(keep, len(documents)), "not in the list of documents to keep")
    if drop is not None:
        demand(~_marked(drop, len(documents)), "in the list of documents to drop")
    if min_length is not None or max_length is not None:
        lengths = lengths_of(documents, range(len(documents)))
        demand(lengths >= (min_length or 0), f"shorter than {min_length}")
        if max_length is not None:
            demand(lengths <= max_length, f"longer than {max_length}")
    if predicate is not None:
        demand(_asked(corpus, documents, np.flatnonzero(kept), predicate), "not kept by the predicate")
    numbers = np.flatnonzero(kept)
    options = {"verb": "filter", "min_length": min_length, "max_length": max_length, "left_out": left_out}
    digest = xxhash.xxh3_128_hexdigest(numbers.data)
    with start(output, corpus, form, options, seeded=False, overwrite=overwrite, progress=progress, kept=digest) as run:
        run.left_out |= left_out
        run.write(documents, [Part(output, numbers)], allow_empty=allow_empty)
        return run.finish()


def _marked(numbers: Sequence[int] | Int64s, count: int) -> Bools:
    try:
        row = np.asarray(numbers, np.int64)
    except OverflowError:
        row = np.asarray([min(number, count) for number in numbers], np.int64)
    if len(row) and (row.min() < 0 or row.max() >= count):
        bad = numbers[int(np.flatnonzero((row < 0) | (row >= count))[0])]
        raise ConfigError(
            f"the list contains document {bad}, but there are only {count}",
            kind="no-such-sample",
            fix="Documents are numbered from 0.",
        )
    marked = np.zeros(count, np.bool_)
    marked[row] = True
    return marked


def _asked(corpus: Corpus, documents: Documents, numbers: Int64s, predicate: Callable[[int, Tokens], bool]) -> Bools:
    """Return the results of the predicate for these documents, bool[documents]."""
    answers = np.zeros(len(documents), np.bool_)
    at = 0
    with corpus.mapped() as mapped:
        for tokens, lengths, _ in gathered(corpus, mapped, documents, numbers, False):
            begin = 0
            for length in lengths.tolist():
                number = int(numbers[at])
                answers[number] = bool(predicate(number, tokens[begin : begin + length]))
                begin, at = begin + length, at + 1
    return answers
