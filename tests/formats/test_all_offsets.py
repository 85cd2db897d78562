"""The file with the offsets of all shards: one request in a bucket, ignored where it is not that of the index."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import DataError
from feedmill.formats.content import block_hash, block_places, content_hash, content_hashes, middle_hash
from feedmill.formats.energon import all_offsets
from feedmill.formats.energon.all_offsets import AllOffsets
from feedmill.formats.energon.prepared import open_prepared
from feedmill.storage import LocalStore
from feedmill.storage.remote.object_store import RemoteStore
from helpers.range_server import RangeServer, range_server

COUNTS = np.asarray([3, 0, 2], np.int64)
STARTS = [np.asarray(rows, np.int64) for rows in ([0, 512, 2048, 4096], [0], [0, 1024, 1536])]
UUID = "0" * 35 + "7"


@pytest.fixture(params=["whole", "ranges"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    store = LocalStore(tmp_path)
    all_offsets.write_all(store, STARTS, UUID)
    if request.param == "ranges":
        monkeypatch.setattr(all_offsets, "_WHOLE", 0)
    return store


def test_offsets_are_those_of_the_shards_in_any_order(store: LocalStore) -> None:
    offsets = AllOffsets(store, COUNTS, UUID)
    assert offsets.is_usable()
    for shards in ([0, 1, 2], [2, 0], [1], []):
        assert [each.tolist() for each in offsets.get(shards)] == [STARTS[shard].tolist() for shard in shards]


@pytest.mark.parametrize("uuid", ["1" * 36, "", UUID[:-1]])
def test_another_state_of_the_index_does_not_use_it(store: LocalStore, uuid: str) -> None:
    assert not AllOffsets(store, COUNTS, uuid).is_usable()


def test_without_the_file_there_are_no_offsets(tmp_path: Path) -> None:
    assert not AllOffsets(LocalStore(tmp_path), COUNTS, UUID).is_usable()


@pytest.mark.parametrize("damage", ["cut", "magic", "counts", "empty"])
def test_a_corrupt_file_is_not_used(store: LocalStore, tmp_path: Path, damage: str, caplog) -> None:
    path = tmp_path / all_offsets.PATH
    data = path.read_bytes()
    damaged = {"cut": data[:-8], "magic": b"X" + data[1:], "empty": b""}
    path.write_bytes(damaged.get(damage, data))
    counts = COUNTS + 1 if damage == "counts" else COUNTS
    if damage == "cut" and not all_offsets._WHOLE:  # found when the range is read
        with pytest.raises(DataError, match="truncated"):
            AllOffsets(store, counts, UUID).get([2])
        return
    with caplog.at_level(logging.WARNING):
        assert not AllOffsets(store, counts, UUID).is_usable()
    assert ("is corrupt" in caplog.text) == (damage != "empty")


def test_a_changed_byte_is_noticed_where_the_file_is_read_as_a_whole(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    all_offsets.write_all(store, STARTS, UUID)
    path = tmp_path / all_offsets.PATH
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    assert not AllOffsets(store, COUNTS, UUID).is_usable()


@pytest.mark.parametrize("size", [1, 32 << 10, (64 << 10) - 1, 320 << 10, (320 << 10) + 1, 1_000_003])
def test_blocks_are_those_of_the_content_hash(tmp_path: Path, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    (tmp_path / "a").write_bytes(data)
    word, middle, blocks = content_hashes(LocalStore(tmp_path), "a", size)
    assert word == content_hash(LocalStore(tmp_path), "a", size)
    assert middle == middle_hash(LocalStore(tmp_path), "a", size)
    at, length = block_places(size)
    assert at[0] == 0 and at == sorted(set(at)) and (len(at) == 1 or at[-1] + length == size)
    assert blocks == "".join(block_hash(data[offset : offset + length]) for offset in at)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    samples = [{"__key__": f"k{number:04}", "bin": rng.bytes(9_000)} for number in range(600)]
    fm.write(str(tmp_path / "d"), samples, max_shard_samples=100, progress=False)
    return tmp_path / "d"


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with range_server() as running:
        for path in folder.rglob("*"):
            if path.is_file():
                running.objects[path.relative_to(folder.parent).as_posix()] = path.read_bytes()
        yield running


def loader(server: RangeServer) -> fm.Loader:
    plan = fm.Plan.over(open_prepared(RemoteStore("s3://bkt/d", **server.options), "d"), shuffle="block", epochs=1)
    return fm.Loader(plan, 32)


def keys(loader: fm.Loader) -> list[str]:
    return [str(key) for batch in loader for key in batch["__key__"]]


def test_an_epoch_takes_one_request_for_offsets_and_none_for_comparisons(
    server: RangeServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedmill.storage.fetching.read_ahead._SOON_SECONDS", 30.0)
    monkeypatch.setattr("feedmill.formats.energon.prepared._WAIT", 30.0)
    expected = keys(fm.Loader(fm.Plan.over(fm.open(folder, raw=True), shuffle="block", epochs=1), 32))
    server.lists = False  # sizes and versions come with the bytes
    assert sorted(keys(loader(server))) == sorted(expected)
    assert [key for key in server.keys if key.endswith((".idx", ".offsets"))] == ["d/.nv-meta/feedmill.offsets"]
    assert not [1 for begin, end in server.asked if end - begin == 32 << 10]
    assert sum(key.endswith(".tar") for key in server.keys) <= 12


@pytest.mark.parametrize("when", ["at opening", "when it is needed"])
def test_with_a_cache_the_file_is_fetched_once(
    when: str, server: RangeServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_SIZE", "1GB")
    for name, value in server.options.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", str(value).lower())
    if when == "when it is needed":
        monkeypatch.setattr(all_offsets, "_SMALL", 0)
    path, expected = f"d/{all_offsets.PATH}", keys(fm.Loader(fm.Plan.over(fm.open(folder, raw=True), epochs=1), 32))
    for _ in range(2):
        assert keys(fm.Loader(fm.Plan.over(fm.open("s3://bkt/d", raw=True), epochs=1), 32)) == expected
    spans = [end - begin for key, (begin, end) in zip(server.keys, server.asked, strict=True) if key == path]
    assert sorted(spans) == [64, 64, len(server.objects[path])]
    server.objects[path] = server.objects[path][:-1] + b"\1"  # another version, which is corrupt
    assert keys(fm.Loader(fm.Plan.over(fm.open("s3://bkt/d", raw=True), epochs=1), 32)) == expected
    assert any(key.endswith(".idx") for key in server.keys)


def test_a_swapped_shard_is_noticed_by_what_was_read_ahead(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedmill.storage.fetching.read_ahead._SOON_SECONDS", 30.0)
    monkeypatch.setattr("feedmill.formats.energon.prepared._WAIT", 30.0)
    first, second, *_ = sorted(key for key in server.objects if key.endswith(".tar"))
    server.objects[second] = server.objects[first]
    with pytest.raises(DataError, match="expected content of hash"):
        keys(loader(server))
    assert not [1 for begin, end in server.asked if end - begin == 32 << 10]


def test_without_the_file_each_shards_offsets_are_read(server: RangeServer, folder: Path) -> None:
    del server.objects["d/.nv-meta/feedmill.offsets"]
    assert len(keys(loader(server))) == 600
    assert sum(key.endswith(".idx") for key in server.keys) == 6


def test_changes_of_a_dataset_write_it_again(folder: Path) -> None:
    more = folder.parent / "more"
    fm.write(str(more), [{"__key__": f"n{number}", "bin": b"x"} for number in range(5)], progress=False)
    fm.edit.append(str(folder), [str(more)], progress=False)
    info = open_prepared(LocalStore(folder), "d")
    uuid = (folder / ".nv-meta/index.uuid").read_text()
    together = AllOffsets(LocalStore(folder), info.table.counts, uuid)
    assert together.is_usable()
    for shard, found in enumerate(together.get(range(len(info.table.shards)))):
        assert found.tolist() == info.table.offsets(shard).tolist()


def test_over_a_slow_network_the_first_batch_is_requested_on_its_own(server: RangeServer) -> None:
    server.fault = lambda number, begin, end: "drip" if end - begin > 200_000 else None
    server.rate = 1 << 18
    found = iter(loader(server))
    first = next(found)
    assert len(first["__key__"]) == 32
    alone = [(begin, end) for begin, end in server.asked if 9_000 < end - begin < 20_000]
    assert len(alone) >= 32
    found.close()


def test_check_names_a_damaged_file_and_one_of_another_index(folder: Path) -> None:
    path = folder / ".nv-meta/feedmill.offsets"
    whole = path.read_bytes()
    assert not fm.check(str(folder), progress=False).findings
    for damaged in (whole[:20], whole[:-1], b"", whole[:-8] + bytes(8)):
        path.write_bytes(damaged)
        (finding,) = fm.check(str(folder), progress=False).findings
        assert finding.kind == "bad-index" and str(finding.file).endswith("feedmill.offsets")
    path.write_bytes(whole)
    all_offsets.write_all(LocalStore(folder), [], "0" * 36)
    report = fm.check(str(folder), progress=False)
    assert not report.findings and any("older index" in note for note in report.notes)
    fm.prepare(str(folder), tar_index_only=True, progress=False)
    report = fm.check(str(folder), progress=False)
    assert not report.findings and not report.notes
