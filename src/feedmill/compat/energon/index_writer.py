"""Energon's `SqliteIndexWriter`: it adds rows to an ``index.sqlite``, for programs that scan their data themselves.

`feedmill prepare` writes whole indexes much faster (`feedmill.formats.energon.index`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from typing import Any

from feedmill.compat.energon.edataclass import edataclass
from feedmill.compat.energon.epathlib import EPath
from feedmill.errors import DataError
from feedmill.formats.energon import index, media

__all__ = ["DuplicateSampleKeyError", "IndexMediaMetadata", "IndexSample", "IndexSamplePart", "SqliteIndexWriter"]


@edataclass
class IndexSample:
    """Row of a sample: number of its shard, key, number in the shard, offset and size in bytes."""

    tar_file_id: int
    sample_key: str
    sample_index: int
    byte_offset: int
    byte_size: int


@edataclass
class IndexSamplePart:
    """Row of a part: its sample, name, and offset and size of its content in bytes."""

    tar_file_id: int
    sample_index: int
    part_name: str
    content_byte_offset: int
    content_byte_size: int


@edataclass
class IndexMediaMetadata:
    """Row of a media file: its name, ``image`` or ``av``, and its metadata as JSON."""

    entry_key: str
    metadata_type: str
    metadata_json: str


class DuplicateSampleKeyError(DataError, RuntimeError):
    """A key occurs twice.

    Attributes:
        sample_key: the key.
    """

    def __init__(self, sample_key: str, **fields: Any) -> None:
        super().__init__("the key occurs twice", record=sample_key, kind="duplicate-key", **fields)
        self.sample_key = sample_key

    def __reduce__(self) -> tuple[Any, ...]:
        return DuplicateSampleKeyError, (self.sample_key,)


class SqliteIndexWriter:
    """Writer of the tables of an index. It must be closed, or used in a ``with`` block.

    Args:
        sqlite_path: a local file.
        enable_sample_tables: create the tables of samples and parts, in place of existing ones.
        enable_media_metadata: create the tables of media metadata.
        reset_tables: delete existing media metadata.
    """

    def __init__(
        self,
        sqlite_path: EPath | str | os.PathLike[str],
        *,
        enable_sample_tables: bool = True,
        enable_media_metadata: bool = False,
        reset_tables: bool = True,
    ) -> None:
        self.sqlite_path = EPath(sqlite_path)
        self.enable_sample_tables, self.enable_media_metadata = enable_sample_tables, enable_media_metadata
        path = self.sqlite_path.local_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.db: sqlite3.Connection | None = sqlite3.connect(path)
        if enable_sample_tables:
            self._create(index.TABLES, True)
        if enable_media_metadata:
            self._create(media.TABLES, reset_tables)

    def append_samples(self, rows: Sequence[IndexSample]) -> None:
        """Add samples: all of them, or none.

        Raises:
            DuplicateSampleKeyError: a key is in the index already, or occurs twice.
        """
        values = [(row.tar_file_id, row.sample_key, row.sample_index, row.byte_offset, row.byte_size) for row in rows]
        database = self._open()
        database.execute("SAVEPOINT samples")
        try:
            database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", values)
        except sqlite3.IntegrityError:
            database.execute("ROLLBACK TO samples")
            raise DuplicateSampleKeyError(self._duplicate(rows), file=str(self.sqlite_path)) from None
        finally:
            database.execute("RELEASE samples")

    def append_parts(self, rows: Sequence[IndexSamplePart]) -> None:
        """Add parts."""
        names = ("tar_file_id", "sample_index", "part_name", "content_byte_offset", "content_byte_size")
        values = [tuple(getattr(row, name) for name in names) for row in rows]
        self._open().executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", values)

    def append_media_metadata_batch(self, rows: Sequence[IndexMediaMetadata]) -> None:
        """Add metadata of media files, or replace it."""
        values = [(row.entry_key, row.metadata_type, row.metadata_json) for row in rows]
        self._open().executemany("INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)", values)

    def append_media_filter(self, *, strategy: str, patterns: str | None) -> None:
        """Add the filter that selected the media files."""
        self._open().execute(
            "INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)", (strategy, patterns)
        )

    def close(self) -> None:
        """Create the indexes of the tables, and close the file."""
        if self.db is None:
            return
        if self.enable_sample_tables:
            for statement in index.INDEXES:
                self.db.execute(statement)
        self.db.commit()
        self.db.close()
        self.db = None

    def __enter__(self) -> SqliteIndexWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _create(self, tables: Sequence[str], reset: bool) -> None:
        for statement in tables:
            if reset:
                name = statement.partition("(")[0].split()[-1]
                self._open().execute(f"DROP TABLE IF EXISTS {name}")
            self._open().execute(statement)

    def _open(self) -> sqlite3.Connection:
        if self.db is None:
            raise ValueError(f"the index {self.sqlite_path} is closed")
        return self.db

    def _duplicate(self, rows: Sequence[IndexSample]) -> str:
        """Return the first key that makes the rows invalid."""
        seen: set[str] = set()
        for row in rows:
            if row.sample_key in seen or self._has(row.sample_key):
                return row.sample_key
            seen.add(row.sample_key)
        return rows[0].sample_key

    def _has(self, key: str) -> bool:
        return self._open().execute("SELECT 1 FROM samples WHERE sample_key = ?", (key,)).fetchone() is not None
