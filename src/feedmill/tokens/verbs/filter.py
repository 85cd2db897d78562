"""Filter the documents of token files, or the lines of JSONL files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError
from feedmill.formats.sniff import open_raw
from feedmill.formats.tokens.base import Int64s, Tokens
from feedmill.jobs.options import verb
from feedmill.planning.recipes.skip import same_data
from feedmill.storage import paths_of
from feedmill.tokens.corpus import Corpus, Documents, gathered, lengths_of, open_corpus
from feedmill.tokens.options import FilterTokens, Listed
from feedmill.tokens.rewrite import Part, TokensReport, form_for, start

Bools = npt.NDArray[np.bool_]


@verb(FilterTokens)
def filter(options: FilterTokens) -> TokensReport:
    """Return a report; `left_out` counts documents by the first test that they failed.

    Raises:
        EmptyResult: no document passes.
        ConfigError: a document number is out of range, the length limits exclude each other, or the output exists.
    """
    inputs, output = paths_of(options.inputs), os.fspath(options.output)
    shortest, longest = options.min_length, options.max_length
    if longest is not None and longest < (shortest or 0):
        raise ConfigError(
            f"no document has at least {shortest or 0:,} and at most {longest:,} tokens",
            kind="bad-option",
            fix="Set --max-length to at least --min-length.",
        )
    corpus = open_corpus(inputs, token_size=options.token_size, mixed=options.mixed_tokenizers)
    form = form_for(output, corpus, drop_loss=options.drop_loss)
    documents = Documents(corpus)
    left_out: dict[str, int] = {}
    kept = np.ones(len(documents), np.bool_)

    def demand(passed: Bools, reason: str) -> None:
        failed = int((kept & ~passed).sum())
        if failed:
            left_out[reason] = failed
        np.logical_and(kept, passed, out=kept)

    for name, listed in (("keep", options.keep), ("drop", options.drop)):
        if isinstance(listed, Listed) and listed.data is not None:
            _check_data(name, listed.data, inputs, len(documents))
    if options.keep is not None:
        demand(_marked(options.keep, len(documents)), "not in the list of documents to keep")
    if options.drop is not None:
        demand(~_marked(options.drop, len(documents)), "in the list of documents to drop")
    if shortest is not None or longest is not None:
        lengths = lengths_of(documents, range(len(documents)))
        demand(lengths >= (shortest or 0), f"shorter than {shortest}")
        if longest is not None:
            demand(lengths <= longest, f"longer than {longest}")
    if options.predicate is not None:
        demand(_asked(corpus, documents, np.flatnonzero(kept), options.predicate), "not kept by the predicate")
    numbers = np.flatnonzero(kept)
    identity = {"verb": "filter", "min_length": shortest, "max_length": longest, "left_out": left_out}
    digest = xxhash.xxh3_128_hexdigest(numbers.data)
    running: dict[str, Any] = {"overwrite": options.overwrite, "progress": options.progress, "kept": digest}
    with start(output, corpus, form, identity, seeded=False, **running) as run:
        run.left_out |= left_out
        run.write(documents, [Part(output, numbers)], allow_empty=options.allow_empty)
        return run.finish()


def _check_data(name: str, data: tuple[int, str], inputs: Sequence[str], count: int) -> None:
    """Raise `ConfigError` if a list names other data than the inputs: its numbers are of other documents."""
    if len(inputs) != 1 or not same_data(open_raw(inputs[0])[0], *data):
        raise ConfigError(
            f"the list of --{name} counts in another file, or in one that has changed since: {data[0]:,} documents,"
            f" here {count:,}",
            file=inputs[0],
            kind="bad-skip",
            fix="Make the list again, from the data as it is now.",
        )


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
