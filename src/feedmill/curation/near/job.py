"""Run a search for near-duplicates: sign new files, compare, write attributes, manifests and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from feedmill.curation.attribute_set import fingerprint, read_manifest, set_store
from feedmill.curation.manifest_entries import entry, record, recorded
from feedmill.curation.near import finish as finishing
from feedmill.curation.near.dumps import Dumps, add_dump, open_dumps, tidy_signatures
from feedmill.curation.near.options import NearOptions
from feedmill.curation.near.parallel import spread
from feedmill.documents.file import DocumentFile, by_folder
from feedmill.documents.find import find_in_datasets
from feedmill.errors import ConfigError, refuse_empty
from feedmill.jobs.progress import Progress
from feedmill.jobs.work import Work, tidy
from feedmill.storage import open_store

__all__ = ["NearOptions", "NearReport", "find_near"]


@dataclass(slots=True)
class NearReport:
    """What was found.

    `files`, `documents`, `duplicates`: of this run's input. `added`: documents compared for the first time; of these
    speak `empty` (without words), `candidates` (pairs that shared the key of a band and were compared), `left_out`
    (pairs of very large buckets that were not), `clusters`, `sizes` (documents of a cluster: how many clusters) and
    `largest`. `signatures`: where those of `known` documents are kept. `skipped`: an earlier run had done everything.
    """

    name: str
    files: int = 0
    documents: int = 0
    duplicates: int = 0
    added: int = 0
    empty: int = 0
    candidates: int = 0
    left_out: int = 0
    clusters: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    largest: list[dict[str, Any]] = field(default_factory=list)
    signatures: str | None = None
    known: int = 0
    skipped: bool = False
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def __str__(self) -> str:
        head = (
            f"{self.duplicates:,} of {self.documents:,} documents in {self.files:,} files are near-duplicates,"
            f" in attributes/{self.name}"
        )
        return f"{head}\n{self.clusters:,} clusters among {self.added:,} documents that are new"


def find_near(
    documents: Sequence[str],
    options: NearOptions,
    *,
    signatures: str | None = None,
    workers: int | None = None,
    id: str | None = None,
    allow_empty: bool = False,
    progress: bool | None = None,
) -> NearReport:
    """Write an attribute set that marks near-duplicates: all but one document of each cluster.

    The result is the same for any number of processes. A repeated run only does the remaining work.

    Args:
        documents: files, folders or patterns; each has a folder ``documents``.
        signatures: a local folder of signatures, so that later documents can be compared with these. Files that it
            has are not read again. Default: signatures are removed at the end.
        workers: processes, or threads where that is faster; by default one for each core.
        id: see `feedmill.curation.tag.tag`.
        allow_empty: whether to accept patterns without files, and files without a document.

    Raises:
        EmptyResult: there is no document.
        NotFound: nothing to read.
        ConfigError: options that are invalid or differ from those of the signatures, a file that changed since its
            signatures were computed, or signatures that another run is using.
        DataError: an invalid row, or corrupt signatures.
    """
    report = NearReport(options.name, signatures=signatures)
    files = find_in_datasets(documents, report.warnings, options.documents_folder, allow_missing=allow_empty, id=id)
    if signatures is not None and not open_store(signatures).is_local:
        raise ConfigError("signatures must be on a local disk", file=signatures, fix="Give a local path.")
    run_print = fingerprint(
        [file.identity for file in files],
        options.as_dict(),
        None if signatures is None else open_store(signatures).locate(""),
    )
    target = set_store(files[0].store(), options.name)
    identity = {"verb": "neardedupe", "run": run_print}
    done = _done(files, options, run_print, report)
    if signatures is not None:
        if done:
            tidy_signatures(signatures, options)
        else:
            _run(files, options, signatures, run_print, workers, progress, report)
    elif done:
        tidy(target, identity=identity)
    else:
        with Work(target) as work:
            work.begin(identity, keep_staged=True)
            signatures = f"{work.folder}/signatures-{fingerprint(options.signature())}"
            _run(files, options, signatures, run_print, workers, progress, report)
            work.finish()
    refuse_empty(report.documents, report.documents, file=f"attributes/{options.name}", allow=allow_empty)
    return report


def _run(
    files: list[DocumentFile],
    options: NearOptions,
    folder: str,
    run_print: str,
    workers: int | None,
    progress: bool | None,
    report: NearReport,
) -> None:
    manifests = [read_manifest(open_store(root or "."), options.name) for root in by_folder(files)]
    told = all(one is not None and one.get("run") == run_print for one in manifests)
    with open_dumps(folder, options) as dumps:
        add_dump(dumps, files, options, report, run_print, told, workers, progress)
        results = _finish(dumps, files, options, workers, progress)
        dumps.forget_work()  # before the record: a run that finds that does nothing more
        _record(files, results, options, run_print, report)


def _finish(
    dumps: Dumps, files: list[DocumentFile], options: NearOptions, workers: int | None, progress: bool | None
) -> list[finishing.Finished]:
    known = dumps.known()
    tasks = []
    for file in files:
        place = known[file.store().locate(file.path)]
        where = (dumps.folder, len(dumps.records), place.dump, place.first, place.record["rows"], place.record["ids"])
        read = place.record.get("xxh3", "")  # signatures of earlier versions do not have it
        tasks.append(finishing.Task(file, options.name, options.documents_folder, *where, read))
    with Progress("writing", len(tasks), "files", progress) as bar:
        return list(spread(finishing.finish, tasks, workers, bar))


def _done(files: list[DocumentFile], options: NearOptions, run_print: str, report: NearReport) -> bool:
    """Return whether manifests say that exactly this was done, and its outputs are as they were written."""
    found = recorded(files, options.name, options.documents_folder, run=run_print)
    if found is None or not all(isinstance(manifest.get("report"), dict) for manifest in found[0]):
        return False
    saved = found[0][-1]["report"]
    for one in fields(report):
        if one.name in saved:
            setattr(report, one.name, saved[one.name])
    report.skipped = True
    return True


def _record(
    files: list[DocumentFile],
    results: list[finishing.Finished],
    options: NearOptions,
    run_print: str,
    report: NearReport,
) -> None:
    """Write the manifests; entries of files that an earlier run wrote into the same set are kept."""
    report.files, report.documents = len(files), sum(one.rows for one in results)
    report.duplicates = sum(one.duplicates for one in results)
    entries = [entry(one, one.duplicates, one.duplicates) for one in results]
    manifest = {"verb": "neardedupe", "options": options.as_dict(), "run": run_print, "report": report.as_dict()}
    record(files, entries, options.name, options.documents_folder, manifest)
