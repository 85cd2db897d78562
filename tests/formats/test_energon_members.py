"""The index of member names: as good as the database, and never trusted further than the tar's own header."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.formats.energon import members as energon_members
from feedmill.formats.energon.index import IndexRows
from feedmill.formats.energon.members import Members, write_members
from feedmill.formats.energon.prepared import PreparedShards
from feedmill.formats.tar.dataset import TarDataset
from feedmill.indexing.prepare import prepare
from feedmill.samples.open import open as open_dataset
from helpers.durations import examples
from helpers.tars import write_tar

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=30)


def rows_of(keys: list[str], parts: list[list[str]], shards: int) -> IndexRows:
    """Samples dealt to shards in runs; offsets and sizes that tell the parts apart."""
    owner = np.repeat(np.arange(len(keys)), [len(names) for names in parts])
    shard = np.sort(np.arange(len(keys)) % shards)
    first = np.searchsorted(shard, shard)
    index = np.arange(len(keys)) - first
    count = len(owner)
    none = np.zeros(len(keys), np.int64)
    offset, size = np.arange(count) * 1024 + 512, np.arange(count) + 7
    names = [name for each in parts for name in each]
    return IndexRows(shard, index, none, none, keys, shard[owner], index[owner], offset, size, names)


@settings(deadline=None, max_examples=examples(30))
@given(st.lists(TEXT, unique=True, min_size=1, max_size=60), st.integers(1, 5), st.randoms())
def test_every_member_is_found(tmp_path_factory: pytest.TempPathFactory, keys: list[str], shards: int, draw) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("members") / "m"
    parts = [draw.sample(["jpg", "json", "txt", "ü.x"], draw.randint(0, 4)) for _ in keys]
    rows = rows_of(keys, parts, min(shards, len(keys)))
    write_members(path, rows, "u" * 36)
    members = Members(path, "u" * 36)
    row = 0
    for key, names in zip(keys, parts, strict=True):
        for name in names:
            place = (int(rows.part_tar_file_id[row]), row * 1024 + 512, row + 7)
            assert members.find(f"{key}.{name}") == place
            row += 1
    assert members.find("no such name.jpg") is None


def test_many_members_fill_at_most_seven_slots_of_ten(tmp_path: Path) -> None:
    keys = [f"{i:06d}" for i in range(30_000)]
    rows = rows_of(keys, [["jpg", "json"]] * len(keys), 7)
    write_members(tmp_path / "m", rows, "")
    members = Members(tmp_path / "m", "")
    assert (tmp_path / "m").stat().st_size < 60_000 * 16 * 10 / 7 + 70_000
    found = [members.find(f"{key}.{part}") for key in keys for part in ("jpg", "json")]
    sizes = np.asarray([place[2] if place else -1 for place in found])
    assert (sizes != np.arange(60_000) + 7).sum() <= 2  # two names may share a CRC


def test_members_beyond_the_limits_are_left_to_the_database(tmp_path: Path) -> None:
    rows = rows_of(["a", "b"], [["x"], ["x"]], 1)
    rows.content_byte_offset[0] = 1 << 40
    write_members(tmp_path / "m", rows, "")
    members = Members(tmp_path / "m", "")
    assert members.find("a.x") is None
    assert members.find("b.x") == (0, 1536, 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tar(tmp_path / "0.tar", [("a.txt", b"one"), ("a.json", b"{}"), ("b.txt", b"two")])
    prepare(str(tmp_path), progress=False)
    return tmp_path


def without_database(folder: Path) -> None:
    with sqlite3.connect(folder / ".nv-meta" / "index.sqlite") as connection:
        connection.execute("DELETE FROM sample_parts")
        connection.execute("DELETE FROM samples")


def table(folder: Path) -> PreparedShards:
    dataset = open_dataset(folder, raw=True)
    assert isinstance(dataset, TarDataset) and isinstance(dataset.table, PreparedShards)
    return dataset.table


def test_it_alone_is_enough_for_plain_members(folder: Path) -> None:
    without_database(folder)
    assert [open_dataset(folder, raw=True).get(name) for name in ("a.txt", "a.json", "b.txt")] == [
        b"one",
        b"{}",
        b"two",
    ]


def test_prepared_by_someone_else_it_is_ignored(folder: Path) -> None:
    """Energon writes another uuid, and the database says where things lie now."""
    place = table(folder).find_member("b.txt")
    assert place is not None
    (folder / ".nv-meta" / "index.uuid").write_text("0" * 36)
    assert table(folder).find_member("b.txt") == place  # from the database
    without_database(folder)
    assert table(folder).find_member("b.txt") is None


@pytest.mark.parametrize("harm", [b"", b"FMMEMBR1", b"FMMEMBR1" + b"\xff" * 56, b"x" * 5_000])
def test_damaged_it_is_ignored(folder: Path, harm: bytes) -> None:
    (folder / energon_members.PATH).write_bytes(harm)
    assert open_dataset(folder, raw=True).get("b.txt") == b"two"


def test_without_an_empty_slot_the_search_ends(tmp_path: Path) -> None:
    write_members(tmp_path / "m", rows_of(["a"], [["x"]], 1), "")
    data = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(data[:64] + b"\1" * (len(data) - 64))
    assert Members(tmp_path / "m", "").find("b.x") is None


def test_wrong_places_never_give_wrong_bytes(folder: Path) -> None:
    path = folder / energon_members.PATH
    whole = bytearray(path.read_bytes())
    slots = np.frombuffer(whole, "<u8", offset=64).reshape(-1, 2)
    used = np.flatnonzero(slots[:, 0])
    slots[used] = slots[np.roll(used, 1)] & ~np.uint64(0xFFFFFF) | slots[used] & np.uint64(0xFFFFFF)
    path.write_bytes(whole)
    dataset = open_dataset(folder, raw=True)
    assert [dataset.get(name) for name in ("a.txt", "a.json", "b.txt")] == [b"one", b"{}", b"two"]
