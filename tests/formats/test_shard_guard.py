"""Shards that are not those that were indexed: noticed when they are read by number, by key, by a loader, over S3."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import DataError, NotFound
from feedmill.formats.energon.prepared import _Seen
from feedmill.storage import open_store
from helpers.range_server import RangeServer, range_server

META = ".nv-meta"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Two shards of five samples, of the same size."""
    samples = [{"__key__": f"k{i}", "txt": f"t {i}"} for i in range(10)]
    fm.write(str(tmp_path / "base"), samples, max_shard_samples=5, progress=False)
    return tmp_path / "base"


def swap(base: Path) -> Path:
    """Put the first shard in the place of the second."""
    first, second = sorted((base / "shards").glob("*.tar"))
    assert first.stat().st_size == second.stat().st_size
    shutil.copy(first, second)
    return second


@contextlib.contextmanager
def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """A bucket with the files of ``d`` in a folder, and an empty cache."""
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(folder / "cache"))
    with range_server() as server:
        paths = [path for path in (folder / "d").rglob("*") if path.is_file()]
        server.objects = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        for name, value in server.options.items():
            monkeypatch.setenv(f"AWS_{name.upper()}", str(value).lower())
        yield server


def without_sidecar(base: Path) -> None:
    """As Energon itself prepares it."""
    (base / META / "feedmill.shards.json").unlink()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_shard_swapped_for_one_of_its_size_is_noticed(base: Path, recorded: bool) -> None:
    if not recorded:
        without_sidecar(base)
    assert [s.key for s in fm.open(base)] == [f"k{i}" for i in range(10)]
    shard = swap(base)
    dataset = fm.open(base)
    assert [s.key for s in dataset.read(range(5))] == [f"k{i}" for i in range(5)]
    for ask in [lambda: dataset[7], lambda: dataset.read(range(10)), lambda: dataset["k7"], lambda: dataset.locate(7)]:
        with pytest.raises(DataError, match="not the shard that was indexed") as caught:
            ask()
        assert caught.value.file == str(shard) and caught.value.kind == "stale-index"
        assert "feedmill prepare" in caught.value.fix and "feedmill check" in caught.value.fix


@pytest.mark.parametrize("processes", [False, True])
def test_a_loader_says_so_too(base: Path, processes: bool) -> None:
    swap(base)
    plan = fm.Plan.over(fm.open(base), epochs=1)
    workers = fm.Workers(1, processes=True) if processes else 0
    with pytest.raises(DataError, match="not the shard that was indexed"):
        list(fm.Loader(plan, 2, rank=0, world_size=1, workers=workers))


def test_a_shard_of_another_size_is_noticed_before_its_first_sample(base: Path) -> None:
    shard = sorted((base / "shards").glob("*.tar"))[1]
    with shard.open("ab") as f:
        f.write(bytes(10240))
    with pytest.raises(DataError, match=r"expected [\d,]+ bytes, found"):
        fm.open(base)[5]


def test_a_copy_is_the_same_dataset(base: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(base, tmp_path / "copy", copy_function=shutil.copyfile)
    for path in copy.rglob("*.tar"):
        os.utime(path, ns=(5, 5))
    assert [s.key for s in fm.open(copy)] == [f"k{i}" for i in range(10)]
    assert fm.open(copy).fingerprint() == fm.open(base).fingerprint()
    swap(copy)
    with pytest.raises(DataError, match="expected content of hash"):
        fm.open(copy)[5]


def test_an_index_that_another_tool_made_since_is_believed(base: Path) -> None:
    """The sidecar names the index that it belongs to: beside another one it says nothing of the shards."""
    other = base.parent / "other"
    fm.write(
        str(other), [{"__key__": f"o{i}", "txt": f"u {i}"} for i in range(10)], max_shard_samples=5, progress=False
    )
    sidecar = (base / META / "feedmill.shards.json").read_text()
    (other / META / "feedmill.shards.json").write_text(sidecar)
    assert [s.key for s in fm.open(other)] == [f"o{i}" for i in range(10)]


def test_preparing_again_takes_the_shards_as_they_are(base: Path) -> None:
    samples = [{"__key__": f"n{i}", "txt": f"t {i}"} for i in range(5)]
    fm.write(str(base.parent / "new"), samples, progress=False)
    new = next((base.parent / "new" / "shards").glob("*.tar"))
    shutil.copy(new, sorted((base / "shards").glob("*.tar"))[1])
    with pytest.raises(DataError):
        fm.open(base)[5]
    fm.prepare(str(base), progress=False)
    assert [s.key for s in fm.open(base)][5:] == [f"n{i}" for i in range(5)]


def test_the_same_over_s3(base: Path, tmp_path: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    remote = open_store(f"{s3_bucket}/d")
    for path in base.rglob("*"):
        if path.is_file():
            remote.write_bytes(path.relative_to(base).as_posix(), path.read_bytes())
    assert [s.key for s in fm.open(remote.url)] == [f"k{i}" for i in range(10)]
    first, second = sorted(entry.path for entry in remote.files(suffixes=(".tar",)))
    remote.write_bytes(second, remote.read(first))
    with pytest.raises(DataError, match="expected content of hash") as caught:
        fm.open(remote.url)[5]
    assert caught.value.file == f"{remote.url}/{second}"


def test_a_shard_in_a_bucket_is_compared_with_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fm.write(str(tmp_path / "d"), [{"__key__": "k", "bin": bytes(500_000)}], progress=False)
    with served(tmp_path, monkeypatch) as server:
        assert len(fm.open("s3://bkt/d")[0]["bin"]) == 500_000
        assert sum(key.endswith(".tar") for key in server.keys) == 2  # the block in the middle, and the sample
        assert len(fm.open("s3://bkt/d")[0]["bin"]) == 500_000
        assert sum(key.endswith(".tar") for key in server.keys) == 3


def test_what_another_process_compared_is_not_compared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [{"__key__": f"k{number}", "bin": bytes(500_000)} for number in range(2)]
    fm.write(str(tmp_path / "d"), samples, max_shard_samples=1, progress=False)
    with served(tmp_path, monkeypatch) as server:
        one, other = fm.open("s3://bkt/d"), fm.open("s3://bkt/d")
        assert [len(one[0]["bin"]), len(other[1]["bin"])] == [500_000] * 2
        asked = sum(key.endswith(".tar") for key in server.keys)
        assert [len(one[1]["bin"]), len(other[0]["bin"])] == [500_000] * 2
        assert sum(key.endswith(".tar") for key in server.keys) == asked + 2  # the samples


def test_the_record_of_comparisons_is_read_once_as_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_bucket: str
) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    store = open_store(f"{s3_bucket}/d")
    one, other = _Seen(store), _Seen(store)

    def knows(shard: str) -> bool:
        other.look()
        return other.has(shard, "v", "h")

    def add(*shards: str) -> None:
        for shard in shards:
            one.add(shard, "v", "h")
        one.flush()

    for number in range(50):  # of 10^4 shards, each was compared after reading the lines of all before it
        assert not knows(f"{number}.tar")
        add(f"{number}.tar")
        before = other._read
        assert knows(f"{number}.tar") and other._read - before == 33
    (file,) = (tmp_path / "cache/shards").iterdir()
    line = one._line("x.tar", "v", "h")
    with file.open("ab") as f:
        f.write(line[:10])  # another process is in the middle of writing
    assert not knows("x.tar")
    with file.open("ab") as f:
        f.write(line[10:] + b"\n")
    assert knows("x.tar")
    file.unlink()  # evicted
    assert knows("0.tar") and not knows("y.tar")
    add("y.tar")
    assert knows("y.tar")
    before = file.stat().st_size
    add("1.txt", "2.txt")  # one write
    assert file.stat().st_size == before + 66 and knows("1.txt") and knows("2.txt")
    file.chmod(0o000)
    assert not knows("z.tar")


def test_facts_of_many_shards_in_a_bucket_take_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a request for each of 10^5 shards, `info` took most of an hour."""
    samples = [{"__key__": f"k{number}", "bin": bytes(number)} for number in range(12)]
    fm.write(str(tmp_path / "d"), samples, max_shard_samples=1, progress=False)
    with served(tmp_path, monkeypatch) as server:
        dataset = fm.open("s3://bkt/d")
        asked: list[str] = []
        stat = type(dataset.store).stat
        monkeypatch.setattr(type(dataset.store), "stat", lambda store, path: asked.append(path) or stat(store, path))
        facts = dataset.describe()
        assert facts["bytes"] == sum(len(data) for key, data in server.objects.items() if key.endswith(".tar"))
        assert asked == []
        del server.objects[next(key for key in server.objects if key.endswith(".tar"))]
        with pytest.raises(NotFound):
            fm.open("s3://bkt/d").describe()
