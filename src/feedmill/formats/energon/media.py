"""The media tables of Energon's ``index.sqlite``: metadata of media files, and the filters that selected them.

``media_metadata`` has a row ``entry_key, metadata_type, metadata_json`` for each media file. The key is the full member
name (``KEY.PART``) in a prepared dataset and the path relative to the folder, with ``/``, in a plain folder, whose
``index.sqlite`` has only these tables. The type is ``image`` or ``av``, the JSON is compact.
``media_filters`` has a row ``filter_id, strategy, patterns, created_at_utc`` for each filter; the metadata covers the
union of the filters.

``media_corrections`` is Feedmill's own, and Energon does not read it: a row ``entry_key, corrections_json`` for each
file of which Energon's metadata does not tell all: ``orientation`` (by which pixels of the stored size are still to be
turned) and ``video_duration`` (where the header's, which Energon stores, is wrong). Without such files it is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from feedmill.errors import DataError, StorageError
from feedmill.formats.energon.database import INDEX, bad_index, open_index
from feedmill.storage import Store

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

Row = tuple[str, str, str, str]
"""entry_key, metadata_type, metadata_json, and corrections_json, or empty."""

TABLES = (
    "CREATE TABLE IF NOT EXISTS media_metadata ( entry_key TEXT PRIMARY KEY, metadata_type TEXT NOT NULL,"
    " metadata_json TEXT NOT NULL )",
    "CREATE TABLE IF NOT EXISTS media_filters ( filter_id INTEGER PRIMARY KEY AUTOINCREMENT, strategy TEXT NOT NULL,"
    " patterns TEXT, created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP, UNIQUE(strategy, patterns) )",
)
CORRECTIONS = "media_corrections"
_CORRECTIONS_TABLE = (
    f"CREATE TABLE IF NOT EXISTS {CORRECTIONS} ( entry_key TEXT PRIMARY KEY, corrections_json TEXT NOT NULL )"
)
IMAGE_EXTENSIONS = frozenset(("bmp", "gif", "ico", "j2k", "jp2", "jpx", "jpeg", "jpg", "png", "tif", "tiff", "webp"))
AUDIO_EXTENSIONS = frozenset(("aac", "flac", "m4a", "mp3", "oga", "ogg", "opus", "wav"))
AMBIGUOUS_EXTENSIONS = frozenset(("mts", "ts"))
"""Extensions of MPEG transport streams that are those of TypeScript too: the first bytes decide."""
VIDEO_EXTENSIONS = AMBIGUOUS_EXTENSIONS | frozenset(
    ("3gp", "avi", "flv", "m2ts", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "ogv", "webm", "wmv")
)
AV_EXTENSIONS = AUDIO_EXTENSIONS | VIDEO_EXTENSIONS
"""Those of Energon's list, and more."""
_HAS_TABLES = "SELECT count(*) FROM sqlite_master WHERE name IN ('media_metadata', 'media_filters')"


@dataclass(slots=True)
class MediaTables:
    """Content of the two tables.

    Attributes:
        filters: (strategy, patterns) -> time of creation, in order of their ids.
        rows: metadata, in stored order.
    """

    filters: dict[tuple[str, str], str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)


def read_tables(store: Store) -> MediaTables:
    """Return the tables of a dataset or folder; empty if there is no index, or it does not have them.

    Raises:
        DataError: the index cannot be read.
    """
    tables = MediaTables()
    if not store.exists(INDEX):
        return tables
    from feedmill.storage.cache.copies import cached_copy

    connection = open_index(cached_copy(store, INDEX))
    import sqlite3

    try:
        if connection.execute(_HAS_TABLES).fetchone() != (2,):
            return tables
        chosen = connection.execute("SELECT strategy, patterns, created_at_utc FROM media_filters ORDER BY filter_id")
        tables.filters = {(strategy, patterns or ""): created for strategy, patterns, created in chosen}
        tables.rows = connection.execute(rows_query(connection)).fetchall()
    except sqlite3.DatabaseError as error:
        raise _damaged(store, error) from None
    finally:
        connection.close()
    return tables


def rows_query(connection: sqlite3.Connection) -> str:
    """Return the SQL for all rows of an index with media metadata."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (CORRECTIONS,)).fetchone()
    head = "SELECT entry_key, metadata_type, metadata_json,"
    if known is None:
        return f"{head} '' FROM media_metadata"
    return f"{head} coalesce(corrections_json, '') FROM media_metadata LEFT JOIN {CORRECTIONS} USING (entry_key)"


def write_tables(
    path: Path, rows: Iterable[Row], filters: Mapping[tuple[str, str], str | None], without: Iterable[str] = ()
) -> None:
    """Add rows and filters to a database that is being built.

    Rows replace existing rows with the same key, and the last of several rows with one key wins. A filter that already
    exists is not added again.

    Args:
        filters: (strategy, patterns) -> time of creation; None for now.
        without: keys of rows to delete.

    Raises:
        DataError: the database is corrupt.
        StorageError: the disk is full, and similar.
    """
    rows, without = list(rows), list(without)
    import sqlite3

    connection = sqlite3.connect(path)
    try:
        # The file is renamed when it is complete, so neither a journal nor syncing is needed.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        with connection:
            for statement in TABLES:
                connection.execute(statement)
            connection.executemany("DELETE FROM media_metadata WHERE entry_key = ?", ((key,) for key in without))
            connection.executemany("INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)", (row[:3] for row in rows))
            _write_corrections(connection, rows, without)
            connection.executemany(
                "INSERT OR IGNORE INTO media_filters (strategy, patterns, created_at_utc)"
                " VALUES (?, ?, coalesce(?, CURRENT_TIMESTAMP))",
                [(*one, created) for one, created in filters.items()],
            )
    except sqlite3.OperationalError as error:
        fix = "Check that the folder is writable and has free disk space, then run the command again."
        raise StorageError(f"the media metadata cannot be written ({error})", file=str(path), fix=fix) from None
    except sqlite3.DatabaseError as error:
        raise bad_index(str(path), str(error)) from None
    finally:
        connection.close()


def _write_corrections(connection: sqlite3.Connection, rows: Iterable[Row], without: Iterable[str]) -> None:
    corrected = {row[0]: row[3] for row in rows}
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (CORRECTIONS,)).fetchone()
    if known:
        stale = ((key,) for key in (*corrected, *without))
        connection.executemany(f"DELETE FROM {CORRECTIONS} WHERE entry_key = ?", stale)  # noqa: S608 - a constant  # nosec B608
    if any(corrected.values()):
        connection.execute(_CORRECTIONS_TABLE)
        new = ((key, text) for key, text in corrected.items() if text)
        connection.executemany(f"INSERT INTO {CORRECTIONS} VALUES (?, ?)", new)  # noqa: S608 - a constant  # nosec B608


def _damaged(store: Store, error: Exception) -> DataError:
    return DataError(
        f"the media metadata cannot be read ({error})",
        file=store.locate(INDEX),
        kind="bad-index",
        fix="Run 'feedmill prepare' again, with --media-metadata.",
    )
