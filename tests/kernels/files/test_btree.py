"""B-trees written bottom-up, read and checked by SQLite."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.files import btree
from feedmill.kernels.files.btree import (
    LOCK_PAGE,
    PAGE,
    ROWID,
    TEXT,
    Columns,
    Tree,
    put_varint,
    varint_width,
    write_trees,
)
from helpers.durations import examples


def build(path: Path, number: list[int], words: list[str], *, threads: int = 1) -> None:
    """A database with one table (number, word) and an index on each of its columns."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in (
            f"PRAGMA page_size = {PAGE}",
            "CREATE TABLE t (number INTEGER, word TEXT)",
            "CREATE INDEX by_number ON t (number)",
            "CREATE INDEX by_word ON t (word, number)",
        ):
            connection.execute(statement)
    encoded = [word.encode() for word in words]
    starts = np.concatenate(([0], np.cumsum([len(word) + 1 for word in encoded]))).astype(np.int64)
    columns = Columns(
        np.array([number], np.int64).reshape(1, -1),
        np.frombuffer(b"".join(w + b"\0" for w in encoded), np.uint8),
        starts,
    )
    by_number = np.argsort(columns.ints[0], kind="stable")
    by_word = np.array(sorted(range(len(words)), key=lambda i: (encoded[i], number[i], i)), np.int64)
    trees = [
        Tree(columns, (0, TEXT), None, 2),
        Tree(columns, (0, ROWID), by_number, 3),
        Tree(columns, (TEXT, 0, ROWID), by_word, 4),
    ]
    file = os.open(path, os.O_RDWR)
    try:
        os.pwrite(file, write_trees(file, trees, 4, threads=threads).to_bytes(4, "big"), 28)
    finally:
        os.close(file)


def check(path: Path, number: list[int], words: list[str]) -> None:
    rows = list(zip(number, words, strict=True))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT * FROM t ORDER BY rowid").fetchall() == rows
        found = connection.execute("SELECT number, rowid FROM t INDEXED BY by_number ORDER BY number, rowid").fetchall()
        assert found == sorted((n, i + 1) for i, n in enumerate(number))
        found = connection.execute("SELECT word, number FROM t INDEXED BY by_word ORDER BY word, number").fetchall()
        assert found == sorted(((word, n) for n, word in rows), key=lambda row: (row[0].encode(), row[1]))


@given(st.integers(0, 2**56 - 1))
@settings(deadline=None)
def test_varints(value: int) -> None:
    out = np.full(12, 0xAA, np.uint8)
    end = put_varint(out, 2, value)
    digits = [value >> 7 * i & 127 for i in range(max(1, -(-value.bit_length() // 7)))]
    assert out[2:end].tolist() == [digit | 128 for digit in digits[:0:-1]] + digits[:1]
    assert end - 2 == varint_width(value)
    assert out[:2].tolist() == [0xAA] * 2 and set(out[end:].tolist()) == {0xAA}


EDGES = sorted({sign * (1 << bits) + d for bits in (0, 7, 15, 23, 31, 47, 62) for sign in (1, -1) for d in (-1, 0, 1)})


def test_every_width_of_integer(tmp_path: Path) -> None:
    number = [*EDGES, 2**63 - 1, -(2**63), 0, 1]
    words = ["x" * length for length in range(len(number))]
    build(tmp_path / "t", number, words)
    check(tmp_path / "t", number, words)


def test_every_text_length_up_to_the_limit(tmp_path: Path) -> None:
    words = [chr(97 + n % 26) * n for n in range(btree.LONGEST_TEXT + 1)]
    number = [2**62 + n for n in range(len(words))]
    build(tmp_path / "t", number, words)
    check(tmp_path / "t", number, words)


@pytest.mark.parametrize("count", range(70))
def test_every_number_of_rows_at_a_small_fan_out(tmp_path: Path, count: int) -> None:
    """Four index cells fill a page here, so pages, and levels, end in every possible way."""
    number = list(range(count))
    words = [f"{n * 31 % 97:03d}" + "w" * (btree.LONGEST_TEXT - 3) for n in number]
    build(tmp_path / "t", number, words)
    check(tmp_path / "t", number, words)


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 3000), st.sampled_from([3, 80, 900]))
def test_random_rows(tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, longest: int) -> None:
    path = tmp_path_factory.mktemp("btree") / "t"
    rng = random.Random(seed)
    number = [rng.choice(EDGES) for _ in range(count)]
    words = ["ab/é"[rng.randrange(4)] * rng.randrange(longest // 2) for _ in range(count)]
    build(path, number, words)
    check(path, number, words)


def test_the_same_bytes_with_any_number_of_threads(tmp_path: Path) -> None:
    number = list(range(30_000))
    words = [f"{n:x}" * 20 for n in number]
    for threads in (1, 4):
        build(tmp_path / str(threads), number, words, threads=threads)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "4").read_bytes()
    check(tmp_path / "1", number, words)


@pytest.mark.slow
def test_the_lock_byte_page_stays_empty(tmp_path: Path) -> None:
    """A database above 1 GiB has a page in its middle that holds nothing."""
    count = 700_000
    path = tmp_path / "t"
    number, words = list(range(count)), ["w" * btree.LONGEST_TEXT] * count
    build(path, number, words, threads=2)
    assert path.stat().st_size > LOCK_PAGE * PAGE
    with path.open("rb") as file:
        file.seek((LOCK_PAGE - 1) * PAGE)
        assert not any(file.read(PAGE))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found = connection.execute("SELECT count(*), sum(number) FROM t").fetchone()
        assert found == (count, count * (count - 1) // 2)
