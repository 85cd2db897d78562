"""Finished units of work in the order of the inputs, counted; the first bad document as an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from feedmill.errors import DataError
from feedmill.formats.tokens.manifest import Skipped
from feedmill.tokens.sources import SourceFile
from feedmill.tokens.work import EXAMPLES, Done, Task


class Counts(Protocol):
    """What a report counts; see `feedmill.tokens.tokenize.TokenizeReport`."""

    documents: int
    tokens: int
    bytes: int
    blank: int
    reused: int
    skipped: int
    skipped_examples: list[Skipped]


def in_order(tasks: Sequence[Task], results: Iterable[Done], counts: Counts) -> Iterator[tuple[Done, int]]:
    """Finished units, each with the line of its file (from 0) at which it begins.

    Raises:
        DataError: a unit stopped at a bad document; of kind ``bad-document``.
    """
    line = 0
    for task, done in zip(tasks, results, strict=True):
        unit, facts = task.unit, done.facts
        if unit.begin == 0:  # the first of its file
            line = 0
        if done.bad is not None:
            raise bad_document(unit.file, line + done.bad[0] + 1, done.bad[1])
        counts.documents += facts.documents
        counts.tokens += facts.tokens
        counts.bytes += facts.bytes
        counts.blank += facts.blank
        counts.reused += done.reused
        counts.skipped += facts.bad
        room = EXAMPLES - len(counts.skipped_examples)
        counts.skipped_examples += [Skipped(unit.file.url, line + row + 1, why) for row, why in facts.examples[:room]]
        yield done, line
        line += facts.lines


def bad_document(file: SourceFile, line: int, reason: str) -> DataError:
    """The error for a document that cannot be used; `line` counts from 1."""
    return DataError(
        reason,
        file=file.url,
        record=f"{'row' if file.kind in ('parquet', 'arrow') else 'line'} {line}",
        kind="bad-document",
        fix="Mend it, or run again with --on-error skip, which leaves such documents out, counts and lists them.",
    )
