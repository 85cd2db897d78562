"""`prepare-media` killed before each file that it puts in place: the next run gives what an undisturbed one gives."""

from __future__ import annotations

import io
import sqlite3
from pathlib import Path

import pytest

from helpers.kills import finish, run_until_killed

Image = pytest.importorskip("PIL.Image")


def make(root: Path) -> None:
    root.mkdir()
    for number in range(6):
        stream = io.BytesIO()
        Image.new("RGB", (number + 1, 2)).save(stream, "PNG")
        (root / f"{number}.png").write_bytes(stream.getvalue())


def rows(root: Path) -> list[tuple[str, ...]]:
    with sqlite3.connect(root / ".nv-meta/index.sqlite") as connection:
        return connection.execute("SELECT * FROM media_metadata ORDER BY 1").fetchall()


def test_killed_before_the_index_is_in_place(tmp_path: Path) -> None:
    words = ["edit", "prepare-media", "media", "--media-by-extension"]
    make(tmp_path / "media")
    assert run_until_killed(0, words, tmp_path)
    assert not (tmp_path / "media/.nv-meta/index.sqlite").exists()
    assert (tmp_path / "media/.feedmill-work/media.scanned").exists()
    finish(words, tmp_path)
    assert len(rows(tmp_path / "media")) == 6
    assert not (tmp_path / "media/.feedmill-work/media.scanned").exists()
    assert run_until_killed(0, words, tmp_path)  # with an index there: the old one stays
    assert len(rows(tmp_path / "media")) == 6
