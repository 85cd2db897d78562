"""Check a dataset against its index and for internal consistency: the work of `feedmill check`.

Every shard is scanned header by header, its checksums are verified, and it is hashed and compared with the offset
file, the database and the sidecar. Findings are the same error objects that other verbs raise; the check continues
after each finding.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from feedmill.errors import DataError, FeedmillError, MissingExtra, TrustError
from feedmill.formats.converted import Converted, proof_place, read_converted
from feedmill.formats.energon import ENERGON, all_offsets, database, sidecar
from feedmill.formats.energon import prepared as energon
from feedmill.formats.energon.sidecar import read_splits
from feedmill.formats.format import TOKENS, Detected
from feedmill.formats.jsonl import index as jsonl
from feedmill.formats.jsonl.dataset import open_jsonl
from feedmill.formats.offsets import Int64s, load_offsets
from feedmill.formats.rollouts.commits import Rollouts, is_rollouts
from feedmill.formats.sniff import sniff
from feedmill.formats.tables import PARQUET
from feedmill.formats.tar import TAR, WEBDATASET, WIDS
from feedmill.formats.tar.dataset import TarDataset
from feedmill.formats.tar.strays import pieces_of, regroup, samples_of
from feedmill.formats.tokens import MEGATRON, megatron
from feedmill.formats.tokens.manifest import BOUNDS, manifest_path, read_manifest, wrong_files
from feedmill.formats.tokens.manifest import SUFFIX as MANIFEST
from feedmill.indexing.options import Check
from feedmill.indexing.prepare_tars import FINISH, find_shards, unfinished_shards
from feedmill.indexing.report import CheckReport
from feedmill.indexing.scanning import FOUND, Scanned, checked, remarks_of, repeated_parts, spoiled, trailing_data
from feedmill.jobs.options import verb
from feedmill.jobs.progress import Progress
from feedmill.planning.rollouts import Steps, runs_of
from feedmill.samples.avdecoder import AVDecoder
from feedmill.samples.description import declared_map, unreadable
from feedmill.samples.open import open as open_dataset
from feedmill.samples.types import named_fields
from feedmill.storage import Entry, Store
from feedmill.storage.cache.copies import cached_copy

MAX_FINDINGS = 1000
AGAIN = "Run 'feedmill prepare' again to index the data as it is now."


@verb(Check)
def check(options: Check) -> CheckReport:
    """Return the findings and notes.

    Raises:
        NotFound: there is no dataset at `url`.
    """
    url, workers, progress = os.fspath(options.url), options.workers, options.progress
    found = sniff(url)
    report = CheckReport(url)
    how = found.format.check
    if how == "lines":
        _check_jsonl(found.store, found.name, report)
    elif how == "manifest":
        from feedmill.indexing.manifests import check_manifest

        check_manifest(found.store, found.name, report, workers=workers, progress=progress)
    elif how == "open" and not _has_tars(found):
        _check_source(url, report)
        if found.format is PARQUET and not found.name and not found.names and is_rollouts(found.store):
            _check_rollouts(url, report)
    else:
        store, entries = _entries(found, url, report)
        index = PreparedIndex(found.store, report) if found.format is ENERGON else None
        _check_shards(store, entries, index, report, workers, progress)
        if (how == "open" or found.format is WIDS) and not report.findings:
            _check_source(url, report)
        if index is not None:
            _check_description(url, index, report, options)
    if found.format.family in TOKENS or how == "manifest" or found.format is WEBDATASET:  # a damaged manifest
        _check_token_files(found, report, progress)
    if found.format.family not in TOKENS and (how == "open" or found.format in (WEBDATASET, TAR)):
        _check_converted(found, report)  # others have an index or a manifest
    if options.read_samples and not report.findings:
        _check_samples(url, report, options)
    del report.findings[MAX_FINDINGS:]
    return report


def _has_tars(found: Detected) -> bool:
    return found.format.repair == "tars" and next(iter(found.store.files(suffixes=(".tar",))), None) is not None


def _entries(found: Detected, url: str, report: CheckReport) -> tuple[Store, list[Entry]]:
    """Return the folder's store and the shards to scan."""
    try:
        if found.format is WIDS:
            dataset = open_dataset(url, raw=True)
            assert isinstance(dataset, TarDataset)
            found = Detected(TAR, dataset.store, names=tuple(dataset.table.shards))
        if found.format is TAR or found.names:
            return found.store, [found.store.stat(name) for name in found.names or (found.name,)]
    except FeedmillError as error:
        report.findings.append(error)
        return found.store, []
    report.notes += found.remarks
    return found.store, _shards(found.store, report)


def _check_source(url: str, report: CheckReport) -> None:
    """Check token files, or a dataset of another tool, by opening it and calling its format's `verify`."""
    try:
        dataset = open_dataset(url)
    except MissingExtra:
        raise
    except FeedmillError as error:
        report.findings.append(error)
        return
    facts = dataset.describe()
    report.samples, report.shards, report.bytes = facts["samples"] or 0, facts["shards"], facts["bytes"]
    report.notes += [remark for remark in facts.get("remarks") or [] if remark not in report.notes]
    count = getattr(dataset, "loss_mask", None)  # of token data
    if count is not None and (mask := count()) is not None:
        shown = f"{mask['tokens_in_loss']:,} of {facts['tokens']:,} tokens"
        report.notes.append(f"loss masks of {mask['files']} of {facts['shards']} files: {shown} in the loss")
    if isinstance(dataset, TarDataset):
        return  # `_check_shards` scans its tars
    report.findings += dataset.verify()


def _check_rollouts(url: str, report: CheckReport) -> None:
    """Check the commits of rollouts, and draw the steps of all runs again."""
    rollouts = Rollouts(url)
    findings = list(rollouts.verify())
    seen = {str(error) for error in report.findings}  # a page that is damaged is found twice
    report.findings += [error for error in findings if str(error) not in seen]
    if report.findings:
        return  # steps cannot be drawn again from damaged commits
    for run in runs_of(rollouts.store):
        steps = Steps(rollouts, run)
        report.findings += steps.verify()
        report.notes.append(f"run {run!r}: {len(steps.files.listed()):,} steps were drawn")


def _check_converted(found: Detected, report: CheckReport) -> None:
    """Compare the output of a conversion with its proof: a missing shard leaves no gap in most formats."""
    converted = None if found.names else read_converted(found.store, found.name, Converted)
    if converted is None:
        return
    there = found.store.entries(converted.files)
    missing = [path for path, entry in zip(converted.files, there, strict=True) if entry is None]
    report.findings += [
        DataError(
            "the conversion has written this file, but it is missing",
            file=found.store.locate(path),
            kind="missing-shard",
            fix="Restore it, or run the conversion again with --overwrite.",
        )
        for path in missing
    ]
    counted = {error.kind for error in report.findings} <= {"duplicate-key"}  # as of a shard that is there twice
    if counted and report.samples != converted.samples:
        report.findings.append(
            DataError(
                f"expected {converted.samples:,} samples, as the conversion has written, found {report.samples:,}",
                file=found.store.locate(found.name) if found.name else found.store.url,
                kind="wrong-count",
                fix=f"Restore the files, or run the conversion again. If you changed the dataset on purpose, delete"
                f" {found.store.locate(proof_place(found.name))}.",
            )
        )


def _check_token_files(found: Detected, report: CheckReport, progress: bool | None) -> None:
    """Compare token files with the sizes and hashes in their manifests; that of a folder also lists missing files."""
    store = found.store
    if found.name:
        one = megatron.strip(found.name) + megatron.IDX if found.format is MEGATRON else found.name
        described = [one] if store.exists(manifest_path(one)) else []
    else:
        described = [entry.path.removesuffix(MANIFEST) for entry in store.files(suffixes=(MANIFEST,))]
    manifests = {}
    for path in described:
        manifest = read_manifest(store, path)
        if manifest is None:
            report.notes.append(f"{store.locate(manifest_path(path))}: this release cannot read the manifest")
        elif manifest.sizes and path.rpartition("/")[2] not in manifest.sizes and store.exists(path):
            report.notes.append(f"{store.locate(path)}: its manifest lists other file names; nothing was compared")
        else:
            manifests[path] = manifest
    hashed = {name for manifest in manifests.values() for name in manifest.hashes}
    for path, manifest in manifests.items():
        if any(name not in hashed and not name.endswith(BOUNDS) for name in manifest.sizes):
            report.notes.append(f"{store.locate(path)}: not all hashes are in its manifest; sizes were compared")
    wrong: dict[str | None, DataError] = {}  # a file may be in the manifest of its folder too
    total = sum(sum(manifest.sizes.values()) for manifest in manifests.values())
    with Progress("checking", total, "B", enabled=progress) as bar:
        for path, manifest in manifests.items():
            wrong |= {error.file: error for error in wrong_files(store, path, manifest, bar.advance)}
    report.findings += wrong.values()


def _shards(store: Store, report: CheckReport) -> list[Entry]:
    try:
        return find_shards(store)
    except FeedmillError as error:
        report.findings.append(error)
        return []


def _check_shards(
    store: Store,
    entries: list[Entry],
    index: PreparedIndex | None,
    report: CheckReport,
    workers: int | None,
    progress: bool | None,
) -> None:
    seen: dict[str, str] = {}
    parts: dict[str, set[str]] = {}
    field_map, out = _declared(store) if index is not None else ({}, set())
    verb, left = "", set[str]()
    with suppress(FeedmillError):  # the next command that writes reports a corrupt journal
        verb, left = unfinished_shards(store)
    with Progress("checking", sum(entry.size for entry in entries), "B", enabled=progress) as bar:
        for found in checked(store, entries, workers, bar.advance):
            if index is not None and index.counts and found.shard not in index.counts:
                add = "Run 'feedmill prepare' to add it."
                if found.shard in left:
                    add = f"An interrupted '{verb}' wrote it. {FINISH}"
                report.notes.append(f"{store.locate(found.shard)}: not in the index. {add}")
                continue
            report.shards += 1
            report.bytes += found.record.size
            report.samples += len(found.scan.keys)
            if found.scan.problem is not None:
                report.findings.append(found.scan.problem)
            else:
                report.notes += remarks_of(store, found, **FOUND)
            if found.scan.trailing:
                report.findings.append(trailing_data(store, found))
            report.findings += spoiled(store, found)
            parts[found.shard] = set(found.scan.parts)
            report.findings += _duplicates(store, found, seen, parts)
            report.findings += repeated_parts(store, found)
            if index is not None and index.counts and found.scan.problem is None:
                report.findings += index.compare(found)
                problem = unreadable(field_map, found.scan, store.locate(found.shard), out)
                report.findings += [problem] if problem is not None else []
    if index is not None:
        present = {entry.path for entry in entries}
        for shard in index.counts:
            if shard not in present:
                report.findings.append(
                    DataError(
                        "the index lists this shard, but the file is missing",
                        file=store.locate(shard),
                        kind="missing-shard",
                        fix="Restore it, or run 'feedmill prepare' to index the folder without it.",
                    )
                )


def _declared(store: Store) -> tuple[dict[str, str], set[str]]:
    """Return the field map and the keys of samples that the split file excludes.

    Both are empty if a file cannot be read; `_check_description` reports that.
    """
    with suppress(FeedmillError):
        splits = read_splits(store)
        return declared_map(store), {key for _, key in splits.samples_out} if splits else set()
    return {}, set()


def _duplicates(store: Store, found: Scanned, seen: dict[str, str], parts: dict[str, set[str]]) -> Iterator[DataError]:
    """Yield an error for each key that occurred before.

    Args:
        seen: key -> shard, which is filled.
        parts: shard -> names of its parts.
    """
    scan, _ = samples_of(found.scan)
    if len(once := dict.fromkeys(scan.keys, found.shard)) == len(scan.keys) and seen.keys().isdisjoint(once):
        seen.update(once)
        return
    again = {number for group in pieces_of(scan) for number in group[1:]}  # `spoiled` names them
    for number, key in enumerate(scan.keys):
        if number in again:
            continue
        here = len(seen)
        other = seen.setdefault(key, found.shard)
        if len(seen) == here:
            yield DataError(
                f"the key also occurs in {other!r}" if other != found.shard else "the key occurs twice in this shard",
                file=store.locate(found.shard),
                offset=int(scan.starts[number]),
                record=key,
                kind="duplicate-key",
                fix="Keys must be unique in a dataset. Rename the members of one of the two samples."
                if other == found.shard or parts[other] & parts[found.shard]
                else f"The two shards have different parts. {regroup(store.url)}",
            )


def _check_description(url: str, index: PreparedIndex, report: CheckReport, options: Check) -> None:
    split_config = options.split_config
    try:
        splits = read_splits(index.store, split_config)
        if splits:
            info = energon.read_info(index.store)
            named = sorted({*splits.shards_out, *(shard for shard, _ in splits.samples_out)} - set(info))
            where = index.store.locate(f"{database.META}/{split_config or 'split.yaml'}")
            report.notes += [f"{where}: 'exclude' names {entry!r}, which is not in the index" for entry in named]
        for split in splits.parts if splits else {}:
            open_dataset(url, split=split, split_config=split_config, raw=True)
        open_dataset(url, **options.description())
    except TrustError as error:
        report.notes.append(str(error))
    except FeedmillError as error:
        report.findings.append(error)


def _check_samples(url: str, report: CheckReport, options: Check) -> None:
    try:
        dataset = open_dataset(url, **options.description())
    except FeedmillError as error:
        report.findings.append(error)
        return
    with Progress("reading samples", len(dataset), enabled=options.progress) as bar:
        for index in range(len(dataset)):
            try:
                sample = dataset.read([index])[0]
                for value in (named_fields(sample) or {}).values():
                    if isinstance(value, AVDecoder):
                        value.check()
            except FeedmillError as error:
                report.findings.append(error)
                if len(report.findings) >= MAX_FINDINGS:
                    return
            bar.advance()


def _check_jsonl(store: Store, name: str, report: CheckReport) -> None:
    entry = store.stat(name)
    report.shards, report.bytes = 1, entry.size
    try:
        starts = jsonl.index_file(store, name)
    except FeedmillError as error:
        report.findings.append(error)
        return
    report.samples = len(starts) - 1
    report.findings += jsonl.bad_records(store, name, starts)
    idx = jsonl.idx_name(name)
    if not store.exists(idx):
        report.notes.append(f"{store.locate(name)}: not indexed. Run 'feedmill prepare' to make it open faster.")
        report.notes += jsonl.open_lines(store, name, report.path).facts.remarks
        return
    try:
        known = load_offsets(store, idx, fix=AGAIN)
    except FeedmillError as error:
        report.findings.append(error)
        return
    if not np.array_equal(known, starts):
        where = store.locate(idx)
        report.findings.append(
            DataError("the index does not match the file", file=where, kind="stale-index", fix=AGAIN)
        )
        return
    try:
        open_jsonl(store, name, report.path)  # validates the splits
    except FeedmillError as error:
        report.findings.append(error)


class PreparedIndex:
    """Index of a prepared folder, to compare with its shards."""

    def __init__(self, store: Store, report: CheckReport) -> None:
        self.store = store
        self.counts: dict[str, int] = {}
        self.connection: sqlite3.Connection | None = None
        self.records = sidecar.read(store)
        try:
            self.counts = energon.read_info(store)
            if store.exists(database.INDEX):
                self.connection = database.open_index(cached_copy(store, database.INDEX))
                self._check_database(report)
            self._check_all_offsets(report)
        except FeedmillError as error:
            report.findings.append(error)
        self.numbers = {shard: number for number, shard in enumerate(self.counts)}
        self.has_parts = self.connection is not None and bool(
            self.connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'").fetchone()
        )

    def _check_all_offsets(self, report: CheckReport) -> None:
        where, fault = (
            self.store.locate(all_offsets.PATH),
            all_offsets.fault_of(self.store, sidecar.read_uuid(self.store)),
        )
        if fault == "damaged":
            what = "the file with the offsets of all shards is damaged"
            report.findings.append(DataError(what, file=where, kind="bad-index", fix=AGAIN))
        elif fault == "stale":
            report.notes.append(f"{where}: it belongs to an older index, so loaders ignore it. {AGAIN}")

    def _check_database(self, report: CheckReport) -> None:
        assert self.connection is not None
        try:
            status = self.connection.execute("PRAGMA quick_check").fetchone()[0]
        except sqlite3.DatabaseError as error:
            status = str(error)
        if status != "ok":
            where = self.store.locate(database.INDEX)
            report.findings.append(
                DataError(f"the database is damaged ({status})", file=where, kind="bad-index", fix=AGAIN)
            )
            self.connection.close()
            self.connection = None  # its rows are unreliable, so they are not compared

    def compare(self, found: Scanned) -> Iterator[DataError]:
        """Yield the differences between the index and a shard."""
        record = self.records.get(found.shard)
        if record is not None and record.size != found.record.size:
            yield self._stale(found.shard, f"it had {record.size} bytes when indexed, now {found.record.size}")
        elif record is not None and record.digest not in (None, found.record.digest):
            yield self._stale(
                found.shard, "its content changed since it was indexed (the hash differs)", "hash-mismatch"
            )
        yield from self._compare_offsets(found)
        if self.connection is not None:
            try:
                yield from self._compare_rows(found)
            except sqlite3.DatabaseError as error:  # e.g. a text that is not UTF-8, which quick_check accepts
                yield self._stale(found.shard, f"its rows in the database cannot be read ({error})", "bad-index")

    def _compare_offsets(self, found: Scanned) -> Iterator[DataError]:
        path = energon.idx_name(found.shard)
        try:
            offsets: Int64s = load_offsets(self.store, path, fix=AGAIN)
        except FeedmillError as error:
            yield DataError(error.what, file=self.store.locate(path), kind="bad-index", fix=AGAIN)
            return
        if len(found.scan.keys) != self.counts[found.shard] or len(offsets) != len(found.scan.starts):
            expected = f"{self.counts[found.shard]} in .info.json and {len(offsets) - 1} in {path}"
            yield self._stale(found.shard, f"it has {len(found.scan.keys)} samples, but the index has {expected}")
        elif not np.array_equal(offsets[1:], found.scan.starts[1:]):  # readers may assume 0 for the first
            wrong = int(np.flatnonzero(offsets[1:] != found.scan.starts[1:])[0]) + 1
            yield self._stale(
                found.shard, f"entry {wrong} of {path} is {offsets[wrong]}, in the shard {found.scan.starts[wrong]}"
            )

    def _compare_rows(self, found: Scanned) -> Iterator[DataError]:
        assert self.connection is not None
        number = self.numbers[found.shard]
        sql = "SELECT sample_key, byte_offset FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
        rows = self.connection.execute(sql, (number,)).fetchall()
        if rows != list(zip(found.scan.keys, found.scan.starts[:-1].tolist(), strict=True)):
            yield self._stale(found.shard, f"its {len(rows)} rows in the database do not match its samples")
        elif self.has_parts:
            sql = (
                "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts"
                " WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset"
            )
            scan = found.scan
            parts = list(zip(scan.sample.tolist(), scan.parts, scan.data.tolist(), scan.sizes.tolist(), strict=True))
            if self.connection.execute(sql, (number,)).fetchall() != parts:
                yield self._stale(found.shard, "its parts in the database do not match those in the shard")

    def _stale(self, shard: str, what: str, kind: str = "stale-index") -> DataError:
        return DataError(what, file=self.store.locate(shard), kind=kind, fix=AGAIN)
