"""Media metadata of a data set's parts, as Energon's index keeps it: sizes of images, durations of audio and video."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from feedmill.errors import DataError, FeedmillError
from feedmill.formats.base import split_name
from feedmill.formats.energon import INDEX, open_index
from feedmill.formats.offsets import read_records
from feedmill.indexing.scanning import Scanned
from feedmill.jobs.cores import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.samples.media import MediaFilter, metadata_json, probe
from feedmill.storage import Store
from feedmill.storage.cache import cached_copy

Row = tuple[str, str, str]
"""entry_key (full member name), metadata_type, metadata_json."""
_AT_ONCE = 256

_TABLES = (
    "CREATE TABLE media_metadata ( entry_key TEXT PRIMARY KEY, metadata_type TEXT NOT NULL,"
    " metadata_json TEXT NOT NULL )",
    "CREATE TABLE media_filters ( filter_id INTEGER PRIMARY KEY AUTOINCREMENT, strategy TEXT NOT NULL, patterns TEXT,"
    " created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP, UNIQUE(strategy, patterns) )",
)


def collect(
    store: Store, scanned: Sequence[Scanned], wanted: MediaFilter, *, workers: int | None = None
) -> tuple[list[Row], list[DataError]]:
    """Metadata of all parts that `wanted` selects, in stored order, and the media files that could not be read.

    Raises:
        MissingExtra: the library for a kind of media is not installed.
    """
    rows: list[Row] = []
    broken: list[DataError] = []
    threads = workers or available_cores()
    for some_rows, some_broken in ordered_map(
        lambda found: _of_shard(store, found, wanted), scanned, workers=threads, in_flight=2 * threads
    ):
        rows += some_rows
        broken += some_broken
    return rows, broken


def _of_shard(store: Store, found: Scanned, wanted: MediaFilter) -> tuple[list[Row], list[DataError]]:
    scan = found.scan
    names = [f"{scan.keys[s]}.{part}" for s, part in zip(scan.sample.tolist(), scan.parts, strict=True)]
    chosen = [i for i, name in enumerate(names) if wanted.may_hold(name)]
    rows: list[Row] = []
    broken: list[DataError] = []
    for low in range(0, len(chosen), _AT_ONCE):
        some = np.asarray(chosen[low : low + _AT_ONCE], np.int64)
        contents = read_records(store, found.shard, scan.data[some], scan.data[some] + scan.sizes[some])
        for i, data in zip(some.tolist(), contents, strict=True):
            kind = wanted.kind(names[i], data)
            if kind is None:
                continue
            try:
                kind, metadata = probe(names[i], data, kind)
            except DataError as error:
                error.file, error.offset = store.locate(found.shard), int(scan.data[i])
                broken.append(error)
                continue
            rows.append((names[i], kind, metadata_json(metadata)))
    return rows, broken


@dataclass(slots=True)
class Gathered:
    """Media metadata for a new index: by which filters, the rows, and the media files that could not be read."""

    filters: list[MediaFilter] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    broken: list[DataError] = field(default_factory=list)


def gather(
    store: Store, scanned: Sequence[Scanned], wanted: MediaFilter | None, *, workers: int | None = None
) -> Gathered:
    """What the new index is to hold: for the union of the present index's filters and `wanted`, as Energon defines it.

    Shards that were taken over unread keep the rows they had.
    """
    out = _present(store)
    old, carried = set(out.filters), out.rows
    out.filters = list(dict.fromkeys([*out.filters, *([wanted] if wanted else [])]))
    unread = {found.shard for found in scanned if found.origin == "index"}
    keys = {key for found in scanned if found.shard in unread for key in found.scan.keys} if carried else set()
    out.rows = [row for row in carried if split_name(row[0])[0] in keys]
    for one in out.filters:
        shards = [found for found in scanned if one not in old or found.shard not in unread]
        rows, broken = collect(store, shards, one, workers=workers)
        out.rows += rows
        out.broken += broken
    out.rows = list({row[0]: row for row in out.rows}.values())  # a file may pass several filters
    return out


def _present(store: Store) -> Gathered:
    """Filters and rows of the present index; none where it has none or cannot be read."""
    none = Gathered()
    if not store.exists(INDEX):
        return none
    try:
        connection = open_index(cached_copy(store, INDEX))
    except FeedmillError:
        return none
    try:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'media_filters'").fetchone():
            return none
        filters = connection.execute("SELECT strategy, patterns FROM media_filters ORDER BY filter_id").fetchall()
        rows = connection.execute("SELECT entry_key, metadata_type, metadata_json FROM media_metadata").fetchall()
    except sqlite3.DatabaseError:
        return none
    finally:
        connection.close()
    return Gathered([MediaFilter(name, tuple(p for p in (text or "").split(",") if p)) for name, text in filters], rows)


def add_tables(path: Path, gathered: Gathered) -> None:
    """Add the two media tables to an index that is being built. Of two parts with one name the last one counts."""
    connection = sqlite3.connect(path)
    try:
        with connection:
            for statement in _TABLES:
                connection.execute(statement)
            connection.executemany("INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)", gathered.rows)
            filters = [one.row for one in gathered.filters]
            connection.executemany("INSERT INTO media_filters (strategy, patterns) VALUES (?, ?)", filters)
    finally:
        connection.close()
