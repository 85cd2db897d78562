"""Write Energon's ``index.sqlite``: the samples and parts of a prepared folder, and their locations.

Two tables and four indexes, as Energon 7.4 writes them (docs/formats/energon.md): `samples` with one row per sample
(shard number, key, number in the shard, offset and size in the tar), `sample_parts` with one row per part
(shard number, number in the shard, part name, offset and size of the content). Keys are unique in the whole folder.

Inserting rows and creating four indexes through SQLite takes most of the time of preparing a folder. All rows are known
in advance, so `write_index` writes SQLite's b-trees directly, page by page (`feedmill.kernels.files.btree`). SQLite
creates the empty database with its schema and header. Writing through SQLite alone is the reference; it is used for few
rows and for data that the fast writer does not support.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feedmill.errors import DataError, StorageError
from feedmill.kernels.files import btree
from feedmill.kernels.files.tar import ShardScan
from feedmill.kernels.files.text_order import sort_groups, sort_rows, sort_texts
from feedmill.storage.base import storage_error
from feedmill.storage.limits import available_memory

Int64s = npt.NDArray[np.int64]

TABLES = (
    "CREATE TABLE samples ( tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE,"
    " sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER )",
    "CREATE TABLE sample_parts ( tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,"
    " content_byte_offset INTEGER, content_byte_size INTEGER )",
)
INDEXES = (
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    "CREATE INDEX idx_sample_parts_full ON sample_parts"
    "(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)",
)
DIRECT_FROM = 1_000
"""Number of rows from which writing the b-trees ourselves is faster: SQLite needs more than a microsecond per row."""
_BATCH = 65_536


@dataclass(slots=True)
class IndexRows:
    """Content of the two tables, as columns.

    Attributes:
        tar_file_id, sample_index, byte_offset, byte_size: int64[n]; shard number, number in the shard, bytes.
        keys: n sample keys.
        part_tar_file_id, part_sample_index: int64[m], the sample that each part belongs to.
        content_byte_offset, content_byte_size: int64[m], offset and size of the part's content in bytes.
        part_names: m part names.
    """

    tar_file_id: Int64s
    sample_index: Int64s
    byte_offset: Int64s
    byte_size: Int64s
    keys: list[str]
    part_tar_file_id: Int64s
    part_sample_index: Int64s
    content_byte_offset: Int64s
    content_byte_size: Int64s
    part_names: list[str]

    @classmethod
    def of(cls, shards: Iterable[tuple[int, ShardScan]]) -> IndexRows:
        """Return the rows of scanned shards, given with their numbers, in that order."""
        columns: list[list[Int64s]] = [[np.zeros(0, np.int64)] for _ in range(8)]
        keys: list[str] = []
        part_names: list[str] = []
        for number, shard in shards:
            n, m = len(shard.keys), len(shard.parts)
            pieces = (
                np.full(n, number, np.int64),
                np.arange(n, dtype=np.int64),
                shard.starts[:-1],
                np.diff(shard.starts),
                np.full(m, number, np.int64),
                shard.sample.astype(np.int64),
                shard.data,
                shard.sizes,
            )
            for column, piece in zip(columns, pieces, strict=True):
                column.append(piece)
            keys += shard.keys
            part_names += shard.parts
        tar, index, offset, size, *of_parts = (np.concatenate(column) for column in columns)
        part_tar, part_index, part_offset, part_size = of_parts
        return cls(tar, index, offset, size, keys, part_tar, part_index, part_offset, part_size, part_names)

    def sample_columns(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return the integer columns of `samples`, in the table's order."""
        return self.tar_file_id, self.sample_index, self.byte_offset, self.byte_size

    def part_columns(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return the integer columns of `sample_parts`, in the table's order."""
        return self.part_tar_file_id, self.part_sample_index, self.content_byte_offset, self.content_byte_size


def write_index(path: Path, rows: IndexRows, *, compiled: bool | None = None) -> None:
    """Write a whole ``index.sqlite``.

    Args:
        path: temporary path; an existing file is replaced. The caller syncs and renames it.
        rows: content, written in this order.
        compiled: write the b-trees with the kernel; by default if there are enough rows. Unsupported rows (a name
            above 900 bytes or with a NUL, more rows than fit into memory twice) are always written through SQLite.

    Raises:
        DataError: ``duplicate-key``, or ``bad-name`` if a name in a tar is not valid UTF-8.
        StorageError: the disk is full, the folder is read-only, and similar.
    """
    try:
        if compiled is None:
            compiled = len(rows.keys) + len(rows.part_names) >= DIRECT_FROM
        if not compiled or not _write_compiled(path, rows):
            _write_rows(path, rows)
    except BaseException as error:
        with contextlib.suppress(OSError):
            path.unlink()
        if isinstance(error, UnicodeEncodeError):
            raise _not_utf8(rows) from None
        if isinstance(error, sqlite3.IntegrityError):
            raise _duplicate(rows) from None
        if isinstance(error, OSError):
            raise storage_error(error, str(path)) from None
        if isinstance(error, sqlite3.OperationalError):
            fix = "Check that the folder is writable and has free disk space, then run the command again."
            raise StorageError(f"the index cannot be written ({error})", file=str(path), fix=fix) from None
        raise


def read_scan(connection: sqlite3.Connection, number: int, starts: Int64s | None = None) -> ShardScan | None:
    """Return the samples of one shard from the index; None if they do not match the shard's offset file.

    Args:
        connection: connection to an index of release 7.0 or later.
        number: shard number.
        starts: int64[n + 1], the content of the offset file. None: the offsets are left at zero, and nothing compared.
    """
    keys = connection.execute(
        "SELECT sample_key FROM samples WHERE tar_file_id = ? ORDER BY sample_index", (number,)
    ).fetchall()
    rows = connection.execute(
        "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts"
        " WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset",
        (number,),
    ).fetchall()
    if starts is None:
        starts = np.zeros(len(keys) + 1, np.int64)
    elif len(starts) != len(keys) + 1 or not rows:
        return None
    sample, parts, data, sizes = zip(*rows, strict=True) if rows else ((), (), (), ())
    return ShardScan(
        [key for (key,) in keys],
        starts,
        np.asarray(sample, np.int32),
        list(parts),
        np.asarray(data, np.int64),
        np.asarray(sizes, np.int64),
    )


def duplicate_keys(rows: IndexRows, limit: int = 100) -> list[tuple[str, list[int]]]:
    """Return keys that occur more than once with their row numbers, in the order of their first rows."""
    if len(set(rows.keys)) == len(rows.keys):
        return []
    seen: set[str] = set()
    again: dict[str, list[int]] = {key: [] for key in rows.keys if key in seen or seen.add(key)}  # type: ignore[func-returns-value]
    for row, key in enumerate(rows.keys):
        if key in again:
            again[key].append(row)
    return sorted(again.items(), key=lambda item: item[1])[:limit]


def _create(path: Path) -> sqlite3.Connection:
    """Return a new database with the two tables."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    # A failed write leaves no file behind, so neither a journal nor syncing is needed.
    for pragma in ("page_size = 4096", "encoding = 'UTF-8'", "auto_vacuum = 0", "journal_mode = OFF"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN EXCLUSIVE")
    for table in TABLES:
        connection.execute(table)
    return connection


def _write_rows(path: Path, rows: IndexRows) -> None:
    """Write the index through SQLite alone: the reference of the compiled writer."""
    with contextlib.closing(_create(path)) as connection:
        connection.execute("PRAGMA cache_size = -65536")
        tar, index, offset, size = rows.sample_columns()
        samples = _batches(tar, rows.keys, index, offset, size)
        connection.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", samples)
        tar, index, offset, size = rows.part_columns()
        parts = _batches(tar, index, rows.part_names, offset, size)
        connection.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", parts)
        for statement in INDEXES:
            connection.execute(statement)
        connection.execute("COMMIT")


def _batches(*columns: Int64s | list[str]) -> Iterator[tuple[int | str, ...]]:
    """Yield rows as tuples of Python values, converted one batch at a time to save memory."""
    for low in range(0, len(columns[0]), _BATCH):
        pieces = [column[low : low + _BATCH] for column in columns]
        yield from zip(*(p if isinstance(p, list) else p.tolist() for p in pieces), strict=True)


def _write_compiled(path: Path, rows: IndexRows) -> bool:
    """Write the index page by page. Return False without writing anything if the rows require SQLite."""
    if not _fits_memory(rows):
        return False
    samples = _columns(rows.sample_columns(), rows.keys)
    parts = _columns(rows.part_columns(), rows.part_names)
    if samples is None or parts is None:
        return False
    by_key, distinct = sort_texts(samples.text, samples.starts)
    if not distinct:
        raise _duplicate(rows)
    in_sequence = sort_rows(parts.ints[:3])
    in_full = sort_groups(parts.ints[:2], parts.ints[2:], parts.text, parts.starts, in_sequence)
    roots = _empty_database(path)
    if roots is None:
        return False
    key, rowid = btree.TEXT, btree.ROWID
    trees = [
        btree.Tree(samples, (0, key, 1, 2, 3), None, roots["samples"]),
        btree.Tree(samples, (key, rowid), by_key, roots["sqlite_autoindex_samples_1"]),
        btree.Tree(samples, (0, 1, rowid), sort_rows(samples.ints[:2]), roots["idx_samples_by_tar_and_idx"]),
        btree.Tree(parts, (0, 1, key, 2, 3), None, roots["sample_parts"]),
        btree.Tree(parts, (0, 1, 2, rowid), in_sequence, roots["idx_sample_parts_seq"]),
        btree.Tree(parts, (0, 1, key, 2, 3, rowid), in_full, roots["idx_sample_parts_full"]),
    ]
    _fill(path, trees)
    return True


def _fits_memory(rows: IndexRows) -> bool:
    """Return whether a copy of the columns with text and orders fits into a quarter of the available memory."""
    memory = available_memory()
    return memory is None or 128 * (len(rows.keys) + len(rows.part_names)) < memory // 4


def _columns(ints: Sequence[Int64s], names: list[str]) -> btree.Columns | None:
    """Return a table for the kernel, or None if it does not support a name."""
    data = ("\0".join(names) + "\0").encode() if names else b""
    text = np.frombuffer(data, np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(text == 0) + 1))
    if len(starts) != len(names) + 1 or np.diff(starts).max(initial=0) > btree.LONGEST_TEXT + 1:
        return None
    return btree.Columns(np.stack([np.asarray(column, np.int64) for column in ints]), text, starts)


def _empty_database(path: Path) -> dict[str, int] | None:
    """Create an empty database with SQLite; return the root page of each b-tree.

    Returns None if this build of SQLite does not create six empty root pages after the first page.
    """
    with contextlib.closing(_create(path)) as connection:
        for statement in INDEXES:
            connection.execute(statement)
        connection.execute("COMMIT")
        roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_master"))
        plain = connection.execute("PRAGMA page_size").fetchone() == (4096,)
        plain &= connection.execute("PRAGMA auto_vacuum").fetchone() == (0,)
        plain &= connection.execute("PRAGMA page_count").fetchone() == (7,)
    return roots if plain and sorted(roots.values()) == [2, 3, 4, 5, 6, 7] else None


def _fill(path: Path, trees: list[btree.Tree]) -> None:
    """Write the b-trees, then the number of pages into the header.

    SQLite wrote the rest of the header. Its change counter still equals the "version-valid-for" counter, so the number
    of pages is valid.
    """
    file = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    try:
        pages = btree.write_trees(file, trees, 7, threads=min(4, os.cpu_count() or 1))
        os.pwrite(file, pages.to_bytes(4, "big"), 28)
    finally:
        os.close(file)


def _duplicate(rows: IndexRows) -> DataError:
    key, found = duplicate_keys(rows)[0]
    places = [f"shard {rows.tar_file_id[row]}, sample {rows.sample_index[row]}" for row in found[:3]]
    return DataError(
        f"the key occurs {len(found)} times ({'; '.join(places)}{'; ...' if len(found) > 3 else ''})",
        record=key,
        kind="duplicate-key",
        fix="Keys must be unique in the dataset, and the parts of a sample must be consecutive. Rename the members, for"
        " example by adding the shard's name before the key.",
    )


def _not_utf8(rows: IndexRows) -> DataError:
    """Return the error for the first name that cannot be encoded."""
    row, name = next(((i, key) for i, key in enumerate(rows.keys) if not _encodes(key)), (-1, ""))
    if row >= 0:
        shard, sample = rows.tar_file_id[row], rows.sample_index[row]
    else:
        row, part = next((i, part) for i, part in enumerate(rows.part_names) if not _encodes(part))
        shard, sample = rows.part_tar_file_id[row], rows.part_sample_index[row]
        owner = np.flatnonzero((rows.tar_file_id == shard) & (rows.sample_index == sample))
        name = f"{rows.keys[owner[0]]}.{part}" if len(owner) else part
    return DataError(
        f"the member's name is not valid UTF-8 (shard {shard}, sample {sample})",
        record=name.encode("utf-8", "backslashreplace").decode(),
        kind="bad-name",
        fix="The tar was probably written with another encoding: rename the member and rewrite the tar, for example"
        " with 'tar --format=pax' in a UTF-8 locale.",
    )


def _encodes(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
