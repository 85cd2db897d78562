"""Folder of signatures: read its dumps, add a dump, and remove unfinished work of interrupted runs.

A dump is the set of files that one run added to the folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from feedmill.curation.attribute_set import fingerprint
from feedmill.curation.near import join, keys, sketch
from feedmill.curation.near.cluster import find_clusters
from feedmill.curation.near.options import NearOptions
from feedmill.curation.near.parallel import spread, spread_files
from feedmill.curation.near.view import WORK, open_view
from feedmill.documents.file import DocumentFile
from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.signatures import (
    FIRST_VERSION,
    LOCK,
    RECORD,
    VERSION,
    damaged,
    dump_name,
    read_record,
    write_record,
)
from feedmill.jobs.dry_run import active
from feedmill.jobs.engine import Where, is_alone
from feedmill.jobs.progress import Progress
from feedmill.storage import Entry, LocalStore, Store, open_store
from feedmill.storage.staging import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from feedmill.curation.near.job import NearReport

MOST_DOCUMENTS = 1 << 32
"""A dump has fewer documents than this."""


class _Found(msgspec.Struct):
    """Fields of `NearReport` that the record of a dump stores."""

    added: int
    empty: int
    candidates: int
    left_out: int
    clusters: int
    sizes: dict[str, int]
    largest: list[dict[str, Any]]
    warnings: list[str]


class Place(NamedTuple):
    """Position of a file's documents: the dump, the number of the first document, and the file's entry in the dump."""

    dump: int
    first: int
    record: dict[str, Any]


@dataclass(slots=True)
class Dumps:
    """Records of all dumps of a folder of signatures."""

    store: Store
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """Path or URL of the folder."""
        return self.store.url

    @property
    def documents(self) -> int:
        """Number of documents in all dumps."""
        return sum(record["rows"] for record in self.records)

    def known(self) -> dict[str, Place]:
        """Return the place of each file in the dumps, by its location."""
        found = {}
        for number, record in enumerate(self.records):
            first = record["first"]
            for file in record["files"]:
                found[file["location"]] = Place(number, first, file)
                first += file["rows"]
        return found

    def forget_work(self, keep: frozenset[str] = frozenset()) -> None:
        """Remove files that belong to no dump, markers of files whose dump is recorded, and without `keep` also the
        markers of finished attribute files.

        Args:
            keep: Fingerprints of files and dumps whose work is kept.
        """
        if not is_alone():
            return  # other parts may be writing
        prints = {file["print"] for record in self.records for file in record["files"]} | keep
        folders = {record["folder"].rpartition("/")[2] for record in self.records} | keep
        for name in _names(self.store, "segments"):
            of = name.partition("-")[0].removesuffix(".json")
            done = name.endswith(".json") and of not in keep  # the dump's record says the same, and is synced
            if name.endswith(TEMPORARY_SUFFIX) or of not in prints or done:
                self._remove(f"segments/{name}")
        for name in _names(self.store, "dumps"):
            if name not in folders:
                self._remove(f"dumps/{name}")
        for folder in ("", *(f"dumps/{name}/" for name in folders)):
            done = folder != "" and os.path.basename(folder[:-1]) not in keep
            for name in _names(self.store, folder):
                if name.endswith(TEMPORARY_SUFFIX) or (done and name == WORK):
                    self._remove(f"{folder}{name}")
        if not keep:
            self._remove("done")

    def _remove(self, path: str) -> None:
        if not isinstance(self.store, LocalStore):
            below = [entry.path for entry in _entries(self.store, path)]
            for one in below or [path]:
                self.store.delete(one)
        elif os.path.isdir(self.store.writable(path)):
            self.store.remove_folder(path)
        else:
            self.store.delete(path)


@contextlib.contextmanager
def open_dumps(folder: str, options: NearOptions) -> Iterator[Dumps]:
    """Open the folder of signatures for this run alone. It is created if it does not exist.

    In an object store it belongs to a job, which has locked its output.

    Raises:
        ConfigError: Its signatures were made with other options, or it contains other files.
        StorageError: Another run is using it.
        DataError: A record is corrupt.
    """
    store = open_store(folder)
    _refuse_others(store)
    with _locked(store):
        _agree(store, options)
        dumps = Dumps(store)
        while (record := read_record(store, dump_name(len(dumps.records)))) is not None:
            if record.get("first") != dumps.documents or not isinstance(record.get("files"), list):
                raise damaged(store, dump_name(len(dumps.records)), "it does not follow the dumps before it")
            dumps.records.append(record)
        open_view.cache_clear()  # cached views can be of an earlier run in this folder, and keep files mapped
        try:
            yield dumps
        finally:
            open_view.cache_clear()


def refuse_other_signatures(folder: str, options: NearOptions) -> None:
    """Raise `ConfigError` if a folder has other files, or signatures that were made with other options."""
    store = open_store(folder)
    _refuse_others(store)
    _agree(store, options)


def _locked(store: Store) -> contextlib.AbstractContextManager[object]:
    if not isinstance(store, LocalStore):
        return contextlib.nullcontext()
    what = "another process is writing these signatures"
    return store.lock(LOCK, what=what, file=store.root, shared=not is_alone())


def tidy_signatures(folder: str, options: NearOptions) -> None:
    """Remove markers that a run could not remove at its end, or that reappeared after a power loss."""
    if os.path.isdir(os.path.join(folder, "done")):
        with contextlib.suppress(FeedmillError), open_dumps(folder, options) as dumps:  # another run may use them
            dumps.forget_work()


def _refuse_others(store: Store) -> None:
    """Raise `ConfigError` if the folder has files but no signatures.

    Unfinished work is found and removed by its path, so a user's own folder ``dumps/`` would be deleted.
    """
    there = [name for name in _names(store) if name != LOCK and not name.endswith(TEMPORARY_SUFFIX)]
    if there and not store.exists(RECORD):  # checked after listing: it is the first file of a folder of signatures
        raise ConfigError(
            f"the folder contains files but no signatures: {', '.join(there[:3])}",
            file=store.url,
            kind="no-signatures",
            fix="Use a folder for signatures that is empty or does not exist yet.",
        )


def _agree(store: Store, options: NearOptions) -> None:
    wanted = options.signature()
    found = read_record(store, RECORD)
    if found is None and active() is not None:
        return
    if found is None:
        write_record(store, RECORD, {"version": FIRST_VERSION, "options": wanted})
        return
    if found.get("version") not in (FIRST_VERSION, VERSION) or not isinstance(found.get("options"), dict):
        raise damaged(store, RECORD, f"expected version {FIRST_VERSION} or {VERSION}")
    different = [name for name in wanted if found["options"].get(name) != wanted[name]]
    if different:
        differences = ", ".join(f"{name} {found['options'].get(name)} instead of {wanted[name]}" for name in different)
        raise ConfigError(
            f"these signatures were made with other options: {differences}",
            file=store.locate(RECORD),
            kind="other-signatures",
            fix="Use those options, or another folder.",
        )


def add_dump(
    dumps: Dumps,
    files: Sequence[DocumentFile],
    options: NearOptions,
    report: NearReport,
    run: str,
    recorded: bool,
    workers: int | None,
    progress: bool | None,
) -> None:
    """Sign the files that are not in the folder yet, find similar documents, and add the files as a dump.

    If the folder has all files, no dump is added. Finished work of an interrupted run is reused.

    Args:
        report: Receives the results.
        run: Fingerprint of the run. If the same run added the last dump but did not finish, its results are reported.

    Raises:
        ConfigError: A file changed after it was added.
        DataError: A row is invalid.
    """
    tasks = _unknown(dumps, files, options)
    keep = frozenset(task.fingerprint for task in tasks)
    before = len(report.warnings)
    if tasks:
        plan = _plan_print(dumps, tasks)
        dumps.forget_work(keep | {plan})
        sizes = [task.file.size for task in tasks]
        with Progress.of_files("reading", sizes, progress) as bar:
            where = Where("reading", plan, dumps.store, last=False)
            sketched = spread_files(sketch.sketch, tasks, sizes, workers=workers, progress=bar, where=where)
        record = _plan(dumps, tasks, sketched, plan)
        _warn_of_copies(dumps, record, report)
        write_record(dumps.store, f"{record['folder']}/plan.json", record)
        pairs = _compare(dumps, record, options, report, workers, progress)
        view = open_view(dumps.folder, len(dumps.records), record["folder"])
        stage = partial(_stage, dumps, record, workers, progress)
        found, size = find_clusters(dumps.folder, view, list(pairs), list(pairs.values()), options.keep, stage)
        for name, value in found.items():
            setattr(report, name, value)
        if size:
            record["clusters"] = size
            write_record(dumps.store, RECORD, {"version": VERSION, "options": options.signature()})
        report.added, report.empty = record["rows"], sum(one.empty for one in sketched)
        results = {name: getattr(report, name) for name in _Found.__struct_fields__}
        record |= {"run": run, "found": {**results, "warnings": report.warnings[before:]}}
        write_record(dumps.store, dump_name(len(dumps.records)), record)
        dumps.records.append(record)
    elif not recorded and dumps.records and dumps.records[-1].get("run") == run:  # killed after it added the dump
        for name, value in _found(dumps).items():
            setattr(report, name, [*report.warnings, *value] if name == "warnings" else value)
    report.known = dumps.documents


def _found(dumps: Dumps) -> dict[str, Any]:
    """Return the results of the run that added the last dump."""
    try:
        return msgspec.structs.asdict(msgspec.convert(dumps.records[-1].get("found"), _Found))
    except msgspec.ValidationError as error:
        raise damaged(dumps.store, dump_name(len(dumps.records) - 1), str(error)) from None


def _unknown(dumps: Dumps, files: Sequence[DocumentFile], options: NearOptions) -> list[sketch.SketchTask]:
    known, tasks = dumps.known(), []
    for file in files:
        task = sketch.SketchTask(file, options, dumps.folder)
        place = known.get(task.location)
        if place is None:
            tasks.append(task)
        elif place.record["print"] != task.fingerprint:
            raise ConfigError(
                "the file has changed since its signatures were made: earlier decisions cannot be changed",
                file=file.name,
                kind="changed-documents",
                fix="Put new documents into a new file, or make new signatures in another folder.",
            )
    return tasks


def _plan_print(dumps: Dumps, tasks: Sequence[sketch.SketchTask]) -> str:
    before = [record["print"] for record in dumps.records]
    return fingerprint(before, [task.fingerprint for task in tasks], tasks[0].options.signature())


def _plan(
    dumps: Dumps, tasks: Sequence[sketch.SketchTask], sketched: Sequence[sketch.Sketched], plan: str
) -> dict[str, Any]:
    """Return the record of the dump to add."""
    files = [
        {
            "location": task.location,
            "name": task.file.name,
            "size": task.file.size,
            "version": task.file.version,
            "print": task.fingerprint,
            "rows": one.rows,
            "ids": one.ids,
            "digest": one.digest,
            "xxh3": one.xxh3,
            "segments": one.segments,
        }
        for task, one in zip(tasks, sketched, strict=True)
    ]
    rows = sum(one.rows for one in sketched)
    if rows >= MOST_DOCUMENTS:
        raise ConfigError(
            f"too many documents for one run: {rows:,}", fix="Add them in several runs, with --signatures."
        )
    return {"first": dumps.documents, "rows": rows, "print": plan, "folder": f"dumps/{plan}", "files": files}


def _warn_of_copies(dumps: Dumps, record: dict[str, Any], report: NearReport) -> None:
    digests = {file["digest"]: file["location"] for old in dumps.records for file in old["files"] if file["rows"]}
    for file in record["files"]:
        if file["digest"] in digests:
            report.warnings.append(
                f"{file['name']} has the documents of {digests[file['digest']]}: all of them count as duplicates."
                " If the file was moved, make new signatures in another folder"
            )


def _compare(
    dumps: Dumps,
    record: dict[str, Any],
    options: NearOptions,
    report: NearReport,
    workers: int | None,
    progress: bool | None,
) -> dict[str, int]:
    """Compare the new documents. Return the path of each result, and its number of similar pairs."""
    parts, bands = join.ranges(record["rows"]), options.shape[0]
    place, files = (dumps.folder, len(dumps.records), record["folder"]), 0
    if len(parts) > 1:
        bounds = tuple(high for _, high in parts)
        segments = keys.groups(open_view(*place), bands)
        ordering = [keys.KeysTask(*place, n, low, high, bands, bounds) for n, (low, high) in enumerate(segments)]
        files = len(list(_stage(dumps, record, workers, progress, keys.order_keys, ordering, "ordering")))
    tasks = [
        join.JoinTask(*place, options.threshold, band, part, low, high, files)
        for band in range(bands)
        for part, (low, high) in enumerate(parts)
    ]
    pairs = {}
    with Progress("comparing", len(tasks), "bands", progress) as bar:
        where = Where("comparing", record["print"], dumps.store, last=False)
        for task, one in zip(tasks, spread(join.join, tasks, workers, bar, where), strict=True):
            pairs[task.path] = one.edges
            report.candidates += one.candidates
            report.left_out += one.left_out
    if report.left_out:
        report.warnings.append(
            f"up to {report.left_out:,} pairs of documents were not compared: their keys are shared by thousands of"
            " documents. Use more rows or longer shingles to get smaller groups"
        )
    return pairs


def _stage(
    dumps: Dumps,
    record: dict[str, Any],
    workers: int | None,
    progress: bool | None,
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    name: str,
) -> Iterator[Any]:
    """Yield the results of a stage whose files are needed only until the dump is recorded. `name`: word and number."""
    word = name.partition(" ")[0]
    with Progress(word, len(tasks), "files", progress) as bar:
        where = Where(word, fingerprint(record["print"], name), dumps.store, last=False)
        yield from spread(function, tasks, workers, bar, where)


def _names(store: Store, folder: str = "") -> list[str]:
    """Return the names directly in a folder, sorted."""
    if isinstance(store, LocalStore):
        try:
            return sorted(os.listdir(store.locate(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []
    below = folder.rstrip("/") + "/" if folder else ""
    return sorted({entry.path.removeprefix(below).split("/")[0] for entry in _entries(store, folder)})


def _entries(store: Store, folder: str) -> list[Entry]:
    try:
        return list(store.files(folder))
    except NotFound:
        return []
