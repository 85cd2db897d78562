"""Dry runs of tokenizing: the files that would be written, and what the first documents of each file are."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

from feedmill.documents.file import DocumentFile
from feedmill.documents.read import read_documents
from feedmill.documents.units import cut
from feedmill.jobs.dry_run import DryRun
from feedmill.tokens.spill import PieceFacts
from feedmill.tokens.work import EncodedUnit, EncodeTask, encode_read, offer

if TYPE_CHECKING:
    from feedmill.tokens.job import EncodeJob

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
