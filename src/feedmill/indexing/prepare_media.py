"""Add media metadata to a prepared dataset or a plain folder of files.

A prepared dataset keeps its index, which gets two more tables. Parts are located through the index, without scanning
the shards again. A plain folder gets an ``.nv-meta/index.sqlite`` with only these tables; its keys are paths relative
to the folder. The new database is published when it is complete. A killed run leaves the old database, and the next
run resumes its work.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.energon import write as energon_write
from feedmill.formats.energon.database import INDEX, open_index
from feedmill.formats.energon.index import read_scan
from feedmill.formats.energon.media import MediaTables, Row, read_tables, write_tables
from feedmill.formats.energon.prepared import INFO, INFO_YAML, read_info
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.sample import split_name
from feedmill.formats.tar.scan import scan_shard
from feedmill.indexing.options import PrepareMedia
from feedmill.indexing.scanning import Scanned
from feedmill.jobs.dry_run import JobReport, active
from feedmill.jobs.engine import part_name
from feedmill.jobs.journal import Units
from feedmill.jobs.memory import uncollected
from feedmill.jobs.options import verb
from feedmill.jobs.work import alone
from feedmill.samples.media import MediaFilter, kind_of_name
from feedmill.samples.mediacollection import (
    MEDIA,
    Filters,
    MediaNotes,
    ProbeUnit,
    collect,
    pieces_of_folder,
    pieces_of_shard,
    remarks,
)
from feedmill.storage import Store, is_local_folder, open_store
from feedmill.storage.base import storage_error
from feedmill.storage.cache.copies import cached_copy


@dataclass(slots=True)
class Gathered:
    """Collected media metadata: filters, rows, unreadable media files, and the tables of the present index."""

    filters: list[MediaFilter] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    broken: list[DataError] = field(default_factory=list)
    present: MediaTables = field(default_factory=MediaTables)

    @property
    def created(self) -> dict[tuple[str, str], str | None]:
        """Return the filters for `write_tables`: filter -> time of its creation, None for new ones."""
        return {one.row: self.present.filters.get(one.row) for one in self.filters}


def gather(
    store: Store,
    scanned: Sequence[Scanned],
    wanted: MediaFilter | None,
    *,
    notes: MediaNotes | None = None,
    workers: int | None = None,
    progress: bool | None = False,
) -> Gathered:
    """Return the media metadata of a new index: for the present index's filters and `wanted`, as Energon defines it.

    Shards that were reused from the present index without reading keep their rows. One with media but without any row
    is read: another program may have added it to the index.
    """
    try:
        out = Gathered(present=read_tables(store))
    except DataError:
        out = Gathered()  # a new index is about to replace the damaged one
    old = [MediaFilter.of_row(*row) for row in out.present.filters]
    out.filters = list(dict.fromkeys([*old, *([wanted] if wanted else [])]))
    known = {split_name(row[0])[0] for row in out.present.rows}
    unread = {
        found.shard
        for found in scanned
        if found.origin == "index"
        and not (known.isdisjoint(found.scan.keys) and any(kind_of_name(f"x.{part}") for part in set(found.scan.parts)))
    }
    keys = {key for found in scanned if found.shard in unread for key in found.scan.keys} if out.present.rows else set()
    kept = [row for row in out.present.rows if split_name(row[0])[0] in keys]
    pieces: list[ProbeUnit] = []
    for found in scanned:
        filters = tuple(one for one in out.filters if one not in old or found.shard not in unread)
        if filters:
            pieces += pieces_of_shard(found.shard, found.record, found.scan, filters)
    rows, out.broken = collect(store, pieces, notes=notes, workers=workers, progress=progress)
    out.rows = list({row[0]: row for row in (*kept, *rows)}.values())  # the last of two parts with one name wins
    return out


WEBDATASET, FOLDER = "webdataset", "folder"


@dataclass(slots=True)
class MediaReport(JobReport):
    """The result of `prepare_media`.

    Attributes:
        path: the dataset or folder.
        kind: ``webdataset`` or ``folder``.
        files: number of files examined.
        media: number of files with metadata in the index, including those of earlier runs.
        images, av: number of images, and of audio and video files, of this run.
        gone: number of files of earlier runs that no longer exist; their metadata was dropped.
        broken: media files that could not be read.
        warnings: unusual but harmless data.
        seconds: wall time.
    """

    path: str
    kind: str
    files: int = 0
    media: int = 0
    images: int = 0
    av: int = 0
    gone: int = 0
    broken: list[DataError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0


@verb(PrepareMedia)
def prepare_media(options: PrepareMedia) -> MediaReport:
    """Each run examines all files again. Metadata collected with other filters is kept; in a plain folder, it is
    updated too. A dry run reads the media.

    Raises:
        ConfigError: `url` is a file, or the index has no database.
        NotFound: the folder is missing, or contains no file that the filter may select.
        DataError: the index is damaged.
        MissingExtra: a library for a kind of media is not installed.
        StorageError: reading or writing failed.
    """
    url = os.fspath(options.url)
    began = time.perf_counter()
    if url.endswith((".jsonl", ".yaml", ".yml", ".tar")) and not is_local_folder(url):
        raise ConfigError("expected a folder for media metadata, found a file", file=url, fix="Give its folder.")
    store = open_store(url)
    prepared = store.exists(INFO) or store.exists(INFO_YAML)
    report = MediaReport(url, WEBDATASET if prepared else FOLDER)
    with alone(store) as place:
        notes = MediaNotes(Units(place, MEDIA, part_name()))
        try:
            work = _add_to_index if prepared else _index_folder
            work(store, options.media, notes, report, options.workers, options.progress)
        finally:
            notes.units.close()
        notes.units.clear()
    if not report.images + report.av and not report.broken:
        report.warnings.append("no media files match the filter")
    report.seconds = time.perf_counter() - began
    return report


def _add_to_index(
    store: Store, media: MediaFilter, notes: MediaNotes, report: MediaReport, workers: int | None, progress: bool | None
) -> None:
    if not store.exists(INDEX):
        raise ConfigError(
            "the index has no database: it was written by an old release",
            file=store.url,
            kind="stale-index",
            fix=f"Run 'feedmill prepare --tar-index-only {store.url}' first.",
        )
    with uncollected():
        present = read_tables(store)
        pieces = [
            piece
            for found in indexed_shards(store)
            for piece in pieces_of_shard(found.shard, found.record, found.scan, (media,))
        ]
    out = _collected(store, pieces, notes, report, workers, progress)
    out.filters = [media]
    lost = [error.record for error in out.broken if error.record is not None]
    there = {row[0] for row in present.rows}
    report.media = len(there - set(lost) | {row[0] for row in out.rows})
    if media.row in present.filters and there.isdisjoint(lost) and set(out.rows) <= set(present.rows):
        return  # nothing changed: keep the index and the filter's original time of creation
    if (dry := active()) is not None:
        dry.writes(store, INDEX)
        return
    index = cached_copy(store, INDEX)
    with store.build(INDEX) as path:
        try:
            shutil.copyfile(index, path)
            if store.is_local:
                path.chmod(index.stat().st_mode & 0o7777)
        except OSError as error:
            raise storage_error(error, store.locate(INDEX)) from None
        write_tables(path, out.rows, out.created, without=lost)


def _index_folder(
    store: Store, media: MediaFilter, notes: MediaNotes, report: MediaReport, workers: int | None, progress: bool | None
) -> None:
    present = read_tables(store)
    filters: Filters = tuple(dict.fromkeys([*(MediaFilter.of_row(*row) for row in present.filters), media]))
    entries = list(store.files())
    pieces = list(pieces_of_folder(entries, filters))
    if not any(media.may_hold(entry.path) for entry in entries):
        tars = sum(entry.path.endswith(".tar") for entry in entries)
        raise NotFound(
            f"no media files: none of {len(entries)} files matches the filter" if entries else "the folder is empty",
            file=store.url,
            kind="bad-media",
            fix=f"To index the media in its {tars} tar files, run 'feedmill prepare --media-metadata {store.url}'."
            if tars
            else "Select files with --media-by-glob or --media-by-header."
            if entries
            else "Check the path.",
        )
    out = _collected(store, pieces, notes, report, workers, progress)
    out.filters, out.present = list(filters), present
    there = {entry.path for entry in entries}
    report.gone = sum(row[0] not in there for row in present.rows)
    report.media = len(out.rows)
    if (dry := active()) is not None:
        dry.writes(store, INDEX)
        return
    with store.build(INDEX) as path:
        sqlite3.connect(path).close()
        write_tables(path, sorted(out.rows), out.created)
    energon_write.match_folder(store, INDEX)


def _collected(
    store: Store,
    pieces: list[ProbeUnit],
    notes: MediaNotes,
    report: MediaReport,
    workers: int | None,
    progress: bool | None,
) -> Gathered:
    out = Gathered()
    out.rows, out.broken = collect(store, pieces, notes=notes, workers=workers, progress=progress)
    report.files = sum(len(piece.names) for piece in pieces)
    report.images = sum(row[1] == "image" for row in out.rows)
    report.av = len(out.rows) - report.images
    report.broken = out.broken
    report.warnings += remarks(out.rows)
    if (dry := active()) is not None:
        dry.reads(int(size) for piece in pieces for size in piece.sizes)
        dry.counts |= {"images": report.images, "audio, video": report.av}
        dry.skipped |= {"media files that cannot be read": len(out.broken)} if out.broken else {}
        dry.warnings += [f"broken: {error}" for error in out.broken]
    return out


def indexed_shards(store: Store) -> Iterator[Scanned]:
    """Yield the shards of a prepared dataset from its index. Old indices without parts cause a scan of each shard.

    Raises:
        NotFound: a shard is missing.
        DataError: the index is damaged.
    """
    connection = open_index(cached_copy(store, INDEX))
    try:
        has_parts = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'").fetchone()
        for number, shard in enumerate(read_info(store)):
            entry = _listed(store, shard)
            scan = read_scan(connection, number) if has_parts else scan_shard(store, shard)
            assert scan is not None  # nothing is compared
            yield Scanned(shard, ShardRecord(entry.size, entry.version, len(scan.keys), None), scan, "index")
    except sqlite3.DatabaseError as error:
        raise DataError(
            f"the index cannot be read ({error})",
            file=store.locate(INDEX),
            kind="bad-index",
            fix="Run 'feedmill prepare' again.",
        ) from None
    finally:
        connection.close()


def _listed(store: Store, shard: str) -> Any:
    try:
        return store.stat(shard)
    except NotFound:
        raise NotFound(
            "the index lists this shard, but the file is missing",
            file=store.locate(shard),
            kind="missing-shard",
            fix="Restore it, or run 'feedmill prepare' again.",
        ) from None
