"""Stores and pools as scripts written for Energon define and use them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from feedmill.compat.energon.cache import (
    DecodeFileStore,
    FileCacheLazy,
    FileStore,
    FileStoreCachePool,
    FileStoreDecoder,
    SystemFileStore,
)
from feedmill.compat.energon.cache.file_cache_pool import CacheFileLazy
from feedmill.compat.energon.flavors.webdataset.sample_decoder import SampleDecoder

from feedmill.compat.energon.source_info import SourceInfo
from feedmill.errors import NotFound


class Own(FileStore):
    """A store with the two methods that Energon requires."""

    def __init__(self) -> None:
        self.reads: list[str] = []

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        self.reads.append(key)
        return key.encode(), SourceInfo(dataset_path="mine", index=None, shard_name=None, file_names=(key,))

    def get_path(self) -> str:
        return "mine"


class Shouting(SampleDecoder):
    def decode(self, fname: str, raw: bytes) -> Any:
        return f"{fname}: {super().decode(fname, raw)}!"


def test_a_store_needs_only_its_items_and_a_path() -> None:
    store = Own()
    sample: dict[str, Any] = {"__sources__": ()}
    assert store.get("a.txt", sample) == b"a.txt" == store.raw("a.txt") and store.reads == ["a.txt"] * 2
    (source,) = sample["__sources__"]
    assert (source.dataset_path, source.index, source.shard_name, source.file_names) == ("mine", None, None, ("a.txt",))
    assert store.source("b").names == ("b",) and store.get_many(["c", "d"]) == [b"c", b"d"]
    with pytest.raises(NotFound, match="no media metadata"):
        store.get_media_metadata("a")

    class Nothing(FileStore):
        def get_path(self) -> str:
            return "nothing"

    with pytest.raises(NotImplementedError, match="Nothing defines neither"):
        Nothing()["a"]


def test_decoders_of_ones_own() -> None:
    store = DecodeFileStore(Own(), decoder=Shouting())
    assert store["a.txt"][0] == "txt: a.txt!" and store.get("b") == "b: b'b'!" and store.get_path() == "mine"
    assert Shouting()("txt", b"x") == "txt: x!" and isinstance(Shouting(), FileStoreDecoder)

    class Length(FileStoreDecoder):
        def decode(self, fname: str, data: bytes) -> int:
            return len(data)

    assert DecodeFileStore(Own(), decoder=Length())["abc"][0] == 3


@pytest.mark.parametrize("method", ["raw", "pickle"])
def test_a_pool_reads_each_file_once(tmp_path: Path, method: str) -> None:
    pool = FileStoreCachePool(parent_cache_dir=tmp_path, method=method)
    store = Own()
    decoded = DecodeFileStore(store, decoder=Shouting())
    lazy, again = pool.get_lazy(decoded, "a"), pool.get_lazy(decoded, "a")
    assert isinstance(lazy, FileCacheLazy) and lazy.entry is again.entry and lazy.entry.refcount == 2
    assert lazy.entry.send_to_cache_future.result(timeout=120) and lazy._data is None
    assert (pool.current_cache_count, pool.current_cache_size) == (1, lazy.entry.data_size)
    assert list(pool.cache_dir.glob("*")) == [lazy.cache_path]
    sample: dict[str, Any] = {}
    assert lazy.get(sample) == again.get(sample) == "a: b'a'!" and lazy._data and store.reads == ["a"]
    assert [source.file_names for source in sample["__sources__"]] == [("a",), ("a",)]
    assert pool.current_cache_count == 0 and not list(pool.cache_dir.glob("*"))
    pool.max_cache_size, pool.max_cache_count = 7, 1
    copy = pickle.loads(pickle.dumps(pool))
    assert (pool.max_cache_size, pool.max_cache_count) == (7, 1) and type(copy) is FileStoreCachePool
    pool.close()


def test_a_value_in_the_cache_has_a_path(tmp_path: Path) -> None:
    pool = FileStoreCachePool(parent_cache_dir=tmp_path)
    lazy = pool.to_cache((1, "x"), "name")
    assert isinstance(lazy, CacheFileLazy) and lazy.cache_path is not None and lazy.cache_path.parent == pool.cache_dir
    path = lazy.cache_path
    assert lazy.get() == lazy.get() == (1, "x") and lazy.cache_path is None and not path.exists()
    pool.close()


def test_files_of_the_machine_by_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")
    monkeypatch.chdir(tmp_path)
    everything, folder = SystemFileStore(), SystemFileStore(str(tmp_path))
    assert everything.get(str(tmp_path / "a.txt")) == everything.get("a.txt") == folder.get("a.txt") == b"a"


def test_locations_equal_those_that_a_script_creates(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    found = SystemFileStore(str(tmp_path)).source("a.txt")
    own = SourceInfo(dataset_path=tmp_path, index="a.txt", shard_name="a.txt", file_names=("a.txt",))
    assert found == own and own == found and {own: 1}[own] == 1
    assert own != SourceInfo(dataset_path=tmp_path, index=1, shard_name="a.txt") and own != "a.txt"
