"""Adding media metadata to what is there already: a prepared dataset, or a plain folder of files.

A prepared dataset keeps its index and gets two tables more; its parts are found through the index, the shards are not
scanned again. A plain folder gets an ``.nv-meta/index.sqlite`` that holds nothing else, with paths relative to the
folder as keys. The new database appears when it is whole; a killed run leaves the old one, and the next run takes up
its work.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.energon import write as energon_write
from feedmill.formats.energon.database import INDEX, open_index
from feedmill.formats.energon.media import read_tables, write_tables
from feedmill.formats.energon.prepared import INFO, INFO_YAML, read_info
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.tar.scan import scan_shard
from feedmill.indexing.media import Filters, Gathered, Piece, collect, pieces_of_folder, pieces_of_shard
from feedmill.indexing.media_journal import MEDIA, MediaNotes
from feedmill.indexing.scanning import Scanned
from feedmill.jobs.units import Units
from feedmill.jobs.work import alone
from feedmill.kernels.files.tar import ShardScan
from feedmill.samples.media import MediaFilter
from feedmill.storage import Store, is_local_folder, open_store
from feedmill.storage.cache import cached_copy
from feedmill.storage.local import storage_error

WEBDATASET, FOLDER = "webdataset", "folder"


@dataclass(slots=True)
class MediaReport:
    """What `prepare_media` did.

    Attributes:
        path: the dataset or folder.
        kind: ``webdataset`` or ``folder``.
        files: files that were looked at.
        media: files whose metadata the index now holds, with those of earlier runs.
        images, av: files of this run, by kind.
        gone: files of earlier runs that are no longer there; their metadata was dropped.
        broken: media files that could not be read.
        warnings: what is odd but harmless.
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

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for ``--json``."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "broken"}
        return {**plain, "seconds": round(self.seconds, 3), "broken": [error.as_dict() for error in self.broken]}


def prepare_media(url: str, media: MediaFilter, *, workers: int | None = None, progress: bool = True) -> MediaReport:
    """Collect media metadata of a prepared dataset or of a plain folder, into its index.

    Run again it looks at all files again; metadata of other choices stays. What earlier runs chose in a plain folder
    is brought up to date too.

    Args:
        url: a folder, local or remote.
        media: which files are media.
        workers: threads.

    Raises:
        ConfigError: this is no place for media metadata.
        NotFound: the folder is missing, or holds no file that is media by this choice.
        DataError: the index is damaged.
        MissingExtra: a library for a kind of media is not installed.
        StorageError: reading or writing failed.
    """
    began = time.perf_counter()
    if url.endswith((".jsonl", ".yaml", ".yml", ".tar")) and not is_local_folder(url):
        raise ConfigError("media metadata belongs to a folder, this is a file", file=url, fix="Give its folder.")
    store = open_store(url)
    prepared = store.exists(INFO) or store.exists(INFO_YAML)
    report = MediaReport(url, WEBDATASET if prepared else FOLDER)
    with alone(store) as place:
        notes = MediaNotes(Units(place, MEDIA))
        try:
            work = _add_to_index if prepared else _index_folder
            work(store, media, notes, report, workers, progress)
        finally:
            notes.units.close()
        notes.units.clear()
    if not report.images + report.av and not report.broken:
        report.warnings.append("no file is a media file by this choice")
    report.seconds = time.perf_counter() - began
    return report


def _add_to_index(
    store: Store, media: MediaFilter, notes: MediaNotes, report: MediaReport, workers: int | None, progress: bool
) -> None:
    if not store.exists(INDEX):
        raise ConfigError(
            "the index is that of an old release, without a database",
            file=store.url,
            kind="old-index",
            fix=f"Run 'feedmill prepare --tar-index-only {store.url}' first.",
        )
    present = read_tables(store)
    pieces = [piece for found in indexed_shards(store) for piece in pieces_of_shard(found, (media,))]
    out = _collected(store, pieces, notes, report, workers, progress)
    out.filters = [media]
    lost = [error.record for error in out.broken if error.record is not None]
    there = {row[0] for row in present.rows}
    report.media = len(there - set(lost) | {row[0] for row in out.rows})
    if media.row in present.filters and there.isdisjoint(lost) and set(out.rows) <= set(present.rows):
        return  # the index has all of it: it stays as it is, with the time at which it was chosen first
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
    store: Store, media: MediaFilter, notes: MediaNotes, report: MediaReport, workers: int | None, progress: bool
) -> None:
    present = read_tables(store)
    filters: Filters = tuple(dict.fromkeys([*(MediaFilter.of_row(*row) for row in present.filters), media]))
    entries = list(store.files())
    pieces = list(pieces_of_folder(entries, filters))
    if not any(media.may_hold(entry.path) for entry in entries):
        tars = sum(entry.path.endswith(".tar") for entry in entries)
        raise NotFound(
            f"none of {len(entries)} files is a media file by this choice" if entries else "the folder is empty",
            file=store.url,
            kind="no-media",
            fix=f"The media in its {tars} tar files is indexed by 'feedmill prepare --media-metadata {store.url}'."
            if tars
            else "Choose them by --media-by-glob or --media-by-header."
            if entries
            else "Check the path.",
        )
    out = _collected(store, pieces, notes, report, workers, progress)
    out.filters, out.present = list(filters), present
    there = {entry.path for entry in entries}
    report.gone = sum(row[0] not in there for row in present.rows)
    report.media = len(out.rows)
    with store.build(INDEX) as path:
        sqlite3.connect(path).close()
        write_tables(path, sorted(out.rows), out.created)
    energon_write.match_folder(store, INDEX)


def _collected(
    store: Store,
    pieces: list[Piece],
    notes: MediaNotes,
    report: MediaReport,
    workers: int | None,
    progress: bool,
) -> Gathered:
    out = Gathered()
    out.rows, out.broken = collect(store, pieces, notes=notes, workers=workers, progress=progress)
    report.files = sum(len(piece.names) for piece in pieces)
    report.images = sum(row[1] == "image" for row in out.rows)
    report.av = len(out.rows) - report.images
    report.broken = out.broken
    return out


def indexed_shards(store: Store) -> Iterator[Scanned]:
    """Yield the shards of a prepared dataset, as its index knows them; those of old layouts without parts are scanned.

    Raises:
        NotFound: a shard is missing.
        DataError: the index is damaged.
    """
    connection = open_index(cached_copy(store, INDEX))
    try:
        has_parts = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'").fetchone()
        for number, shard in enumerate(read_info(store)):
            entry = _listed(store, shard)
            scan = _known(connection, number) if has_parts else scan_shard(store, shard)
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
            "the index lists this shard, but it is gone",
            file=store.locate(shard),
            kind="missing-shard",
            fix="Restore it, or run 'feedmill prepare' again.",
        ) from None


def _known(connection: sqlite3.Connection, number: int) -> ShardScan:
    """Keys and parts of one shard, by their number in it; offsets of samples are not looked up."""
    keys = connection.execute(
        "SELECT sample_key FROM samples WHERE tar_file_id = ? ORDER BY sample_index", (number,)
    ).fetchall()
    rows = connection.execute(
        "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts"
        " WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset",
        (number,),
    ).fetchall()
    sample, parts, data, sizes = zip(*rows, strict=True) if rows else ((), (), (), ())
    return ShardScan(
        [key for (key,) in keys],
        np.zeros(len(keys) + 1, np.int64),
        np.asarray(sample, np.int32),
        list(parts),
        np.asarray(data, np.int64),
        np.asarray(sizes, np.int64),
    )
