"""Repair a dataset: truncate incomplete tails, remove invalid lines, and rebuild the index.

No data is lost: removed bytes are saved in ``.nv-meta/repair/`` (or ``<file>.repair/``), with a report that describes
them. A shard is replaced as a whole, so a killed repair leaves either the old file or the fixed one. Each removal is
first recorded in ``journal.json`` in that folder: the next repair finishes a killed one and completes the same report.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import BinaryIO

import msgspec
import numpy as np
import orjson

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.energon import ENERGON, database
from feedmill.formats.energon.prepared import PreparedShards, idx_name, read_info
from feedmill.formats.energon.sidecar import read_splits
from feedmill.formats.energon.write import write_splits
from feedmill.formats.format import Detected
from feedmill.formats.jsonl import index as jsonl
from feedmill.formats.jsonl import splits as jsonl_splits
from feedmill.formats.offsets import load_offsets, read_records
from feedmill.formats.registry import by_name
from feedmill.formats.sniff import sniff
from feedmill.indexing.options import Repair
from feedmill.indexing.prepare import prepare
from feedmill.indexing.prepare_tars import find_shards
from feedmill.indexing.report import PrepareReport
from feedmill.indexing.scanning import Scanned, scan_all
from feedmill.jobs.dry_run import DryRun, JobReport, active
from feedmill.jobs.options import verb
from feedmill.jobs.policy import SKIP
from feedmill.jobs.work import alone
from feedmill.kernels.files import tar
from feedmill.kernels.jsonl.lines import index_lines
from feedmill.storage import Store
from feedmill.storage.cache.copies import cached_copy
from feedmill.storage.cache.mapped import mapped
from feedmill.structs import decode_as

CUT = ("truncated", "bad-header")
"""Kinds of damage that allow to keep the samples before the damage."""
_STEP = 16 << 20


@dataclass(slots=True)
class RepairReport(JobReport):
    """The result of `repair`.

    Attributes:
        path: the dataset.
        dropped: removed bytes.
        remaining: damage that could not be repaired; the index skips those shards.
        prepared: the new index.
    """

    path: str
    dropped: list[Dropped] = field(default_factory=list)
    remaining: list[DataError] = field(default_factory=list)
    prepared: PrepareReport | None = None


@verb(Repair)
def repair(options: Repair) -> RepairReport:
    """Return what was removed, and what remains. A dry run reads the data.

    Raises:
        NotFound: there is no dataset at `url`.
        ConfigError: the dataset is not tars or JSONL, or it is VLA Foundry's.
        DataError: no complete sample is left.
        StorageError: the files cannot be written.
    """
    url = os.fspath(options.url)
    found = sniff(url)
    how = found.format.repair
    if found.names and isinstance(how, str):
        how = by_name()["wids"].repair  # a list of shards is rejected like a list of WIDS
    if not isinstance(how, str):
        what, fix = how
        folder = found.store.locate(found.name).rpartition("/")[0]
        raise ConfigError(what.format(name=found.kind), file=url, kind="unsupported", fix=fix.format(folder=folder))
    with alone(found.store, found.path):
        return _repair(found, url, options.workers, options.progress)


def _repair(found: Detected, url: str, workers: int | None, progress: bool | None) -> RepairReport:
    report = RepairReport(url)
    listed: list[str] | None = None
    excluded: set[tuple[str, str]] = set()
    if found.format is ENERGON:
        with suppress(FeedmillError):  # an unreadable index cannot show which excluded samples are lost
            excluded = _excluded(found.store)
    folder = f"{found.path}.repair" if found.path else ".nv-meta/repair"
    journal = RepairJournal(found.store, folder, excluded)
    if found.format.repair == "lines":
        _repair_lines(found.store, found.name, journal)
    else:
        entries = [found.store.stat(found.name)] if found.path else find_shards(found.store)
        if found.format is ENERGON:
            listed = _listed(found.store)
            entries = [entry for entry in entries if listed is None or entry.path in listed]
            if listed is not None:
                there = [entry.path for entry in entries]
                report.remaining += [_missing(found.store, shard) for shard in sorted({*listed} - {*there})]
                listed = there
        for scanned in scan_all(found.store, entries, workers=workers, digest=False, rescan=True):
            if scanned.scan.problem is not None:
                report.remaining += _repair_shard(found.store, scanned, folder, journal)
    if (dry := active()) is not None:
        _plan(dry, found, url, report, journal, listed, workers, progress)
        return report
    if found.format.repair != "tar":
        report.prepared = prepare(url, shards=listed, on_error=SKIP, rescan=True, workers=workers, progress=progress)
    if journal.excluded:
        _forget_excluded(found.store, journal.excluded - _excluded(found.store))
    report.dropped = journal.dropped()
    if report.dropped or report.remaining:
        text = orjson.dumps(report.as_dict(), option=orjson.OPT_INDENT_2)
        found.store.write_bytes(journal.report, text)
    journal.finish()
    return report


def _plan(
    dry: DryRun,
    found: Detected,
    url: str,
    report: RepairReport,
    journal: RepairJournal,
    listed: list[str] | None,
    workers: int | None,
    progress: bool | None,
) -> None:
    """Complete the report of a dry run. The new index is described unless it depends on what would be removed."""
    report.dropped = journal.dropped()
    for item in report.dropped:
        where = item.file.rpartition("/")[2]
        dry.skipped[f"bytes from byte {item.offset:,} of {where}: {item.why}"] = item.bytes
    if found.format.repair != "tar" and not report.dropped:
        report.prepared = prepare(url, shards=listed, on_error=SKIP, rescan=True, workers=workers, progress=progress)
    else:
        entries = [found.store.stat(found.name)] if found.path else find_shards(found.store)
        dry.reads(entry.size for entry in entries if listed is None or entry.path in listed)
    if found.format.repair != "tar" and report.dropped:
        written = [jsonl.idx_name(found.name)] if found.path else [f"{database.META}/"]
        for path in written:
            dry.writes(found.store, path)
    if report.dropped or report.remaining:
        dry.writes(found.store, journal.report)
    dry.warnings += [f"not in the index: {error}" for error in report.remaining]


def _excluded(store: Store) -> set[tuple[str, str]]:
    """Return the excluded samples that the index contains. Raises `FeedmillError` if index or splits are unreadable."""
    splits, info = read_splits(store), read_info(store)
    if splits is None or not splits.samples_out:
        return set()
    table = PreparedShards(store, info, list(info), splits, None)
    return {one for one in splits.samples_out if _has(table, one[1])}


def _has(table: PreparedShards, key: str) -> bool:
    try:
        table.find(key)
    except NotFound:
        return False
    return True


def _forget_excluded(store: Store, gone: set[tuple[str, str]]) -> None:
    """Remove lost samples from the exclusions of the split file, because they would prevent opening the dataset."""
    splits = read_splits(store) if gone else None
    if splits is not None:
        kept = [f"{shard}/{key}" for shard, key in splits.samples_out if (shard, key) not in gone]
        write_splits(store, splits.parts, [*sorted(splits.shards_out), *kept])


def _listed(store: Store) -> list[str] | None:
    """Return the shards of the current index, which may lack excluded or new ones; None if it cannot be read."""
    try:
        return list(read_info(store))
    except DataError:
        return None


def _missing(store: Store, shard: str) -> DataError:
    return DataError(
        "the index listed this shard, but the file is missing",
        file=store.locate(shard),
        kind="missing-shard",
        fix="Restore it and run 'feedmill prepare' to index it again.",
    )


def _repair_shard(store: Store, scanned: Scanned, folder: str, journal: RepairJournal) -> list[DataError]:
    """Truncate the incomplete tail of a shard. Return the damage that cannot be repaired."""
    problem = scanned.scan.problem
    assert problem is not None
    whole = max(whole_samples(scanned.scan), _whole_by_index(store, scanned))
    if problem.kind not in CUT or not whole:
        journal.note()
        return [problem]
    shard, end, size = scanned.shard, int(scanned.scan.starts[whole]), scanned.record.size
    saved = journal.saved(shard, end, f"{folder}/{shard.replace('/', '__')}.from-{end}")
    lost = _lost_keys(store, scanned, whole)
    journal.note([Taken(shard, end, size - end, str(problem), lost, saved)])
    if active() is not None:
        return []
    with store.write(saved) as out:
        _copy(store, shard, end, size, out)
    with store.write(shard) as out:
        _copy(store, shard, 0, end, out)
        out.write(bytes(2 * tar.BLOCK))
    return []


def _lost_keys(store: Store, scanned: Scanned, whole: int) -> list[str]:
    """Return the known keys of the lost samples: those read before the damage, and those that only the index has."""
    scan = scanned.scan
    name = tar.sample_name(scan.problem.record) if scan.problem is not None and scan.problem.record else None
    kept, known = set(scan.keys[:whole]), [*scan.keys[whole:], *([name[0]] if name else [])]
    return list(dict.fromkeys([*known, *(key for key in _indexed_keys(store, scanned.shard) if key not in kept)]))


def _indexed_keys(store: Store, shard: str) -> list[str]:
    """Return the keys of a shard in the present index; none if it cannot be read."""
    try:
        number = list(read_info(store)).index(shard)
        connection = database.open_index(cached_copy(store, database.INDEX))
    except (FeedmillError, ValueError):
        return []
    query = "SELECT sample_key FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
    with closing(connection), suppress(sqlite3.DatabaseError):
        return [str(key) for (key,) in connection.execute(query, (number,))]
    return []


def _whole_by_index(store: Store, scanned: Scanned) -> int:
    """Return the number of samples that end before the damage by an earlier offset file; 0 if none matches."""
    problem, starts = scanned.scan.problem, scanned.scan.starts
    try:
        known = load_offsets(store, idx_name(scanned.shard), fix="")
    except FeedmillError:
        return 0
    count = min(len(scanned.scan.keys), len(known) - 1)
    if problem is None or problem.offset is None or not np.array_equal(known[1:count], starts[1:count]):
        return 0
    return int(np.searchsorted(known[1 : count + 1], problem.offset, side="right"))


def whole_samples(scan: tar.ShardScan) -> int:
    """Return the number of samples of a corrupt shard that are certainly complete.

    The last sample is incomplete if the corrupt member belongs to it, or if the damage hides the next member and the
    sample lacks a part that every earlier sample has.
    """
    count = len(scan.keys)
    if scan.problem is None or not count:
        return count
    if scan.problem.record is not None:
        name = tar.sample_name(scan.problem.record)
        return count - 1 if name is not None and name[0] == scan.keys[-1] else count
    parts = [set(scan.parts[low:high]) for low, high in _bounds(scan)]
    common = set.intersection(*parts[:-1]) if count > 1 else parts[0]
    return count if count > 1 and common <= parts[-1] else count - 1


def _bounds(scan: tar.ShardScan) -> Iterator[tuple[int, int]]:
    edges = np.searchsorted(scan.sample, np.arange(len(scan.keys) + 1)).tolist()
    yield from pairwise(edges)


def _copy(store: Store, path: str, begin: int, end: int, out: BinaryIO) -> None:
    for at in range(begin, end, _STEP):
        out.write(store.read(path, at, min(_STEP, end - at)))


def _repair_lines(store: Store, name: str, journal: RepairJournal) -> None:
    with mapped(store, name) as data:
        found = index_lines(data)
        offsets = [*found.bad.tolist(), *(e.offset or 0 for e in jsonl.bad_records(store, name, found.starts))]
        bad = set((np.searchsorted(found.starts, offsets, side="right") - 1).tolist())
        marked = {i for i in bad if jsonl.is_marked(data[found.starts[i] : found.starts[i + 1]].tobytes())}
    bad -= marked
    if not bad | marked:
        return
    if len(bad) == len(found.starts) - 1:
        raise DataError(
            "cannot repair: no line is a JSON object, so nothing would be left",
            file=store.locate(name),
            kind="bad-line",
            fix="Check that it is the right file. It was not changed.",
        )
    first = int(found.starts[min(bad | marked)])
    saved = journal.saved(name, first, f"{name}.repair/bad-lines", ".jsonl")
    sizes = np.diff(found.starts)
    why = {i: "a byte order mark" if i in marked else "not a JSON object" for i in sorted(bad | marked)}
    lengths = {i: len(jsonl.MARK) if i in marked else int(sizes[i]) for i in why}
    journal.note([Taken(name, int(found.starts[i]), lengths[i], why[i], [], saved) for i in why])
    splits = jsonl_splits.read_splits(store, name)
    if active() is not None:
        return
    with store.write(name) as kept, store.write(saved) as out:  # the inner one is published first
        for low in range(0, len(sizes), 4096):
            begins = found.starts[low : min(low + 4096, len(sizes))]
            ends = found.starts[low + 1 : low + 1 + len(begins)]
            for i, line in enumerate(read_records(store, name, begins, ends)):
                if low + i in marked:
                    out.write(jsonl.MARK)
                (out if low + i in bad else kept).write(line.removeprefix(jsonl.MARK) if low + i in marked else line)
        unmarked = found.starts - len(jsonl.MARK) * np.searchsorted(sorted(marked), np.arange(len(found.starts)))
        if splits is not None and splits.fits(unmarked):  # otherwise a killed run already updated them
            jsonl_splits.write_splits(store, name, splits.without(sorted(bad), unmarked))


@dataclass(slots=True)
class Dropped:
    """Removed bytes: their file, offset, size, reason and keys, and where they are saved."""

    file: str
    offset: int
    bytes: int
    why: str
    keys: list[str]
    saved: str


class Taken(msgspec.Struct):
    """Like `Dropped`, with paths relative to the store."""

    file: str
    offset: int
    bytes: int
    why: str
    keys: list[str]
    saved: str


class _State(msgspec.Struct):
    """Content of ``journal.json``."""

    report: str
    excluded: list[tuple[str, str]]
    taken: list[Taken] = []


class RepairJournal:
    """The journal of a repair, written before each removal, so that the next repair finishes a killed one.

    Args:
        folder: folder of the journal and of the removed bytes.
        excluded: samples of the index that the split file excludes.

    Attributes:
        report: path of the report.
        excluded: the given samples and those of the killed run, whose index may no longer exist.

    Raises:
        DataError: the journal of a killed repair cannot be read.
    """

    def __init__(self, store: Store, folder: str, excluded: set[tuple[str, str]]) -> None:
        self._store, self._path = store, f"{folder}/journal.json"
        self._state = self._read() or _State(unused_path(store, f"{folder}/report", ".json"), [])
        self.report = self._state.report
        self.excluded = excluded | set(self._state.excluded)
        self._state.excluded = sorted(self.excluded)

    def _read(self) -> _State | None:
        if not self._store.exists(self._path):
            return None
        try:
            return decode_as(self._store.read(self._path), _State)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise DataError(
                "invalid repair journal: expected the record of an interrupted repair",
                file=self._store.locate(self._path),
                kind="bad-job",
                fix="Inspect the removed bytes saved in the same folder, then delete this file.",
            ) from None

    def saved(self, file: str, offset: int, stem: str, suffix: str = "") -> str:
        """Return the path for removed bytes: the one that a killed run used, or a new one."""
        known = [taken.saved for taken in self._state.taken if (taken.file, taken.offset) == (file, offset)]
        return known[0] if known else unused_path(self._store, stem, suffix)

    def note(self, taken: Sequence[Taken] = ()) -> None:
        """Record damage and the bytes that are about to be removed. In a dry run the journal is not written."""
        new = {(one.file, one.offset) for one in taken}
        kept = [one for one in self._state.taken if (one.file, one.offset) not in new]
        self._state.taken = [*kept, *taken]
        if (dry := active()) is None:
            self._store.write_bytes(self._path, msgspec.json.encode(self._state))
            return
        for one in taken:
            for path in (one.file, one.saved):
                if self._store.locate(path) not in {planned.path for planned in dry.outputs}:
                    dry.writes(self._store, path)

    def dropped(self) -> list[Dropped]:
        """Return everything that was removed."""
        where = self._store.locate
        return [Dropped(where(t.file), t.offset, t.bytes, t.why, t.keys, where(t.saved)) for t in self._state.taken]

    def finish(self) -> None:
        """Delete the journal. Call this after the report is written."""
        self._store.delete(self._path)


def unused_path(store: Store, stem: str, suffix: str) -> str:
    """Return an unused path, so that bytes saved by earlier repairs are kept."""
    path, number = f"{stem}{suffix}", 1
    while store.exists(path):
        number += 1
        path = f"{stem}-{number}{suffix}"
    return path
