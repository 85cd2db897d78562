"""Energon's index.sqlite, written by SQLite and page by page: the same rows, and a database that SQLite finds whole."""

from __future__ import annotations

import io
import os
import random
import resource
import signal
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import DataError, StorageError
from feedmill.formats.energon import index as energon_index
from feedmill.formats.energon.index import IndexRows, duplicate_keys, write_index
from feedmill.kernels.files.tar import scan_reference
from helpers.durations import examples, slow_but

SCHEMA = [
    (
        "table", "samples", "samples",
        "CREATE TABLE samples ( tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE,"
        " sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER )",
    ),
    ("index", "sqlite_autoindex_samples_1", "samples", None),
    (
        "table", "sample_parts", "sample_parts",
        "CREATE TABLE sample_parts ( tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,"
        " content_byte_offset INTEGER, content_byte_size INTEGER )",
    ),
    (
        "index", "idx_samples_by_tar_and_idx", "samples",
        "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    ),
    (
        "index", "idx_sample_parts_seq", "sample_parts",
        "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    ),
    (
        "index", "idx_sample_parts_full", "sample_parts",
        "CREATE INDEX idx_sample_parts_full ON sample_parts"
        "(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size)",
    ),
]  # fmt: skip
PRAGMAS = {
    "integrity_check": "ok", "quick_check": "ok", "foreign_key_check": None, "page_size": 4096, "encoding": "UTF-8",
    "user_version": 0, "journal_mode": "delete", "auto_vacuum": 0, "freelist_count": 0,
}  # fmt: skip
PARTS = ["jpg", "json", "txt", "", "a.very.long.part.name" * 9, "été", "JPG"]

Row = tuple[int | str, ...]
Write = Callable[[Path, IndexRows], None]


def page_by_page(path: Path, rows: IndexRows) -> None:
    assert energon_index._write_compiled(path, rows), "these rows should suit the compiled writer"


def by_sqlite(path: Path, rows: IndexRows) -> None:
    energon_index._write_rows(path, rows)


both = pytest.mark.parametrize("write", [page_by_page, by_sqlite])


def table(samples: list[Row], parts: list[Row]) -> IndexRows:
    """Rows in the tables' order of columns."""
    a, b = (list(zip(*rows, strict=True)) or [()] * 5 for rows in (samples, parts))
    ints = [np.array(column, np.int64) for column in (a[0], a[2], a[3], a[4], b[0], b[1], b[3], b[4])]
    return IndexRows(*ints[:4], [str(key) for key in a[1]], *ints[4:], [str(name) for name in b[2]])


def contents(rows: IndexRows) -> tuple[list[Row], list[Row]]:
    tar, index, offset, size = (column.tolist() for column in rows.sample_columns())
    samples = list(zip(tar, rows.keys, index, offset, size, strict=True))
    tar, index, offset, size = (column.tolist() for column in rows.part_columns())
    return samples, list(zip(tar, index, rows.part_names, offset, size, strict=True))


def prepared(count: int, *, key: str = "{:06d}", shards: int = 3, order: random.Random | None = None) -> IndexRows:
    """`count` samples of two parts each, as scanning shards gives them."""
    numbers = list(range(count))
    if order is not None:
        order.shuffle(numbers)
    samples: list[Row] = []
    parts: list[Row] = []
    for i, number in enumerate(numbers):
        shard, place = i * shards // max(1, count), i % 1000
        samples.append((shard, key.format(number), place, place * 7168, 7168))
        parts += [(shard, place, "json", place * 7168 + 512, 178), (shard, place, "jpg", place * 7168 + 1536, 5120)]
    return table(samples, parts)


def check(path: Path, rows: IndexRows) -> None:
    """The database is whole, and each index gives what it should."""
    samples, parts = contents(rows)
    with closing(sqlite3.connect(path)) as connection:
        ask = lambda sql, *values: connection.execute(sql, values).fetchall()  # noqa: E731
        assert ask("SELECT type, name, tbl_name, sql FROM sqlite_master") == SCHEMA
        for pragma, value in PRAGMAS.items():
            assert ask(f"PRAGMA {pragma}") == ([] if value is None else [(value,)]), pragma
        assert ask("SELECT * FROM samples ORDER BY rowid") == samples
        assert ask("SELECT * FROM sample_parts ORDER BY rowid") == parts
        for index, columns, expected in (
            ("sqlite_autoindex_samples_1", "sample_key", [(row[1],) for row in samples]),
            ("idx_samples_by_tar_and_idx", "tar_file_id, sample_index", [(row[0], row[2]) for row in samples]),
            ("idx_sample_parts_seq", "tar_file_id, sample_index, content_byte_offset", [(*r[:2], r[3]) for r in parts]),
            (
                "idx_sample_parts_full",
                "tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size",
                parts,
            ),
        ):  # fmt: skip
            of = "samples" if "samples" in index else "sample_parts"
            sql = f"SELECT {columns} FROM {of} INDEXED BY {index} ORDER BY {columns}"
            plan = [row[3] for row in ask(f"EXPLAIN QUERY PLAN {sql}")]
            assert plan == [f"SCAN {of} USING COVERING INDEX {index}"]
            in_bytes = lambda row: [v.encode() if isinstance(v, str) else v for v in row]  # noqa: E731
            assert ask(sql) == sorted(expected, key=in_bytes)
        for row in random.Random(0).sample(samples, min(500, len(samples))):
            assert ask("SELECT * FROM samples WHERE sample_key = ?", row[1]) == [row]
            assert row in ask("SELECT * FROM samples WHERE tar_file_id = ? AND sample_index = ?", row[0], row[2])
        assert ask("SELECT * FROM samples WHERE sample_key = ?", "no such key") == []


KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, 300), st.integers(0, 2**40))
OFFSETS = st.one_of(st.just(0), st.integers(0, 2**17), st.integers(0, 2**62))
SAMPLES = st.lists(st.tuples(NUMBERS, KEYS, NUMBERS, OFFSETS, OFFSETS), max_size=40, unique_by=lambda row: row[1])
PART_ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.sampled_from(PARTS) | KEYS, OFFSETS, OFFSETS))


@settings(max_examples=examples(40), deadline=None)
@given(SAMPLES, PART_ROWS)
def test_both_writers_write_any_rows(
    tmp_path_factory: pytest.TempPathFactory, samples: list[Row], parts: list[Row]
) -> None:
    folder, rows = tmp_path_factory.mktemp("index"), table(samples, parts)
    for write in (page_by_page, by_sqlite):
        write(folder / write.__name__, rows)
        check(folder / write.__name__, rows)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 3000), st.integers(0, 3000), st.booleans())
def test_both_writers_write_many_rows(
    tmp_path_factory: pytest.TempPathFactory, seed: int, n: int, m: int, ascending: bool
) -> None:
    rng = random.Random(seed)
    number = lambda: rng.choice((0, 1, 2, 200, rng.getrandbits(rng.randrange(1, 41))))  # noqa: E731
    offset = lambda: rng.choice((0, rng.getrandbits(rng.randrange(1, 63))))  # noqa: E731
    keys = list({"".join(rng.choices("abé/.0", k=rng.randrange(1, 600))) for _ in range(n)})
    if ascending:
        keys.sort()
    rows = table(
        [(number(), key, number(), offset(), offset()) for key in keys],
        [(number() % 5, number() % 50, rng.choice(PARTS), offset(), offset()) for _ in range(m)],
    )
    folder = tmp_path_factory.mktemp("index")
    for write in (page_by_page, by_sqlite):
        write(folder / write.__name__, rows)
        check(folder / write.__name__, rows)


@both
@pytest.mark.parametrize(
    ("ascending", "count"),
    [*product([True, False], [0, 1, 2, 57, 58, 999]), *slow_but(product([True, False], [20_000]), (False, 20_000))],
)
def test_prepared_shards(tmp_path: Path, write: Write, count: int, ascending: bool) -> None:
    rows = prepared(count, order=None if ascending else random.Random(0))
    write(tmp_path / "index.sqlite", rows)
    check(tmp_path / "index.sqlite", rows)
    assert os.listdir(tmp_path) == ["index.sqlite"]


def test_deep_trees(tmp_path: Path) -> None:
    """Long keys leave six cells to a page: seven levels for 50,000 rows."""
    rows = prepared(50_000, key="{:08d}" + "k" * 600)
    page_by_page(tmp_path / "index.sqlite", rows)
    check(tmp_path / "index.sqlite", rows)


@both
def test_sqlite_can_go_on_writing(tmp_path: Path, write: Write) -> None:
    path, rows = tmp_path / "index.sqlite", prepared(3000)
    write(path, rows)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("DELETE FROM samples WHERE sample_index % 3 = 1")
        connection.execute("DELETE FROM sample_parts WHERE rowid % 5 = 0")
        more = [(9, f"new/{i * 7919 % 5000}", i, i, i) for i in range(5000)]
        connection.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", more)
        connection.execute("COMMIT")
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        kept = [row for row in contents(rows)[0] if int(row[2]) % 3 != 1]
        assert connection.execute("SELECT * FROM samples ORDER BY rowid").fetchall() == kept + more
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT INTO samples VALUES (0, '000000', 0, 0, 0)")
        connection.execute("VACUUM")
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_file_that_is_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    for compiled in (True, False):
        for count in (2000, 10):
            write_index(path, prepared(count), compiled=compiled)
            check(path, prepared(count))
    path.write_text("no database")
    write_index(path, prepared(3))
    check(path, prepared(3))


def test_rows_of_scanned_shards(tmp_path: Path) -> None:
    scans = []
    for names in (["a.txt", "a.json", "skipped", "b.txt"], ["__x__/no.txt"], ["c.d.e"]):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size = 600
                tar.addfile(member, io.BytesIO(bytes(600)))
        scans.append(scan_reference(np.frombuffer(buffer.getvalue(), np.uint8)))
    rows = IndexRows.of([(4, scans[0]), (5, scans[1]), (7, scans[2])])
    samples = [(4, "a", 0, 0, 4608), (4, "b", 1, 4608, 1536), (7, "c", 0, 0, 1536)]
    parts = [(4, 0, "txt", 512, 600), (4, 0, "json", 2048, 600), (4, 1, "txt", 5120, 600), (7, 0, "d.e", 512, 600)]
    assert contents(rows) == (samples, parts)
    assert contents(IndexRows.of([])) == ([], [])
    write_index(tmp_path / "index.sqlite", rows)
    check(tmp_path / "index.sqlite", rows)


@pytest.mark.parametrize("compiled", [True, False])
def test_duplicate_keys_are_refused(tmp_path: Path, compiled: bool) -> None:
    rows = table([(i, key, 0, 0, 512) for i, key in enumerate(["b", "d", "c", "d", "a", "c", "d"])], [])
    assert duplicate_keys(rows) == [("d", [1, 3, 6]), ("c", [2, 5])]
    with pytest.raises(DataError, match=r"3 times \(shard 1, sample 0; shard 3, sample 0") as caught:
        write_index(tmp_path / "index.sqlite", rows, compiled=compiled)
    assert (caught.value.kind, caught.value.record) == ("duplicate-key", "d")
    assert os.listdir(tmp_path) == []


def test_at_most_a_hundred_duplicate_keys_are_listed() -> None:
    rows = table([(i, str(i % 250), 0, 0, 0) for i in range(500)], [])
    assert duplicate_keys(rows) == [(str(i), [i, i + 250]) for i in range(100)]
    assert duplicate_keys(prepared(500)) == []


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("bad", ["key", "part"])
def test_names_that_are_not_utf8_are_refused(tmp_path: Path, compiled: bool, bad: str) -> None:
    wrong = b"caf\xe9".decode("utf-8", "surrogateescape")
    rows = prepared(10)
    if bad == "key":
        rows.keys[4] = wrong
    else:
        rows.part_names[9] = wrong
    with pytest.raises(DataError, match=r"not valid UTF-8 \(shard 1, sample 4\)") as caught:
        write_index(tmp_path / "index.sqlite", rows, compiled=compiled)
    assert caught.value.kind == "bad-name"
    assert caught.value.record == ("caf\\udce9" if bad == "key" else "000004.caf\\udce9")
    assert os.listdir(tmp_path) == []


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a full disk: writing beyond `size` bytes of a file fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("room", [10_000, 200_000])
def test_no_room_on_the_disk(tmp_path: Path, compiled: bool, room: int) -> None:
    path = tmp_path / "index.sqlite"
    with pytest.raises(StorageError) as caught, files_of_at_most(room):
        write_index(path, prepared(20_000), compiled=compiled)
    assert caught.value.file == str(path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("compiled", [True, False])
def test_a_folder_that_is_not_there(tmp_path: Path, compiled: bool) -> None:
    with pytest.raises(StorageError) as caught:
        write_index(tmp_path / "none" / "index.sqlite", prepared(2), compiled=compiled)
    assert caught.value.file == str(tmp_path / "none" / "index.sqlite")


@pytest.mark.parametrize("name", ["n" * 901, "n" * 5000, "é" * 451, "nul\0byte"])
@pytest.mark.parametrize("where", ["keys", "part_names"])
def test_unusual_names_go_through_sqlite(tmp_path: Path, name: str, where: str) -> None:
    path, rows = tmp_path / "index.sqlite", prepared(50)
    getattr(rows, where)[7] = name
    assert not energon_index._write_compiled(path, rows)
    write_index(path, rows, compiled=True)
    check(path, rows)


def test_more_rows_than_fit_into_memory_go_through_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energon_index, "available_memory", lambda: 8 * 4096)
    assert not energon_index._write_compiled(tmp_path / "index.sqlite", prepared(50))
    write_index(tmp_path / "index.sqlite", prepared(50), compiled=True)
    check(tmp_path / "index.sqlite", prepared(50))


def test_the_compiled_writer_is_taken_where_it_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energon_index, "DIRECT_FROM", 30)
    taken: list[int] = []
    monkeypatch.setattr(energon_index, "_write_compiled", lambda path, rows: taken.append(len(rows.keys)) or True)
    for count in (9, 10, 19, 20):
        write_index(tmp_path / "index.sqlite", prepared(count))
    assert taken == [10, 19, 20]
