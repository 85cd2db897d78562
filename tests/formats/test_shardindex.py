"""The kept index of plain tars: made once, brought up to date, never trusted blindly."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedmill.errors import DataError, NotFound
from feedmill.formats.tar import index as shardindex
from feedmill.formats.tar.dataset import ScannedShards, TarDataset
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore
from helpers import warm
from helpers.durations import examples
from helpers.tars import make_shards, write_tar

COUNTS = [3, 2, 4]


@pytest.fixture(autouse=True)
def keep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shardindex, "INDEX_FROM", 0)
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_shards(tmp_path / "data", COUNTS)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards that are scanned."""
    seen: list[str] = []
    scan = shardindex.scan_shard

    def noted(store: object, path: str, **options: object) -> object:
        seen.append(path)
        return scan(store, path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(shardindex, "scan_shard", noted)
    return seen


def test_shards_are_scanned_once(root: Path, scans: list[str]) -> None:
    first = open_dataset(root)
    assert len(first) == 9 and len(scans) == 3
    assert (root / ".feedmill/shards").is_file() and first.describe()["indexed"]
    again = open_dataset(root)
    assert len(scans) == 3
    assert [s.key for s in again] == [s.key for s in first] and again.fingerprint() == first.fingerprint()
    some = open_dataset(root / "shards/shard_00{2,0}.tar")  # another folder, with an index of its own
    assert len(some) == 7 and len(scans) == 5


def test_changed_and_new_shards_are_noticed(root: Path, scans: list[str]) -> None:
    before = open_dataset(root).fingerprint()
    write_tar(root / "shards/shard_001.tar", [("new.json", b'{"n": 77}')])
    write_tar(root / "shards/shard_003.tar", [("more.json", b'{"n": 99}')])
    del scans[:]
    after = open_dataset(root)
    assert sorted(scans) == ["shards/shard_001.tar", "shards/shard_003.tar"]
    assert len(after) == 9 and after["new"]["json"] == {"n": 77} and after.find("more") == 8
    assert after.fingerprint() != before
    status = (root / "shards/shard_000.tar").stat()
    os.utime(root / "shards/shard_000.tar", ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    del scans[:]
    open_dataset(root)
    assert scans == ["shards/shard_000.tar"]


def test_a_change_behind_an_open_data_set_is_noticed_when_read(root: Path) -> None:
    dataset = open_dataset(root)
    path = root / "shards/shard_002.tar"
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(DataError, match=r"shard_002.tar.*Open the dataset again"):
        dataset[6]


def test_the_same_as_without_an_index(root: Path) -> None:
    store = LocalStore(root)
    shards = [entry.path for entry in store.files(suffixes=(".tar",))]
    kept, scanned = shardindex.plain_shards(store, shards), ScannedShards(store, shards)
    assert isinstance(kept, shardindex.IndexedShards)
    assert kept.counts.tolist() == scanned.counts.tolist()
    assert kept.fingerprint() == scanned.fingerprint() and kept.fingerprint(2) == scanned.fingerprint(2)
    for shard in range(3):
        assert np.array_equal(kept.offsets(shard), scanned.offsets(shard))


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shards=st.lists(st.lists(st.text("abü/_7", min_size=1, max_size=8), max_size=6), min_size=1, max_size=4))
def test_keys_of_all_kinds_are_found(shards: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("keys")
    for number, keys in enumerate(shards):
        write_tar(root / f"{number}.tar", [(f"{key}.txt", b"x") for key in keys])
    store = LocalStore(root)
    names = [f"{number}.tar" for number in range(len(shards))]
    scanned = ScannedShards(store, names)
    for _ in range(2):  # as scanned, and as read back
        kept = shardindex.plain_shards(store, names)
        for scan in scanned.scans:
            for key in scan.keys:
                assert kept.find(key) == scanned.find(key)
        with pytest.raises(NotFound):
            kept.find("nope")


@pytest.mark.parametrize("damage", [b"", b"FMARRAY1", b"FMARRAY1" + b"\xff" * 100, b"rubbish" * 100])
def test_a_damaged_index_is_made_anew(root: Path, damage: bytes, scans: list[str]) -> None:
    open_dataset(root)
    (root / ".feedmill/shards").write_bytes(damage)
    assert len(open_dataset(root)) == 9 and len(scans) == 6
    assert len(open_dataset(root)) == 9 and len(scans) == 6


def test_read_only_data_keep_it_in_the_cache(root: Path, tmp_path: Path, scans: list[str]) -> None:
    (root / ".feedmill").write_text("a file where the folder would be")  # as root, permissions do not refuse
    assert len(open_dataset(root)) == 9
    assert len(list((tmp_path / "cache/shards").iterdir())) == 1
    assert len(open_dataset(root)) == 9 and len(scans) == 3


def test_nowhere_to_keep_it_is_said(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / ".feedmill").write_text("")
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "blocked"))
    assert len(open_dataset(root)) == 9
    assert "cannot be written" in caplog.text


def test_a_damaged_shard_is_named(root: Path) -> None:
    path = root / "shards/shard_001.tar"
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(DataError, match=r"shard_001.tar"):
        open_dataset(root)


def test_killed_while_it_is_made(tmp_path: Path) -> None:
    """Killed at any moment, the old state holds, and the next opening gives everything."""
    root = make_shards(tmp_path / "many", [40] * 60)
    program = (
        "import sys, feedmill as fm\nfrom feedmill.formats.tar import index\nindex.INDEX_FROM = 0\n"
        "print('ready', flush=True)\nfm.open(sys.argv[1])"
    )
    for delay in (0.0, 0.01, 0.02, 0.04, 0.08):
        run = warm.Popen([sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE)
        assert run.stdout is not None and run.stdout.readline()
        time.sleep(delay)
        run.kill()
        run.wait()
        run.stdout.close()
    dataset = open_dataset(root)
    assert isinstance(dataset, TarDataset) and len(dataset) == 2400
    assert [s.key for s in dataset.read([0, 2399])] == ["s00000", "s02399"]
    assert len(open_dataset(root)) == 2400


def test_one_tar_is_opened_whatever_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "a.tar", [("0.txt", b"x")])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/gone.tar").symlink_to("/no/such.tar")
    monkeypatch.setattr(LocalStore, "files", lambda *_, **__: pytest.fail("the folder was listed"))
    assert open_dataset(tmp_path / "a.tar")[0].raw("txt") == b"x"
