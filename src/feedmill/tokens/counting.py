"""Finished units of work in the order of the inputs, counted; the first bad document as an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from feedmill.documents.file import DocumentFile
from feedmill.errors import DataError, refuse_empty
from feedmill.formats.tokens.manifest import Skipped
from feedmill.tokens.work import EXAMPLES, Done, Task


@dataclass(kw_only=True)
class Counts:
    """What a run that encodes documents counts.

    Attributes:
        documents, tokens, bytes: written, and read.
        files, units, reused: input files; units of work; how many of those an earlier run had done.
        blank: lines with nothing on them, which are no documents.
        skipped: documents left out; `skipped_examples`: the first hundred, as file, line and reason.
        tokenizer, backend, fallback: its name; which engine encoded; why not the fast one.
        complete: the output was there already, made by the same job: nothing was done.
    """

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    files: int = 0
    units: int = 0
    reused: int = 0
    blank: int = 0
    skipped: int = 0
    skipped_examples: list[Skipped] = field(default_factory=list)
    tokenizer: str = ""
    backend: str = ""
    fallback: str | None = None
    complete: bool = False
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        examples = [{"file": s.file, "line": s.line, "reason": s.reason} for s in self.skipped_examples]
        return {**asdict(self), "skipped_examples": examples}

    def refuse_empty(self, output: str, allow: bool) -> None:
        """Raise `EmptyResult` if not one document was kept."""
        reasons = {}
        if self.skipped_examples:
            first = self.skipped_examples[0]
            reasons[f"skipped, the first in {first.file} line {first.line}: {first.reason}"] = self.skipped
        read = self.documents + self.skipped
        refuse_empty(self.documents, read, file=output, skipped=reasons, allow=allow)


def in_order(tasks: Sequence[Task], results: Iterable[Done], counts: Counts) -> Iterator[tuple[Done, int]]:
    """Finished units, each with the line of its file (from 0) at which it begins.

    Raises:
        DataError: a unit stopped at a bad document; of kind ``bad-document``.
    """
    line = 0
    for task, done in zip(tasks, results, strict=True):
        facts = done.facts
        if task.units[0].begin == 0:  # the first of its file
            line = 0
        if done.bad is not None:
            file, row = task.place(facts, done.bad[0])
            raise bad_document(file, line + row + 1, done.bad[1])
        counts.documents += facts.documents
        counts.tokens += facts.tokens
        counts.bytes += facts.bytes
        counts.blank += facts.blank
        counts.reused += done.reused
        counts.skipped += facts.bad
        room = EXAMPLES - len(counts.skipped_examples)
        places = ((task.place(facts, row), why) for row, why in facts.examples[:room])
        counts.skipped_examples += [Skipped(file.url, line + row + 1, why) for (file, row), why in places]
        yield done, line
        line += facts.lines


def bad_document(file: DocumentFile, line: int, reason: str) -> DataError:
    """The error for a document that cannot be used; `line` counts from 1."""
    return DataError(
        reason,
        file=file.url,
        record=f"{'row' if file.kind in ('parquet', 'arrow') else 'line'} {line}",
        kind="bad-document",
        fix="Fix it, or run again with --on-error skip, which leaves such documents out, counts and lists them.",
    )
