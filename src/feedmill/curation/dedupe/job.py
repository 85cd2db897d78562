"""Deduplication jobs: find files and finished work, find duplicates, and write manifests and the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from feedmill.curation.attribute_set import fingerprint, set_store
from feedmill.curation.dedupe.filters import BloomOptions, complete, filter_in_place, next_name, open_filter
from feedmill.curation.dedupe.task import DedupeTask, Finished
from feedmill.curation.dedupe.units import read_units
from feedmill.curation.dry_run import plan_set, read_first
from feedmill.curation.manifest_entries import entry, record, recorded
from feedmill.curation.options import SUBSTRINGS, Dedupe
from feedmill.curation.records import digest as digest_of
from feedmill.documents.file import DocumentFile
from feedmill.documents.find import find_in_datasets
from feedmill.errors import ConfigError, refuse_empty
from feedmill.formats.bloom import write_bloom
from feedmill.jobs.cores import available_cores
from feedmill.jobs.dry_run import DryRun, JobReport, active
from feedmill.jobs.engine import current
from feedmill.jobs.unfinished import unfinished
from feedmill.jobs.work import Work, tidy
from feedmill.storage import LocalStore, Store, open_store, paths_of, split_url


@dataclass(slots=True)
class DedupeReport(JobReport):
    """Report of a deduplication run.

    Attributes:
        files, rows: Numbers of the input.
        documents: Documents with duplicates.
        units: Duplicate paragraphs, documents or substrings.
        skipped: Whether an earlier run had done everything.
        hashes, fill: Hashes per key and fill of the Bloom filter, if there is one.
    """

    name: str
    files: int = 0
    rows: int = 0
    documents: int = 0
    units: int = 0
    skipped: bool = False
    hashes: int | None = None
    fill: float | None = None
    warnings: list[str] = field(default_factory=list)


def find_duplicates(
    options: Dedupe,
    *,
    bloom: BloomOptions | None = None,
    compression: tuple[str | None, str | None] = (None, None),
) -> DedupeReport:
    """Write an attribute set that marks every document, paragraph or substring that occurs earlier in the input.

    The first occurrence in the order of the documents is kept, for any number of workers. A repeated run only does the
    remaining work.

    Args:
        options: Those of the verb. Workers are processes; with a Bloom filter, threads.
        bloom: Look keys up in this Bloom filter. Default: Compare 128-bit hashes, with practically no false positives.
        compression: Compression of inputs and outputs (``"gz"``, ``"zst"``, ``""``). None: By the names of the files.

    Raises:
        EmptyResult: There are no documents.
        NotFound: No files were found.
        ConfigError: Options are invalid.
        StorageError: Another run writes the same attribute set or filter.
        DataError: A row is invalid. Nothing is written for its file.
    """
    workers, allow, of_tasks = options.workers, options.allow_empty, options.settled()
    if workers is not None and workers < 1:
        raise ConfigError(f"the number of workers must be 1 or more, not {workers}", fix="Use 1 or more.")
    report = DedupeReport(of_tasks.name)
    kept = options.documents_folder
    find = partial(find_in_datasets, documents=kept, exact=options.defects, allow_missing=allow, id=options.id)
    files = find(paths_of(options.documents), report.warnings)
    known = find(options.against, report.warnings) if options.against else []
    _dedupe(files, known, of_tasks, bloom, workers, compression, options.progress, report)
    if (dry := active()) is not None and "documents" not in dry.counts and not report.skipped:
        return report  # their number is not known
    refuse_empty(report.rows, report.rows, file=f"attributes/{report.name}", allow=allow)
    return report


def _dedupe(
    files: list[DocumentFile],
    known: list[DocumentFile],
    options: Dedupe,
    bloom: BloomOptions | None,
    workers: int | None,
    compression: tuple[str | None, str | None],
    progress: bool | None,
    report: DedupeReport,
) -> None:
    if bloom is not None and bloom.file_partition:
        from feedmill.curation.dedupe.bloomed import mine

        files = [file for file in files if mine(file.name, options.partitions, options.partition)]
    if bloom is not None and known:
        raise ConfigError("a Bloom filter cannot be combined with 'against'", fix="Use one of them.")
    if bloom is None and options.partitions > 1:
        raise ConfigError("partitions require a Bloom filter", fix="Remove them: exact runs need no partitions.")
    run_print = fingerprint(
        [f.identity for f in known],
        [f.identity for f in files],
        options.as_dict(),
        list(compression),
        [bloom.file, bloom.read_only, bloom.file_partition] if bloom is not None else None,
    )
    if bloom is None:
        target = set_store(files[0].store(), options.name)
        identity = {"verb": "dedupe", "run": run_print}
        if _done(files, options, run_print, report, None):
            tidy(target, identity=identity)
            return
        with Work(target) as work:
            work.begin(identity, durable=False, keep_staged=True)
            if (dry := active()) is not None:
                _plan(dry, files, known, options, compression[0], report)
                return
            results = _exact(files, known, options, work, compression, workers, progress)
            _record(files, results, options, run_print, report, None)
            work.finish()
        return
    _bloomed(files, options, bloom, run_print, compression, workers, progress, report)


def _plan(
    dry: DryRun,
    files: list[DocumentFile],
    known: list[DocumentFile],
    options: Dedupe,
    packed: str | None,
    report: DedupeReport,
) -> None:
    """Add the attributes to a dry run, and read the first documents of all files."""

    def count(file: DocumentFile, lines: bytes) -> int:
        return len(read_units(lines, options, file.name, 1).ids)

    read_first(dry, known, count, fields=options.fields, packed=packed)
    rows = read_first(dry, files, count, fields=options.fields, packed=packed)
    if rows is None:
        dry.counts.pop("documents", None)
    report.files, report.rows = len(files), rows or 0
    plan_set(dry, files, options.name, options.documents_folder)


def _exact(
    files: list[DocumentFile],
    known: list[DocumentFile],
    options: Dedupe,
    work: Work,
    compression: tuple[str | None, str | None],
    workers: int | None,
    progress: bool | None,
) -> list[Finished]:
    from feedmill.curation.dedupe.exact import find_exact  # needs processes, which runs with a filter do not

    spare = (workers or available_cores()) < available_cores()
    tasks = [
        DedupeTask(n, file, options, work.folder, *compression, reference=n < len(known), spare=spare)
        for n, file in enumerate([*known, *files])
    ]
    find = find_exact
    if options.by == SUBSTRINGS:
        from feedmill.curation.dedupe.substrings import find_repeated as find
    results = find(tasks, work.scratch, workers=workers, progress=progress)
    return [result for result in results if result is not None]


def _bloomed(
    files: list[DocumentFile],
    options: Dedupe,
    settings: BloomOptions,
    run_print: str,
    compression: tuple[str | None, str | None],
    threads: int | None,
    progress: bool | None,
    report: DedupeReport,
) -> None:
    folder, name = split_url(settings.file)
    store = open_store(folder)
    if not isinstance(store, LocalStore):
        raise ConfigError("a Bloom filter must be on a local disk", file=store.locate(name), fix="Use a local path.")
    target = set_store(files[0].store(), options.name)
    identity = {"verb": "dedupe", "run": run_print}
    with filter_in_place(store, name, settings):
        if not settings.always_redo and _done(files, options, run_print, report, (store, name)):
            tidy(target, identity=identity)
            return
        if (dry := active()) is not None:
            bloom = open_filter(store, name, settings)
            _plan(dry, files, [], options, compression[0], report)
            if not (settings.read_only and store.exists(name)):
                dry.writes(store, name, 8 * len(bloom.words))
            return
        publish = partial(_publish, files, options, run_print, report, store, name, settings)
        if current() is None and unfinished(target) is None:  # else finish, or clear, what an engine began
            from feedmill.curation.dedupe.bloomed import find_bloomed  # loads compiled code

            bloom = open_filter(store, name, settings)
            tasks = [DedupeTask(n, file, options, "", *compression) for n, file in enumerate(files)]
            results = find_bloomed(tasks, bloom, read_only=settings.read_only, threads=threads, progress=progress)
            report.hashes, report.fill = len(bloom.seeds), bloom.fill
            publish(results, partial(write_bloom, bloom=bloom))
            return
        from feedmill.curation.dedupe.filling import find_by_stages

        with Work(target) as work:
            work.begin(identity, durable=False, keep_staged=True)
            tasks = [DedupeTask(n, file, options, work.folder, *compression) for n, file in enumerate(files)]
            digest = digest_of(store, name) if store.exists(name) else None
            filled = find_by_stages(
                tasks, work.scratch, store, name, settings, digest, workers=threads, progress=progress
            )
            report.hashes, report.fill = filled.hashes, filled.fill
            publish(filled.files, partial(_copy, filled.path))
            work.finish()


def _publish(
    files: list[DocumentFile],
    options: Dedupe,
    run_print: str,
    report: DedupeReport,
    store: LocalStore,
    name: str,
    settings: BloomOptions,
    results: list[Finished],
    write: Callable[[Store, str], None],
) -> None:
    """Record the attributes, and publish the filter that `write` writes under a name of a store."""
    if settings.read_only and store.exists(name):
        _record(files, results, options, run_print, report, (store, name))
        return
    # The filled filter keeps another name until the manifest records the attributes. If the run is killed before
    # that, the filter is unchanged; if it is killed after that, only the rename is left to do.
    write(store, next_name(name))
    _record(files, results, options, run_print, report, (store, next_name(name)))
    complete(store, name, committed=True)


def _copy(path: str, store: Store, name: str) -> None:
    folder, stored = split_url(path)
    with open_store(folder).local_copy(stored) as copied, open(copied, "rb") as source, store.write(name) as out:
        shutil.copyfileobj(source, out, 16 << 20)


def _done(
    files: list[DocumentFile],
    options: Dedupe,
    run_print: str,
    report: DedupeReport,
    bloom: tuple[Store, str] | None,
) -> bool:
    """Return whether the manifests record exactly this run and its outputs and filter are unchanged.

    If so, fill the report.
    """
    digest = None
    if bloom is not None:
        if not bloom[0].exists(bloom[1]):
            return False
        digest = digest_of(*bloom)
    found = recorded(files, options.name, options.documents_folder, run=run_print, bloom=digest)
    if found is None:
        return False
    _count(report, found[1])
    report.skipped = True
    return True


def _record(
    files: list[DocumentFile],
    results: list[Finished],
    options: Dedupe,
    run_print: str,
    report: DedupeReport,
    bloom: tuple[Store, str] | None,
) -> None:
    """Write the manifests, keeping the entries of other files, and fill the report."""
    entries = [entry(result, result.documents, result.units) for result in results]
    digest = digest_of(*bloom) if bloom is not None else None
    manifest = {"verb": "dedupe", "options": options.as_dict(), "run": run_print, "bloom": digest}
    record(files, entries, options.name, options.documents_folder, manifest)
    _count(report, entries)


def _count(report: DedupeReport, entries: Sequence[Mapping[str, Any]]) -> None:
    report.files, report.rows = len(entries), sum(one["rows"] for one in entries)
    report.documents, report.units = sum(one["flagged"] for one in entries), sum(one["units"] for one in entries)
