"""Job of every verb that encodes documents: encode units of work on all cores, and write their tokens in order.

The inputs are divided into units (`feedmill.documents.units`). Workers write the tokens of each unit to a piece, a file
in the work folder next to the output. One output file consumes the pieces in order while later ones are still encoded.
Outputs of several files are written in a second stage of units, each of which writes whole files from the pieces that
it needs. The bytes do not depend on the number of workers or the size of units. To resume a killed run, repeat the
command: complete pieces, and output files, of the same inputs, options and tokenizer are reused.

The outputs are token files, numbered ones of a size (`feedmill.tokens.token_files`), and Dolma's folder of mixed files
(`feedmill.tokens.dolma_output`). A dry run names the files, and encodes the first documents of each input.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import xxhash

from feedmill.documents.file import DocumentFile, Unit
from feedmill.documents.read import read_documents
from feedmill.documents.units import UNIT_BYTES, cut
from feedmill.errors import ConfigError, DataError, EmptyResult, refuse_empty
from feedmill.formats.tokens.manifest import Skipped, TokenManifest
from feedmill.jobs.dry_run import DryRun, JobReport, active
from feedmill.jobs.engine import Where, key_of
from feedmill.jobs.policy import RAISE, OnError
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.jobs.unfinished import is_unfinished
from feedmill.jobs.work import Work, tidy
from feedmill.storage import Store
from feedmill.tokens.chat.checks import Check, added
from feedmill.tokens.encode import fix_of
from feedmill.tokens.spill import Piece, PieceFacts
from feedmill.tokens.tokenizer import Tokenizer
from feedmill.tokens.work import (
    EXAMPLES,
    EncodedUnit,
    EncodeSpec,
    EncodeTask,
    encode_read,
    encode_unit,
    offer,
    tasks_of,
)
from feedmill.tokens.writer import marks

PRELOAD = ("feedmill.tokens.work", "feedmill.tokens.engines", "fastokens")
"""Modules that workers import."""

_FIX = "Fix the document, or add --on-error skip to skip and list such documents."
_SENT = 64
"""Maximum number of small units in one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of a job with any output; they are described in `tokenize`."""

    on_error: OnError = RAISE
    allow_empty: bool = False
    workers: int | None = None
    overwrite: bool = False
    unit_bytes: int = UNIT_BYTES
    progress: bool | None = None


@dataclass(kw_only=True)
class Counts(JobReport):
    """Counts of a run that encodes documents.

    Attributes:
        documents, tokens, bytes: documents and tokens written, and bytes read.
        files, units, reused: numbers of input files, units of work, and units that an earlier run had finished.
        blank: number of blank lines, which are not documents.
        skipped: number of skipped documents; `skipped_examples`: file, line and reason of the first hundred.
        tokenizer, backend, fallback: name of the tokenizer, its engine, and why the fast engine was not used.
        tokens_in_loss: tokens that contribute to the loss; None if no mask was made.
        checks: what checks found in valid documents: name -> number, and the first of them; see
            `feedmill.tokens.chat.checks`.
        complete: whether an earlier run of the same job had written the output, so that nothing was done.
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
    tokens_in_loss: int | None = None
    checks: dict[str, Check] = field(default_factory=dict)

    def restore(self, manifests: Sequence[TokenManifest]) -> None:
        """Set the counts from the manifests of a complete output."""
        first = manifests[0]
        self.complete, self.documents, self.tokens = True, first.documents, first.tokens
        self.skipped, self.skipped_examples = first.skipped, first.skipped_examples
        self.tokens_in_loss = first.options.get("tokens_in_loss")
        self.checks = {name: Check(**one) for name, one in first.options.get("checks", {}).items()}

    def refuse_empty(self, output: str, allow: bool) -> None:
        """Raise `EmptyResult` if no document was kept."""
        reasons = {}
        if self.skipped_examples:
            first = self.skipped_examples[0]
            reasons[f"skipped, the first in {first.file} line {first.line}: {first.reason}"] = self.skipped
        read = self.documents + self.skipped
        refuse_empty(self.documents, read, file=output, skipped=reasons, allow=allow)


class JobOutput(Protocol):
    """Output of encoded documents.

    Attributes:
        store, name: the output, next to which the work folder is; see `Work`.
        url: URL of the output, for messages.
        files: the inputs.
        report: counts of the job.
        in_units: whether units of a second stage write the output.
    """

    store: Store
    url: str
    in_units: bool

    @property
    def name(self) -> str:
        """Path of the output in `store`."""

    def planned(self) -> Iterator[tuple[Store, str]]:
        """Yield store and path of each file to write, for a dry run; see `feedmill.jobs.dry_run.PlannedFile`."""

    @property
    def files(self) -> Sequence[DocumentFile]:
        """The input files, in order."""

    @property
    def report(self) -> Counts:
        """Counts of the job, which grow as units finish."""

    def identity(self) -> Iterable[str]:
        """The values that determine the output, in addition to the `EncodeSpec`."""

    def units(self, unit_bytes: int) -> Sequence[tuple[Unit, ...]]:
        """Return the units of work, in the order in which they are passed to `opened`."""

    def manifests(self) -> Iterable[TokenManifest | None]:
        """Return the manifests; None for one that is missing or does not match its files."""

    def existing(self) -> ConfigError | None:
        """Return the error for output of another job that must not be replaced; None if there is none."""

    def opened(self, job: EncodeJob, work: Work) -> AbstractContextManager[Callable[[Piece], object]]:
        """Return a context with a function that consumes the pieces of units, in order.

        The output is written, or published, with its manifests if the block ends without an error.
        """


class EncodeJob:
    """One run, from documents to a published output.

    Attributes:
        key: hash of everything that determines the output.
        marks: folder in the work folder for the facts of finished output files.
    """

    def __init__(self, output: JobOutput, spec: EncodeSpec, tokenizer: Tokenizer, options: JobOptions) -> None:
        self.output, self.spec, self.tokenizer, self.options = output, spec, tokenizer, options
        self.key = xxhash.xxh3_64_hexdigest("\n".join([spec.key(), *output.identity()]).encode())
        self.marks = marks(self.key)
        self.inputs: list[dict[str, Any]] = [
            {"path": f.url, "bytes": f.size, "version": f.version} for f in output.files
        ]
        report = output.report
        report.files = len(output.files)
        report.tokenizer, report.backend, report.fallback = tokenizer.name, tokenizer.backend, tokenizer.fallback

    def run(self) -> None:
        """Do the unfinished work.

        Raises:
            ConfigError: an output of another job exists.
            DataError: a document is invalid, or a file is corrupt.
            EmptyResult: there are no documents.
            StorageError: another process is writing the output, or it cannot be written.
        """
        output, options = self.output, self.options
        identity = {"verb": "tokenize", "job": self.key}
        if not options.overwrite and not is_unfinished(output.store, output.name, identity):
            if self._is_complete():
                tidy(output.store, output.name)  # workers of a killed run may have written pieces later
                output.report.refuse_empty(output.url, options.allow_empty)
                return
            if (error := output.existing()) is not None:
                raise error
        with Work(output.store, output.name) as work:
            work.begin(identity, keep_staged=True)
            if (dry := active()) is not None:
                plan_job(dry, self)
                return
            tasks = tasks_of(work, output.units(options.unit_bytes), self.spec, options.workers, keep=self.marks)
            output.report.units = len(tasks)
            offer(self.tokenizer)
            try:
                with output.opened(self, work) as add:
                    self._encode(tasks, add, work)
                    output.report.refuse_empty(output.url, options.allow_empty)
            except EmptyResult:
                work.finish()  # no other run can use the pieces
                raise
            work.finish()

    def manifest(self, format: str, documents: int, tokens: int, options: dict[str, Any]) -> TokenManifest:
        """Return the manifest of one file of the output, without its sizes and hashes."""
        return TokenManifest(
            format,
            documents,
            tokens,
            tokenizer=self.tokenizer.facts(),
            bos=self.spec.how.bos,
            eos=self.spec.how.eos,
            inputs=self.inputs,
            skipped=self.output.report.skipped,
            skipped_examples=self.output.report.skipped_examples,
            options={"job": self.key, **options},
        )

    def count(self, done: Sequence[EncodedUnit]) -> None:
        """Add finished units to the counts of the report. Raises DataError for one that stopped at a document."""
        for _ in _in_order([unit.task for unit in done], done, self.output.report):
            pass

    def _is_complete(self) -> bool:
        """Return whether the output is complete and of this job. If so, set the counts of the report."""
        manifests = []
        for manifest in self.output.manifests():
            if manifest is None or manifest.options.get("job") != self.key:
                return False
            manifests.append(manifest)
        self.output.report.restore(manifests)
        self.output.report.bytes = sum(file.size for file in self.output.files)
        return True

    def _encode(self, tasks: Sequence[EncodeTask], add: Callable[[Piece], object], work: Work) -> None:
        report, options = self.output.report, self.options
        total = sum(task.bytes for task in tasks)
        at_once = min(_SENT, max(1, options.unit_bytes * len(tasks) // max(1, total)))
        with Progress("tokenizing", total, "B", options.progress) as bar:
            key = key_of(*(os.path.basename(task.path) for task in tasks))
            where = Where("tokenizing", key, work.scratch, record=_refuse_bad, last=not self.output.in_units)
            bar.of_sizes([task.bytes for task in tasks])
            options_of_run: dict[str, Any] = {"workers": options.workers, "preload": PRELOAD, "chunk": at_once}
            results = run(encode_unit, tasks, progress=bar, where=where, **options_of_run)
            with closing(results):
                for done, line in _in_order(tasks, results, report):
                    files = tuple(unit.file.url for unit in done.task.units)
                    add(Piece(done.task.path, done.facts, line, files))
                    bar.note(f"{report.tokens / max(bar.elapsed, 1e-9) / 1e6:.1f} M tokens/s")


def _refuse_bad(done: EncodedUnit) -> None:
    """Raise `DataError` for a unit of a job array that stopped at an invalid document.

    Its line in the file is unknown here: other parts have the units before it.
    """
    if done.bad is not None:
        file, row = done.task.place(done.facts, done.bad[0])
        begin = next(unit.begin for unit in done.task.units if unit.file is file)
        where = f"row {row + 1}" + (f" from byte {begin} on" if begin else "")
        raise _bad_document(done.bad[1], file.url, where)


def _bad_document(reason: str, file: str, record: str) -> DataError:
    fix = fix_of(reason)
    kind = "bad-document" if fix is None else "bad-token-size"
    return DataError(reason, file=file, record=record, kind=kind, fix=fix or _FIX)


def _in_order(
    tasks: Sequence[EncodeTask], results: Iterable[EncodedUnit], counts: Counts
) -> Iterator[tuple[EncodedUnit, int]]:
    """Yield finished units and add them to the counts, each with the line of its file (from 0) where it begins.

    Raises:
        DataError: a unit stopped at a bad document; of kind ``bad-document``.
    """
    line = 0
    for task, done in zip(tasks, results, strict=True):
        facts = done.facts
        if not task.units or task.units[0].begin == 0:  # first unit of its file
            line = 0
        if done.bad is not None:
            file, row = task.place(facts, done.bad[0])
            what = "row" if file.kind in ("parquet", "arrow") else "line"
            raise _bad_document(done.bad[1], file.url, f"{what} {line + row + 1}")
        counts.documents += facts.documents
        counts.tokens += facts.tokens
        if facts.loss and task.spec.how.loss:  # otherwise they are marks of sentences
            counts.tokens_in_loss = (counts.tokens_in_loss or 0) + facts.learned
        counts.bytes += facts.bytes
        counts.blank += facts.blank
        counts.reused += done.reused
        counts.skipped += facts.bad
        room = EXAMPLES - len(counts.skipped_examples)
        places = ((task.place(facts, row), why) for row, why in facts.examples[:room])
        counts.skipped_examples += [Skipped(file.url, line + row + 1, why) for (file, row), why in places]
        for name, (count, row) in facts.checks.items():
            file, number = task.place(facts, row)
            counts.checks = added(counts.checks, {name: Check(count, file.url, line + number + 1)})
        yield done, line
        line += facts.lines


_FILES = 64
"""Maximum number of files of which the first documents are read."""
_BYTES = 1 << 16
"""Bytes of each of these files, where a part of it can be read."""


def plan_job(dry: DryRun, job: EncodeJob) -> None:
    """Add the inputs and outputs of a job to a dry run, and encode the first documents of its files.

    The counts of the report are those of the first documents. If these are all there are, they are those of the result.

    Raises:
        DataError: one of these documents is invalid, unless invalid ones are skipped.
        EmptyResult: there are no documents.
    """
    output, report = job.output, job.output.report
    dry.reads(file.size for file in output.files)
    for store, path in output.planned():
        dry.writes(store, path)
    offer(job.tokenizer)
    read = [_first(job, file) for file in output.files[:_FILES]]
    whole = len(read) == len(output.files) and all(complete for _, complete in read)
    job.count([found for found, _ in read])
    if whole:
        report.refuse_empty(output.url, job.options.allow_empty)
        dry.counts |= {"documents": report.documents, "tokens": report.tokens}
    elif report.bytes and not any(file.packed or file.kind not in ("lines", "text") for file in output.files):
        about = report.tokens * dry.bytes // report.bytes
        dry.counts["tokens"] = f"about {about:,}, as in the first {report.documents:,} documents"
    if report.skipped:
        dry.skipped["invalid documents" + ("" if whole else " among the first ones")] = report.skipped


def _first(job: EncodeJob, file: DocumentFile) -> tuple[EncodedUnit, bool]:
    """Return the first documents of a file, encoded, and whether it has no others."""
    unit = next(iter(cut([file], _BYTES)), None)
    task = EncodeTask((unit,) if unit is not None else (), job.spec, "")
    spec = job.spec
    facts = PieceFacts(bytes=task.bytes, dtype=spec.how.dtype, loss=spec.how.loss, origins=spec.origins)
    if unit is None:
        return EncodedUnit(task, facts), True
    with closing(read_documents(unit, spec.reader())) as batches:
        listed = list(islice(batches, 1))
        done = encode_read(task, listed, facts)
        complete = unit.end >= file.size if file.kind != "parquet" else len(list(cut([file], _BYTES))) == 1
        return done, complete and next(batches, None) is None
