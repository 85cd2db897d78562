"""Open ``index.sqlite`` safely."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from feedmill.errors import DataError

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

META = ".nv-meta"
INDEX = f"{META}/index.sqlite"
MAX_SAMPLES = 1 << 40
"""Maximum number of samples of a shard (each takes at least 512 bytes). It keeps sums of counts within an int64."""
_NO_TABLES = (
    "SELECT name, CASE type WHEN 'table' THEN 'virtual table' ELSE type END FROM sqlite_master"
    " WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL %'"
)
_LONGEST_VALUE = 64 << 20


def read_only_uri(path: str | Path) -> str:
    """Return the URI by which SQLite opens a file without writing and without locks; its name need not be UTF-8."""
    from urllib.parse import quote

    return f"file:{quote(os.fsencode(path))}?mode=ro&immutable=1"


def open_index(path: Path) -> sqlite3.Connection:
    """Return a read-only connection without locks, because the index is only ever replaced as a whole.

    Views, triggers and virtual tables can run arbitrary, even endless, queries: an index that has any is rejected
    (`DataError`). Values much longer than any name are rejected too.
    """
    import sqlite3

    connection = sqlite3.connect(read_only_uri(path), uri=True, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA mmap_size = {1 << 40}")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        odd = connection.execute(_NO_TABLES).fetchone()
    except (
        sqlite3.DatabaseError,
        UnicodeDecodeError,
    ) as error:  # the latter: in a message with corrupt text
        connection.close()
        raise bad_index(str(path), str(error)) from None
    if odd is not None:
        connection.close()
        raise bad_index(str(path), f"{odd[0]!r:.80} is a {odd[1]}, expected plain tables only")
    return connection


def bad_index(where: str, reason: str) -> DataError:
    """Return the error for a corrupt ``index.sqlite``."""
    return DataError(
        f"the index cannot be read ({reason})", file=where, kind="bad-index", fix="Run 'feedmill prepare' again."
    )
