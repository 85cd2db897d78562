"""Media metadata of a data set's parts, as Energon's index keeps it: sizes of images, durations of audio and video."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from feedmill.errors import DataError, FeedmillError
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


def present(store: Store) -> bool:
    """Whether the present index has media metadata."""
    if not store.exists(INDEX):
        return False
    try:
        connection = open_index(cached_copy(store, INDEX))
    except FeedmillError:
        return False
    try:
        return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'media_metadata'").fetchone())
    finally:
        connection.close()


def add_tables(path: Path, rows: Iterable[Row], wanted: MediaFilter) -> None:
    """Add the two media tables to an index that is being built. Of two parts with one name the last one counts."""
    connection = sqlite3.connect(path)
    try:
        with connection:
            for statement in _TABLES:
                connection.execute(statement)
            connection.executemany("INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)", rows)
            connection.execute("INSERT INTO media_filters (strategy, patterns) VALUES (?, ?)", wanted.row)
    finally:
        connection.close()
