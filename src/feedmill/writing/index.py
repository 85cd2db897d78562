"""The index of a prepared dataset that changes: load its present shards, and write ``.nv-meta`` for finished ones.

Writing it is safe for concurrent readers. A new dataset becomes visible with its last file, ``.info.json``. When a
dataset grows, new shards are added to the database first, then to ``.info.json``, then to the splits. When it shrinks,
shards are removed from the splits first.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.energon import all_offsets, database, sidecar
from feedmill.formats.energon import index as energon_index
from feedmill.formats.energon import members as energon_members
from feedmill.formats.energon import prepared as energon
from feedmill.formats.energon import write as energon_write
from feedmill.formats.energon.index import read_scan
from feedmill.formats.energon.media import write_tables
from feedmill.formats.energon.sidecar import ShardRecord
from feedmill.formats.offsets import load_offsets
from feedmill.formats.tar.scan import in_file, scan_shard
from feedmill.kernels.files.tar import ShardScan
from feedmill.samples.media import MediaFilter
from feedmill.samples.mediacollection import collect, pieces_of_shard
from feedmill.storage import Store
from feedmill.storage.cache.copies import cached_copy
from feedmill.writing.shard import Shard


def present_shards(store: Store, *, trust: bool = True, leave_out: Collection[str] = ()) -> list[Shard]:
    """Return the shards of a prepared folder with their samples, from the index or, if it is stale, from the tars.

    Args:
        trust: use the index. Pass False after an interrupted change, when it may be of another state.
        leave_out: shards to skip.

    Raises:
        NotFound: the folder is not prepared, or a shard is missing.
        DataError: a shard cannot be read.
    """
    info = energon.read_info(store)
    records = sidecar.read(store, older=True)  # a killed run may have made the index newer
    index = database.open_index(cached_copy(store, database.INDEX)) if store.exists(database.INDEX) else None
    out = []
    with closing(index) if index is not None else nullcontext():
        for number, shard in enumerate(info):
            if shard in leave_out:
                continue
            entry = store.stat(shard)
            old = records.get(shard)
            unchanged = old is not None and (old.size, old.version) == (entry.size, entry.version)
            scan = _from_index(store, index, number, shard) if trust and (unchanged or not records) else None
            if scan is None:
                scan = scan_shard(store, shard)
                if scan.problem is not None:
                    raise in_file(scan.problem, store.locate(shard))
            digest = old.digest if old is not None and unchanged else None
            out.append(Shard(shard, ShardRecord(entry.size, entry.version, len(scan.keys), digest), scan))
    return out


def _from_index(store: Store, index: sqlite3.Connection | None, number: int, shard: str) -> ShardScan | None:
    if index is None:
        return None
    try:
        return read_scan(index, number, np.asarray(load_offsets(store, energon.idx_name(shard), fix="")))
    except (FeedmillError, sqlite3.DatabaseError):
        return None


def need_prepared(store: Store, url: str) -> None:
    """Raise `NotFound` if the folder is not prepared."""
    if not store.exists(energon.INFO) and not store.exists(energon.INFO_YAML):
        raise NotFound(
            "no prepared dataset here",
            file=url,
            kind="not-prepared",
            fix="Run 'feedmill prepare' on the folder first, or write a new dataset.",
        )


def need_local(store: Store, url: str, verb: str) -> None:
    """Raise `ConfigError` if shards would be changed in place in an object store."""
    if not store.is_local:
        raise ConfigError(
            f"{verb} changes shards in place, which is not supported in an object store: readers could see half-changed"
            " data",
            file=url,
            kind="unsupported",
            fix="Write a new dataset with 'feedmill edit reshard', or work on a local copy.",
        )


_TABLES = (
    "SELECT name, sql FROM old.sqlite_master WHERE name IN ('media_corrections', 'media_metadata', 'media_filters')"
    " AND type = 'table' ORDER BY name"
)


class Media(NamedTuple):
    """Index with media metadata to copy, and a prefix for its member names."""

    database: Path
    prefix: str = ""


def commit(
    store: Store,
    shards: Sequence[Shard],
    splits: Mapping[str, Sequence[str]] | None,
    *,
    exclude: Sequence[str] = (),
    description: Mapping[str, Any] | None = None,
    removed: Collection[str] = (),
    media: Media | None = None,
    probed: Sequence[Shard] = (),
    probed_parts: Collection[str] | None = None,
    out: Store | None = None,
) -> list[DataError]:
    """Write the index of all shards, in the given order. Return an error for each media file that cannot be read.

    Args:
        shards: complete shards whose offset files are already written.
        splits: split -> shards; None leaves the split file unchanged.
        exclude: exclusions of the split file.
        description: content of ``dataset.yaml``; None leaves the file unchanged.
        removed: names of deleted members, whose media metadata is deleted too.
        media: index of another dataset, whose media metadata is copied into a new dataset.
        probed: new or changed shards, with their present paths, whose media metadata is collected if the index has
            such metadata, with the same filters.
        probed_parts: names of the parts of these shards that are new or changed; None for all.
        out: folder to write to instead of the dataset itself.

    Raises:
        DataError: a key occurs twice.
        MissingExtra: the library for a kind of media is not installed.
        StorageError: the disk is full or cannot be written.
    """
    out = store if out is None else out
    rows = energon_index.IndexRows.of((number, shard.scan) for number, shard in enumerate(shards))
    exists = store.exists(energon.INFO) or store.exists(energon.INFO_YAML)
    shrinks = exists and not set(energon.read_info(store)) <= {shard.path for shard in shards}
    if description is not None:
        energon_write.write_yaml(out, "dataset.yaml", description)
    if splits is not None and (shrinks or not exists):
        energon_write.write_splits(out, splits, exclude)
    broken: list[DataError] = []
    with out.build(database.INDEX) as path:
        energon_index.write_index(path, rows)
        if exists and store.exists(database.INDEX):
            filters = copy_media(path, Media(cached_copy(store, database.INDEX)), removed)
            broken = _probe(store, path, filters, probed, probed_parts)
        elif media is not None:
            copy_media(path, media, removed)
    records = {shard.path: shard.record for shard in shards}
    word = energon_write.write_uuid(out, records)
    with out.build(energon_members.PATH) as path:
        energon_members.write_members(path, rows, word)
    sidecar.write(out, {path: record for path, record in records.items() if record.digest is not None}, store)
    counts = {shard.path: len(shard.scan.keys) for shard in shards}
    energon_write.write_info(out, counts, old=store.exists(energon.INFO_YAML))
    all_offsets.write_all(out, [shard.scan.starts for shard in shards], word)
    if splits is not None and exists and not shrinks:
        energon_write.write_splits(out, splits, exclude)
    if out is store:
        energon_write.match_modes(store, [shard.path for shard in shards])
    return broken


def _probe(
    store: Store,
    path: Path,
    filters: Sequence[MediaFilter],
    shards: Sequence[Shard],
    parts: Collection[str] | None,
) -> list[DataError]:
    """Replace the metadata of the shards' media in an index that is being built. Return those that cannot be read."""
    pieces = [piece for shard in shards if filters for piece in pieces_of_shard(*shard[:3], tuple(filters), parts)]
    rows, broken = collect(store, pieces)
    if pieces:
        write_tables(path, rows, {}, without=(name for piece in pieces for name in piece.names))
    return broken


def copy_media(new: Path, media: Media, removed: Collection[str] = ()) -> list[MediaFilter]:
    """Copy the media tables of another index, without the removed members. Return the filters."""
    with closing(sqlite3.connect(new, isolation_level=None, uri=True)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("ATTACH ? AS old", (database.read_only_uri(media.database),))
        tables = connection.execute(_TABLES).fetchall()
        connection.execute("BEGIN")
        for name, statement in tables:
            connection.execute(statement)
            connection.execute(f"INSERT INTO main.{name} SELECT * FROM old.{name}")  # noqa: S608 - names of the query above  # nosec B608
            if name == "media_filters":
                continue
            if media.prefix:
                connection.execute(f"UPDATE main.{name} SET entry_key = ? || entry_key", (media.prefix,))  # noqa: S608 - as above  # nosec B608
            connection.executemany(f"DELETE FROM main.{name} WHERE entry_key = ?", ((n,) for n in removed))  # noqa: S608 - as above  # nosec B608
        connection.execute("COMMIT")
        connection.execute("DETACH old")
        if "media_filters" not in dict(tables):
            return []
        found = connection.execute("SELECT strategy, patterns FROM media_filters ORDER BY filter_id")
        return [MediaFilter.of_row(*row) for row in found]
