"""Costs of samples, and sizes of their media, from the media metadata of an ``index.sqlite``, in one query.

SQLite parses the metadata and finds the sample of each media file; Python receives two numbers per file. This takes 2
to 3 s of one core for 10^6 files, so the costs of large datasets are cached (see `feedmill.formats.kept`) and
loaded in milliseconds.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import chain

import numpy as np

from feedmill.errors import DataError
from feedmill.formats.energon.database import INDEX, MAX_SAMPLES, bad_index, open_index
from feedmill.formats.energon.media import (
    AMBIGUOUS_EXTENSIONS,
    AUDIO_EXTENSIONS,
    AV_EXTENSIONS,
    CORRECTIONS,
    IMAGE_EXTENSIONS,
)
from feedmill.formats.kept import digest_of, kept_costs
from feedmill.formats.mediatable import MediaTable, table_of
from feedmill.formats.offsets import Int64s
from feedmill.storage import Store
from feedmill.storage.cache.copies import cached_copy

UNKNOWN = -1
"""Placeholder for a cost that the metadata does not have."""
MEDIA_COSTS = ("pixels", "frames")
_MOST = 1 << 50
"""Maximum cost of one file; more means corrupt metadata. It keeps the sum over a sample's files below 2^62."""


def _json_field(name: str) -> str:
    return f"json_extract(metadata_json, '$.{name}')"


_FRAMES = (
    f"coalesce({_json_field('video_num_frames')},"
    f" CAST(round({_json_field('video_duration')} * {_json_field('video_fps')}) AS INTEGER))"
)
_VALUES = {
    "frames": f"CASE metadata_type WHEN 'image' THEN 1 ELSE {_FRAMES} END",
    "pixels": f"CASE metadata_type WHEN 'image' THEN nullif({_json_field('width')} * {_json_field('height')}, 0)"
    f" ELSE {_json_field('video_width')} * {_json_field('video_height')} * {_FRAMES} END",
}
_HAS_VIDEO = f"metadata_type = 'image' OR coalesce({_json_field('video_width')}, {_FRAMES}) IS NOT NULL"
_SIZES = (  # as `table_of` takes them, but for the orientation
    f"coalesce({_json_field('width')}, {_json_field('video_width')})",
    f"coalesce({_json_field('height')}, {_json_field('video_height')})",
    _FRAMES,
    _json_field("video_fps"),
    _json_field("audio_num_samples"),
    _json_field("audio_sample_rate"),
)
_FOLDER = "rtrim(entry_key, replace(entry_key, '/', ''))"
_NAME = f"substr(entry_key, length({_FOLDER}) + 1)"
_KEY = (  # up to the first dot after the last slash, as `split_name` cuts
    "CASE instr(entry_key, '/') WHEN 0 THEN substr(entry_key, 1, instr(entry_key, '.') - 1)"
    f" ELSE {_FOLDER} || substr({_NAME}, 1, instr({_NAME}, '.') - 1) END"
)
_PARTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'sample_parts'"
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('media_metadata', 'samples')"


def _cost(by: str) -> str:
    """Return the SQL for the cost of one media file: 0 for audio only, `UNKNOWN` if the metadata lacks it."""
    return f"CAST(coalesce({_VALUES[by]}, CASE WHEN {_HAS_VIDEO} THEN {UNKNOWN} ELSE 0 END) AS INTEGER)"


def media_costs(store: Store, counts: Int64s, by: str) -> Int64s | None:
    """Return the costs of all samples of a prepared folder; `UNKNOWN` if the cost of a media file is unknown.

    The media files of a shard without any metadata are unknown, unless only glob patterns select media.

    Args:
        store: the folder.
        counts: int64[shards], number of samples of each shard, by shard number.
        by: one of `MEDIA_COSTS`.

    Returns:
        int64[samples], shard after shard; None if the index has no media metadata.

    Raises:
        DataError: the index is damaged.
    """
    if by not in MEDIA_COSTS or not store.exists(INDEX):
        return None
    total = int(counts.sum())
    return kept_costs(
        store, INDEX, f"{by}, if known, of {digest_of(counts)}", total, lambda: _queried(store, counts, by)
    )


def _queried(store: Store, counts: Int64s, by: str) -> Int64s | None:
    """Compute `media_costs` from the index."""
    # CROSS JOIN makes SQLite look up the sample of each media file instead of the reverse.
    query = (
        f"SELECT tar_file_id * {MAX_SAMPLES} + sample_index, {_cost(by)}"  # noqa: S608 - constants of this module  # nosec B608
        f" FROM media_metadata CROSS JOIN samples ON sample_key = {_KEY}"
    )
    with closing(open_index(cached_copy(store, INDEX))) as connection:
        if not _has_rows(store, connection, 2):
            return None
        try:
            rows = np.fromiter(chain.from_iterable(connection.execute(query)), np.int64).reshape(-1, 2)
            found = np.concatenate([rows, _unread(connection, set((rows[:, 0] // MAX_SAMPLES).tolist()), len(counts))])
        except (sqlite3.DatabaseError, TypeError, ValueError, OverflowError) as error:
            raise _damaged(store, connection, error) from None
    return _summed(_numbers(store, found[:, 0], counts), found[:, 1], int(counts.sum()))


def _numbers(store: Store, found: Int64s, counts: Int64s) -> Int64s:
    """Return numbers of samples, shard after shard, for those of the queries."""
    shard, local = found // MAX_SAMPLES, found % MAX_SAMPLES
    if len(found) and not (shard.min() >= 0 and shard.max() < len(counts) and (local < counts[shard]).all()):
        raise bad_index(store.locate(INDEX), "it has samples that .info.json does not count")
    return np.asarray((np.cumsum(counts) - counts)[shard] + local)


def _unread(connection: sqlite3.Connection, read: set[int], shards: int) -> Int64s:
    """Return rows like those of `_queried`, int64[n, 2], for samples with media in shards without any metadata."""
    filters = {strategy for (strategy,) in connection.execute("SELECT strategy FROM media_filters")}
    if not filters & {"EXTENSION", "HEADER"} or not connection.execute(_PARTS).fetchone():
        return np.zeros((0, 2), np.int64)
    numbers: list[int] = []
    for shard in range(shards):
        if shard not in read:
            names = connection.execute("SELECT DISTINCT part_name FROM sample_parts WHERE tar_file_id = ?", (shard,))
            for (name,) in names.fetchall():
                if name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS | AV_EXTENSIONS - AMBIGUOUS_EXTENSIONS:
                    of_part = "SELECT sample_index FROM sample_parts WHERE tar_file_id = ? AND part_name = ?"
                    numbers += (shard * MAX_SAMPLES + n for (n,) in connection.execute(of_part, (shard, name)))
    return np.stack([np.asarray(numbers, np.int64), np.full(len(numbers), UNKNOWN)], axis=1)


def media_table(store: Store, counts: Int64s) -> MediaTable | None:
    """Return the sizes of the media of all samples of a prepared folder, with unknown ones of media without metadata.

    These are parts with the name of a medium, such as broken files. Corrections override what Energon stores.

    Args:
        store: the folder.
        counts: int64[shards], number of samples of each shard, by shard number.

    Returns:
        None if the index has no media metadata.

    Raises:
        DataError: the index is damaged.
    """
    if not store.exists(INDEX):
        return None
    with closing(open_index(cached_copy(store, INDEX))) as connection:
        if not _has_rows(store, connection, 2):
            return None
        try:
            rows = [*connection.execute(_table_query(connection)), *_without_metadata(connection)]
            found = np.fromiter((row[0] for row in rows), np.int64, len(rows))
            kind = np.fromiter((row[2] for row in rows), np.uint8, len(rows))
            numbers = np.array([row[3:] for row in rows], np.float64).reshape(-1, 7)
        except (sqlite3.DatabaseError, TypeError, ValueError, OverflowError) as error:
            raise _damaged(store, connection, error) from None
    number = _numbers(store, found, counts)
    return table_of(number, [row[1] for row in rows], kind, numbers, int(counts.sum()))


def _table_query(connection: sqlite3.Connection) -> str:
    """Return the SQL for rows of the sample's number, the part's name, the kind, and the numbers of `table_of`."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (CORRECTIONS,)).fetchone()
    orientation = "json_extract(corrections_json, '$.orientation')" if known else "NULL"
    frames = _SIZES[2]
    if known:
        right = f"coalesce(json_extract(corrections_json, '$.video_duration'), {_json_field('video_duration')})"
        frames = frames.replace(_json_field("video_duration"), right)
    numbers = [*_SIZES[:2], orientation, frames, *_SIZES[3:]]
    return (
        f"SELECT tar_file_id * {MAX_SAMPLES} + sample_index, substr(entry_key, length(sample_key) + 2),"  # noqa: S608 - constants of this module  # nosec B608
        f" CASE WHEN metadata_type = 'image' THEN 0 WHEN {_HAS_VIDEO} THEN 1 ELSE 2 END,"
        f" {', '.join(f'CAST({column} AS REAL)' for column in numbers)}"
        f" FROM media_metadata CROSS JOIN samples ON sample_key = {_KEY}"
        + (f" LEFT JOIN {CORRECTIONS} USING (entry_key)" if known else "")
    )


def _without_metadata(connection: sqlite3.Connection) -> list[tuple[int | str | float | None, ...]]:
    """Return rows like those of `_table_query` for parts with the name of a medium that have no metadata."""
    if not connection.execute(_PARTS).fetchone():
        return []
    kinds = {
        name: 0 if end in IMAGE_EXTENSIONS else 2 if end in AUDIO_EXTENSIONS else 1
        for (name,) in connection.execute("SELECT DISTINCT part_name FROM sample_parts")
        if (end := name.rpartition(".")[2].lower()) in IMAGE_EXTENSIONS | AV_EXTENSIONS - AMBIGUOUS_EXTENSIONS
    }
    query = (
        f"SELECT tar_file_id * {MAX_SAMPLES} + sample_index FROM sample_parts JOIN samples"  # noqa: S608 - constants of this module  # nosec B608
        " USING (tar_file_id, sample_index) WHERE part_name = ? AND NOT EXISTS"
        " (SELECT 1 FROM media_metadata WHERE entry_key = sample_key || '.' || part_name)"
    )
    return [
        (number, name, kind, *(None,) * 7)
        for name, kind in kinds.items()
        for (number,) in connection.execute(query, (name,))
    ]


def file_costs(store: Store, by: str) -> dict[str, int] | None:
    """Return path -> cost (or `UNKNOWN`) of each media file of a plain folder; None without media metadata.

    Raises:
        DataError: the index is damaged.
    """
    if by not in MEDIA_COSTS or not store.exists(INDEX):
        return None
    with closing(open_index(cached_copy(store, INDEX))) as connection:
        if not _has_rows(store, connection, 1):
            return None
        try:
            return dict(connection.execute(f"SELECT entry_key, {_cost(by)} FROM media_metadata"))  # noqa: S608 - constants of this module  # nosec B608
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            raise _damaged(store, connection, error) from None


def _has_rows(store: Store, connection: sqlite3.Connection, tables: int) -> bool:
    """Return whether the index has the required tables and metadata of at least one file."""
    try:
        names = {name for (name,) in connection.execute(_TABLES)}
        if "media_metadata" not in names or len(names) < tables:
            return False
        return connection.execute("SELECT 1 FROM media_metadata LIMIT 1").fetchone() is not None
    except sqlite3.DatabaseError as error:
        raise bad_index(store.locate(INDEX), str(error)) from None


def _summed(number: Int64s, costs: Int64s, count: int) -> Int64s:
    """Return the sum over each sample's media; `UNKNOWN` for samples with an unknown cost."""
    unknown = (costs < 0) | (costs > _MOST)
    out = np.zeros(count, np.int64)
    np.add.at(out, number[~unknown], costs[~unknown])
    out[number[unknown]] = UNKNOWN
    return out


def _damaged(store: Store, connection: sqlite3.Connection, error: Exception) -> DataError:
    """Return the error for metadata that SQLite cannot evaluate, naming an entry with invalid JSON if there is one."""
    entry = None
    try:
        query = "SELECT entry_key FROM media_metadata WHERE NOT json_valid(metadata_json) LIMIT 1"
        entry = (connection.execute(query).fetchone() or (None,))[0]
    except sqlite3.DatabaseError:
        pass  # the database itself is corrupt
    damaged = bad_index(store.locate(INDEX), f"media metadata: {error}")
    damaged.record = entry
    return damaged
