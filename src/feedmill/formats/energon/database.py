"""``index.sqlite``: opening it safely."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from feedmill.errors import DataError

META = ".nv-meta"
INDEX = f"{META}/index.sqlite"
MAX_SAMPLES = 1 << 40
"""Of one shard: each takes 512 bytes at least. So no sum of counts goes beyond an int64."""
_NO_TABLES = (
    "SELECT name, CASE type WHEN 'table' THEN 'virtual table' ELSE type END FROM sqlite_master"
    " WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL %'"
)
_LONGEST_VALUE = 64 << 20


def open_index(path: Path) -> sqlite3.Connection:
    """Return a read-only connection that takes no locks: the index is only ever replaced as a whole.

    Views, triggers and virtual tables compute what they give, without end if their author likes: an index that has any
    is refused (`DataError`), and so is a value that is longer than any name is.
    """
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA mmap_size = {1 << 40}")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        odd = connection.execute(_NO_TABLES).fetchone()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the second: of sqlite's own words about damaged text
        connection.close()
        raise bad_index(str(path), str(error)) from None
    if odd is not None:
        connection.close()
        raise bad_index(str(path), f"{odd[0]!r:.80} is a {odd[1]}, expected plain tables only")
    return connection


def bad_index(where: str, reason: str) -> DataError:
    """Return the error for an ``index.sqlite`` that is damaged."""
    return DataError(
        f"the index cannot be read ({reason})", file=where, kind="bad-index", fix="Run 'feedmill prepare' again."
    )
