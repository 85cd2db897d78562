"""Deduplication jobs: find files and finished work, find duplicates, and write manifests and the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from feedmill.curation.attribute_set import entry, fingerprint, record, recorded, set_store
from feedmill.curation.dedupe.bloomed import complete, filter_in_place, next_name, open_filter
from feedmill.curation.dedupe.task import DedupeTask, Finished
from feedmill.curation.dedupe.units import read_units
from feedmill.curation.dry_run import plan_set, read_first
from feedmill.curation.options import SUBSTRINGS, UNITS, Dedupe, DedupeOrNear, Neardedupe
from feedmill.curation.records import digest as digest_of
from feedmill.documents.file import DocumentFile, in_datasets
from feedmill.documents.find import find_once
from feedmill.errors import ConfigError, refuse_empty
from feedmill.formats.bloom import write_bloom
from feedmill.jobs.dry_run import DryRun, JobReport, perform
from feedmill.jobs.engine import current
from feedmill.jobs.journal import Journal
from feedmill.jobs.memory import room_of
from feedmill.jobs.options import verb
from feedmill.jobs.resources import available_cores
from feedmill.jobs.work import Work, foresee, tidy
from feedmill.storage import LocalStore, Store, open_store, paths_of, split_url

if TYPE_CHECKING:
    from feedmill.curation.near.options import NearReport


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
    compression: tuple[str | None, str | None] = (None, None),
) -> DedupeReport:
    """Write an attribute set that marks every document, paragraph or substring that occurs earlier in the input.

    The first occurrence in the order of the documents is kept, for any number of workers. A repeated run only does the
    remaining work.

    Args:
        options: Those of the verb. Workers are processes; with a Bloom filter, threads. Without one, 128-bit hashes are
            compared, with practically no false positives.
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
    bloom = options.bloom is not None
    if bloom and options.memory is not None:
        raise ConfigError(
            "--memory cannot be combined with a Bloom filter, which is in memory as a whole",
            kind="bad-option",
            fix="Remove --memory, or --bloom.",
        )
    if options.tokenizer is not None:
        from feedmill.curation.dedupe.tokenized import identified

        of_tasks = identified(of_tasks)
    report = DedupeReport(of_tasks.name)
    find = partial(find_once, exact=options.defects, allow_missing=allow, id=options.id)
    files = in_datasets(find(paths_of(options.documents), report.warnings), options.documents_folder)
    known = _references(options.against, find, report.warnings) if options.against else []
    if bloom and options.file_partition:
        from feedmill.curation.dedupe.bloomed import mine

        files = [file for file in files if mine(file.name, options.partitions, options.partition)]
    if bloom and known:
        raise ConfigError("a Bloom filter cannot be combined with 'against'", fix="Use one of them.")
    if not bloom and options.partitions > 1:
        raise ConfigError("partitions require a Bloom filter", fix="Remove them: exact runs need no partitions.")
    job = (_Bloomed if bloom else _Exact)(files, known, of_tasks, compression, report)
    perform(job.plan, job.execute)
    return report


def _references(
    patterns: Sequence[str], find: Callable[[Sequence[str], list[str]], list[DocumentFile]], warnings: list[str]
) -> list[DocumentFile]:
    """Return the files of documents to compare with, which may be in any folder: nothing is written beside them.

    For a benchmark, the error names the verb that looks for those.
    """
    from feedmill.curation.decontaminate.benchmarks import has_questions

    found = find(patterns, warnings)
    if found and has_questions(found[0]):
        raise ConfigError(
            "the rows are questions of a benchmark, and not documents with a text",
            file=found[0].name,
            kind="bad-document",
            fix="Find questions with 'feedmill documents decontaminate DOCUMENTS --against BENCHMARK'.",
        )
    return found


@dataclass
class _Exact:
    """A run on these files, which compares hashes: `plan` says what `execute` does, and both fill the report.

    Attributes:
        options: Those of tasks, see `Dedupe.settled`.
    """

    files: list[DocumentFile]
    known: list[DocumentFile]
    options: Dedupe
    compression: tuple[str | None, str | None]
    report: DedupeReport

    def __post_init__(self) -> None:
        options, identities = self.options, [[file.identity for file in files] for files in (self.known, self.files)]
        of_filter = None if options.bloom is None else [options.bloom, options.read_only, options.file_partition]
        self.run = fingerprint(*identities, self.options.as_dict(), list(self.compression), of_filter)
        self.identity = {"verb": "dedupe", "run": self.run}
        self.target = set_store(self.files[0].store(), self.options.name)
        self.room = room_of(self.options.memory, self.options.workers)

    def plan(self, dry: DryRun) -> None:
        """Add the attributes to a dry run, and read the first documents of all files."""
        if self.is_done():
            return self.refuse_empty()
        foresee(self.target)
        self.plan_attributes(dry)

    def plan_attributes(self, dry: DryRun) -> None:
        """Do so without looking for the lock of another run."""

        def count(file: DocumentFile, lines: bytes) -> int:
            return len(read_units(lines, options, file.name, 1).ids)

        options, packed = self.options, self.compression[0]
        read_first(dry, self.known, count, fields=options.fields, packed=packed)
        rows = read_first(dry, self.files, count, fields=options.fields, packed=packed)
        self.report.files, self.report.rows = len(self.files), rows or 0
        plan_set(dry, self.files, options.name, options.documents_folder)
        if rows is None:
            dry.counts.pop("documents", None)
        else:
            self.refuse_empty()

    def execute(self) -> None:
        """Write the attributes and the manifests, unless an earlier run did."""
        if self.is_done():
            tidy(self.target, identity=self.identity)
        else:
            with Work(self.target) as work:
                work.begin(self.identity, durable=False, keep_staged=True)
                self.record(self._find(work))
                work.finish()
        self.refuse_empty()

    def _find(self, work: Work) -> list[Finished]:
        if self.options.by == SUBSTRINGS:
            from feedmill.curation.dedupe.substrings import find_repeated as find
        else:
            from feedmill.curation.dedupe.exact import find_exact as find  # imports what runs with a filter do not need
        workers = self.options.workers
        spare, known = (workers or available_cores()) < available_cores(), len(self.known)
        of_all: dict[str, Any] = {"spare": spare, "room": self.room}
        tasks = [
            DedupeTask(n, file, self.options, work.folder, *self.compression, reference=n < known, **of_all)
            for n, file in enumerate([*self.known, *self.files])
        ]
        results = find(tasks, work.scratch, workers=workers, progress=self.options.progress)
        return [result for result in results if result is not None]

    def refuse_empty(self) -> None:
        """Raise `EmptyResult` if there are no documents."""
        rows, allow = self.report.rows, self.options.allow_empty
        refuse_empty(rows, rows, file=f"attributes/{self.report.name}", allow=allow)

    def is_done(self, bloom: str | None = None) -> bool:
        """Return whether the manifests record exactly this run, and its outputs are unchanged. If so, fill the report.

        Args:
            bloom: Hash of the filter.
        """
        found = recorded(self.files, self.options.name, self.options.documents_folder, run=self.run, bloom=bloom)
        if found is not None:
            self._count(found[1])
            self.report.skipped = True
        return found is not None

    def record(self, results: list[Finished], bloom: str | None = None) -> None:
        """Write the manifests, keeping the entries of other files, and fill the report."""
        entries = [entry(result, result.documents, result.units) for result in results]
        manifest = {"verb": "dedupe", "options": self.options.as_dict(), "run": self.run, "bloom": bloom}
        # A Bloom filter stands for documents of earlier runs, which can be gone on purpose.
        depends = {"together": self.options.bloom is None, "alone": not self.known}
        record(self.files, entries, self.options.name, self.options.documents_folder, manifest, **depends)
        self._count(entries)

    def _count(self, entries: Sequence[Mapping[str, Any]]) -> None:
        report = self.report
        report.files, report.rows = len(entries), sum(one["rows"] for one in entries)
        report.documents, report.units = sum(one["flagged"] for one in entries), sum(one["units"] for one in entries)


class _Bloomed(_Exact):
    """A run that looks keys up in a Bloom filter, and adds them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        folder, self.name = split_url(self.options.bloom or "")
        store = open_store(folder)
        if not isinstance(store, LocalStore):
            where = store.locate(self.name)
            raise ConfigError("a Bloom filter must be on a local disk", file=where, fix="Use a local path.")
        self.store = store

    def plan(self, dry: DryRun) -> None:
        """Add the attributes and the filter to a dry run."""
        if self._is_done():
            return self.refuse_empty()
        bloom = open_filter(self.store, self.name, self.options)
        self.plan_attributes(dry)
        if not (self.options.read_only and self.store.exists(self.name)):
            dry.writes(self.store, self.name, 8 * len(bloom.words))

    def execute(self) -> None:
        """Write the attributes, and publish the filter with them, unless an earlier run did."""
        with filter_in_place(self.store, self.name, self.options):
            if self._is_done():
                tidy(self.target, identity=self.identity)
            else:
                self._run()
        self.refuse_empty()

    def _run(self) -> None:
        options, store, name = self.options, self.store, self.name
        if current() is None and Journal(self.target).job is None:  # else finish, or clear, what an engine began
            from feedmill.curation.dedupe.bloomed import find_bloomed  # loads compiled code

            bloom, threads = open_filter(store, name, options), options.workers
            tasks = [DedupeTask(n, file, options, "", *self.compression) for n, file in enumerate(self.files)]
            read_only, progress = options.read_only, options.progress
            results = find_bloomed(tasks, bloom, read_only=read_only, threads=threads, progress=progress)
            self.report.hashes, self.report.fill = len(bloom.seeds), bloom.fill
            self._publish(results, partial(write_bloom, bloom=bloom))
            return
        from feedmill.curation.dedupe.bloomed import find_by_stages

        with Work(self.target) as work:
            work.begin(self.identity, durable=False, keep_staged=True)
            tasks = [
                DedupeTask(n, file, options, work.folder, *self.compression, room=self.room)
                for n, file in enumerate(self.files)
            ]
            digest = digest_of(store, name) if store.exists(name) else None
            run: dict[str, Any] = {"workers": options.workers, "progress": options.progress}
            filled = find_by_stages(tasks, work.scratch, store, name, digest, **run)
            self.report.hashes, self.report.fill = filled.hashes, filled.fill
            self._publish(filled.files, partial(_copy, filled.path))
            work.finish()

    def _publish(self, results: list[Finished], write: Callable[[Store, str], None]) -> None:
        """Record the attributes, and publish the filter that `write` writes under a name of a store."""
        store, name = self.store, self.name
        if self.options.read_only and store.exists(name):
            self.record(results, digest_of(store, name))
            return
        # The filled filter keeps another name until the manifest records the attributes. If the run is killed before
        # that, the filter is unchanged; if it is killed after that, only the rename is left to do.
        write(store, next_name(name))
        self.record(results, digest_of(store, next_name(name)))
        complete(store, name, committed=True)

    def _is_done(self) -> bool:
        known = not self.options.defects and self.store.exists(self.name)
        return known and self.is_done(digest_of(self.store, self.name))


def _copy(path: str, store: Store, name: str) -> None:
    folder, stored = split_url(path)
    with open_store(folder).local_copy(stored) as copied, open(copied, "rb") as source, store.write(name) as out:
        shutil.copyfileobj(source, out, 16 << 20)


_UNITS = {name: [unit for unit, own in UNITS.items() if name in own] for own in UNITS.values() for name in own}
"""The units for which an option has an effect."""


@verb(DedupeOrNear)
def dedupe(options: DedupeOrNear) -> DedupeReport | NearReport:
    """Return the numbers of duplicates; of near-duplicates also the clusters and the largest of them.

    With several thresholds, the report is that of the first one, and `NearReport.others` has the others.

    Raises:
        ConfigError: Options exclude each other, or have no effect for this unit.
        FeedmillError: See `feedmill.curation.dedupe.job.find_duplicates`, and `feedmill.curation.near.job.find_near`.
    """
    chosen = options.chosen()
    if isinstance(chosen, Neardedupe):
        from feedmill.curation.near.job import find_near

        return find_near(chosen)
    _check(chosen)
    return find_duplicates(chosen)


def _check(options: Dedupe) -> None:
    """Raise `ConfigError` if options exclude each other, or have no effect for this unit."""
    for name, units in _UNITS.items():
        if getattr(options, name) is not None and options.by not in units:
            raise ConfigError(f"--{name} requires --by {' or '.join(units)}", fix="Remove the option, or change --by.")
    if options.every_copy and options.by != SUBSTRINGS:
        raise ConfigError("--every-copy requires --by substrings", fix="Remove the option, or change --by.")
    if options.every_copy and options.against:
        raise ConfigError(
            "--every-copy cannot be combined with --against, which compares no document with a first one",
            fix="Remove --every-copy: every copy of the other documents is marked.",
        )
    if options.by == SUBSTRINGS:
        for name in ("min_length", "min_words", "keep_empty", "bloom"):
            if getattr(options, name):
                option = name.replace("_", "-")
                fix = (
                    "Use --length, the length of the shortest passage."
                    if name == "min_length"
                    else "Remove one of them."
                )
                raise ConfigError(f"--{option} cannot be combined with --by {SUBSTRINGS}", fix=fix)
    if options.bloom is None and (options.items or options.read_only or options.false_positives is not None):
        raise ConfigError(
            "--items, --false-positives and --read-only require a Bloom filter", fix="Pass its file with --bloom."
        )
    if options.items and options.read_only:
        raise ConfigError("--items requires a new filter, and --read-only an existing one", fix="Use one of them.")
