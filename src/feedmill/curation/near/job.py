"""Near-duplicate jobs: sign new files, compare them, and write attributes, manifests and the report."""

from __future__ import annotations

from functools import partial
from typing import Any

from feedmill.curation.attribute_set import entry, fingerprint, read_manifest, record, restore, set_store
from feedmill.curation.dry_run import plan_set, read_first
from feedmill.curation.near import finish as finishing
from feedmill.curation.near.adding import add_dump
from feedmill.curation.near.dumps import Dumps, open_dumps, refuse_other_signatures, tidy_signatures
from feedmill.curation.near.options import NearReport
from feedmill.curation.near.parallel import THREADS, map_units
from feedmill.curation.options import EMBEDDINGS, LONGEST, Neardedupe
from feedmill.documents.file import DocumentFile, by_folder
from feedmill.documents.find import find_in_datasets
from feedmill.errors import ConfigError, refuse_empty
from feedmill.jobs.dry_run import DryRun, perform
from feedmill.jobs.engine import Where, current, is_alone
from feedmill.jobs.memory import room_of
from feedmill.jobs.progress import Progress
from feedmill.jobs.work import Work, foresee, tidy
from feedmill.storage import Store, open_store, paths_of


def find_near(options: Neardedupe) -> NearReport:
    """Write an attribute set that marks near-duplicates: all but one document of each cluster.

    Documents are compared by shingles, or by embeddings (`feedmill.curation.near.meaning`). The result is the same
    for any number of workers. A repeated run only does the remaining work. With several thresholds, write a set for
    each, and read the documents once. Workers are threads or processes, whichever are faster. Without a folder of
    signatures, these are removed at the end; files that are in it already are not read again.

    Raises:
        EmptyResult: There are no documents.
        NotFound: No files were found.
        ConfigError: Options are invalid or differ from those of the signatures, or a file changed since its signatures
            were computed. Or there are several thresholds together with `signatures`, or in a job array. Or a file has
            no fitting embeddings.
        StorageError: Another run is using the signatures.
        DataError: A row is invalid, or the signatures are corrupt.
    """
    meaning = options.by == EMBEDDINGS
    signatures, allow_empty, documents = options.signatures, options.allow_empty, paths_of(options.documents)
    if len(options.thresholds) > 1:
        _refuse_several(signatures)
    room = room_of(options.memory, options.workers, THREADS if current() is None else 1)
    every = options.settled()
    options = every[0]
    reports = [NearReport(run.name, signatures=signatures) for run in every]
    report = reports[0]
    find = partial(find_in_datasets, allow_missing=allow_empty, id=options.id)
    if meaning:
        from feedmill.curation.embed import find_embedded

        find = partial(find_embedded, embeddings=str(options.embeddings), allow_missing=allow_empty, id=options.id)
    files = find(documents, warnings=report.warnings, documents=options.documents_folder)
    if signatures is not None and not open_store(signatures).is_local:
        raise ConfigError("signatures must be on a local disk", file=signatures, fix="Use a local path.")
    lists: list[tuple[Store, str]] = []
    kept_in: Any = None if signatures is None else open_store(signatures).locate("")
    if meaning:
        from feedmill.curation.near.meaning import compare_vectors, skip_lists, sources_of_vectors

        lists = [(store, path) for settings in every for store, path, _ in skip_lists(files, settings.name)]
        if lists and options.keep == LONGEST:
            raise ConfigError(
                "--keep longest is for documents: images have no length", kind="bad-option", fix="Leave it out."
            )
        sources, kept_in = sources_of_vectors(files, str(options.embeddings), options.documents_folder)
    runs = [fingerprint([file.identity for file in files], settings.as_dict(), kept_in) for settings in every]
    target = set_store(files[0].store(), options.name)
    identity = {"verb": "neardedupe", "run": runs[0] if len(runs) == 1 else fingerprint(runs)}
    folder = options.documents_folder
    done = [restore(report, files, folder, run) for report, run in zip(reports, runs, strict=True)]
    done = [one and all(store.exists(path) for store, path in lists) for one in done]
    report.others = reports[1:]
    where = f"attributes/{options.name}"

    def plan(dry: DryRun) -> None:
        if all(done):
            return
        foresee(target)
        for settings, already in zip(every, done, strict=True):
            if not already:
                plan_set(dry, files, settings.name, folder)
        if signatures is not None:
            refuse_other_signatures(signatures, options)
            dry.writes(open_store(signatures), "/")
        for store, path in lists:
            dry.writes(store, path)
        rows = read_first(dry, files)
        if rows is not None:
            refuse_empty(rows, rows, file=where, allow=allow_empty)

    def execute() -> None:
        if signatures is not None:
            if done[0]:
                tidy_signatures(signatures, options)
            else:
                _run(files, options, signatures, runs[0], room, report)
        elif all(done):
            tidy(target, identity=identity)
        else:
            with Work(target) as work:
                work.begin(identity, keep_staged=True)
                if meaning:
                    shared = fingerprint(kept_in, [file.identity for file in files], options.clusters, options.keep)
                    kept = f"{work.folder}/meaning-{shared}"
                else:
                    own = options.signature() if len(every) == 1 else [settings.signature() for settings in every]
                    kept = f"{work.folder}/signatures-{fingerprint(own)}"
                left = [
                    of for of, already in zip(zip(every, runs, reports, strict=True), done, strict=True) if not already
                ]
                for number, (chosen, run, into) in enumerate(left, 1):
                    if meaning:
                        _record(files, compare_vectors(sources, chosen, kept, run, room, into), chosen, run, into)
                        continue
                    if len(every) > 1:
                        Dumps(open_store(kept)).forget_decisions(chosen)
                    _run(files, chosen, kept, run, room, into, more=number < len(left))
                work.finish()
        refuse_empty(report.documents, report.documents, file=where, allow=allow_empty)

    perform(plan, execute)
    return report


def _refuse_several(signatures: str | None) -> None:
    """Raise `ConfigError` where several thresholds cannot be."""
    if signatures is not None:
        raise ConfigError(
            "a folder of signatures has the decisions of one threshold",
            file=signatures,
            kind="bad-option",
            fix="Give one threshold, or leave out the signatures.",
        )
    if not is_alone():
        raise ConfigError(
            "the parts of a job array decide for one threshold at a time", kind="bad-option", fix="Give one threshold."
        )


def _run(
    files: list[DocumentFile],
    options: Neardedupe,
    folder: str,
    run_print: str,
    room: int,
    report: NearReport,
    more: bool = False,
) -> None:
    manifests = [read_manifest(open_store(root or "."), options.name) for root in by_folder(files)]
    recorded = all(manifest is not None and manifest.get("run") == run_print for manifest in manifests)
    with open_dumps(folder, options) as dumps:
        add_dump(dumps, files, options, report, run_print, recorded, room)
        results = _finish(dumps, files, options, room)
        signed = frozenset(file["print"] for record in dumps.records for file in record["files"])
        dumps.forget_work(signed if more else frozenset())  # before the record: a run that finds it does nothing
        _record(files, results, options, run_print, report)


def _finish(dumps: Dumps, files: list[DocumentFile], options: Neardedupe, room: int) -> list[finishing.Finished]:
    known, tasks = dumps.known(), []
    key = fingerprint([record["print"] for record in dumps.records])
    for file in files:
        place = known[file.store().locate(file.path)]
        of = (place.dump, place.first, place.record["rows"], place.record["ids"], place.record["xxh3"])
        to = (options.name, options.documents_folder, dumps.folder, len(dumps.records))
        tasks.append(finishing.FinishTask(file, *to, key, *of, options.similar, room))
    with Progress.of_files("writing", [task.file.size for task in tasks], options.progress) as bar:
        where = Where("writing", fingerprint([task.key for task in tasks]), dumps.store)
        return list(map_units(finishing.finish, tasks, options.workers, bar, where))


def _record(
    files: list[DocumentFile],
    results: list[finishing.Finished],
    options: Neardedupe,
    run_print: str,
    report: NearReport,
) -> None:
    """Fill the report and write the manifests, keeping the entries of other files."""
    report.files, report.documents = len(files), sum(result.rows for result in results)
    report.duplicates = sum(result.duplicates for result in results)
    report.lowest = min((result.lowest for result in results if result.lowest is not None), default=None)
    report.uncovered = sum(result.uncovered for result in results)
    report.sources = finishing.sources_of(files, results)
    if report.uncovered:
        report.warnings.append(
            f"{report.uncovered:,} of {report.duplicates:,} marked documents are less similar than {options.similar}"
            f" to the one that is kept, down to {report.lowest:.2g}: they are only connected to it by others. With"
            " '--removal covered' they stay unless a kept one is similar"
        )
    entries = [entry(result, result.duplicates, result.duplicates) for result in results]
    manifest = {"verb": "neardedupe", "options": options.as_dict(), "run": run_print, "report": report.as_dict()}
    # A folder of signatures stands for documents of earlier runs, which can be gone on purpose.
    together = options.signatures is None
    record(files, entries, options.name, options.documents_folder, manifest, together=together)
