"""Files by name: datasets, folders, JSONL files and a sample's own parts as stores; nothing leaves its folder."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.indexing.prepare import prepare
from feedmill.samples.crude import CrudeSample, basic_sample_keys
from feedmill.samples.decode import Decoder
from feedmill.samples.open import open as open_dataset
from feedmill.samples.stores import (
    DatasetFileStore,
    DecodedFileStore,
    PrimaryFileStore,
    open_file_store,
    store_of,
)
from feedmill.samples.types import TextSample
from feedmill.storage.local import LocalStore
from helpers.digests import GOLDEN, expected
from helpers.tars import write_tar

POLY = GOLDEN / "crude_polylithic"
GOLDEN_STORES = [
    ("crude_polylithic", "images", "{}"),
    ("crude_polylithic", "sounds", "filesystem://{}"),
    ("media_wds", "ds", "{}"),
]


@pytest.mark.parametrize(("case", "name", "url"), GOLDEN_STORES)
def test_golden_file_stores(case: str, name: str, url: str) -> None:
    store = open_file_store(url.format(GOLDEN / case / name))
    for key, golden in expected(case)["filestore"][name].items():
        data, source = store[key]
        assert (len(data), hashlib.sha256(data).hexdigest()) == (golden["len"], golden["sha256"])
        assert (source.index, source.names) == (key, (key,)) and source.where.startswith(str(GOLDEN / case / name))
        if golden["media_metadata"] is None:
            with pytest.raises(NotFound, match=r"no media metadata of this file.*prepare-media"):
                store.get_media_metadata(key)
            continue
        wanted = dict(golden["media_metadata"])
        found = store.get_media_metadata(key)
        assert type(found).__name__ == {"image": "ImageMetadata", "av": "AVMetadata"}[wanted.pop("type")]
        assert {name: value for name, value in asdict(found).items() if value is not None} == wanted


def test_bulk_is_the_same_as_one_by_one() -> None:
    for url in (str(POLY / "images"), f"filesystem://{POLY / 'sounds'}"):
        store = open_file_store(url)
        names = list(expected("crude_polylithic")["filestore"][Path(url).name])[::-1]
        assert store.get_many(names * 2) == [store.get(name) for name in names * 2]
        assert pickle.loads(pickle.dumps(store)).get(names[0]) == store.get(names[0])


@pytest.mark.parametrize("name", ["/etc/passwd", "../qa.jsonl", "deep/../../qa.jsonl", "a\0b", "deep/.."])
def test_no_name_leaves_the_folder(name: str) -> None:
    store = open_file_store(f"filesystem://{POLY / 'sounds'}")
    for ask in (store.get, store.source, store.get_media_metadata):
        with pytest.raises(ConfigError, match="leaves the folder"):
            ask(name)


def test_folders_say_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    store = open_file_store(f"filesystem://{tmp_path}")
    assert store.get("./a.txt") == b"one"
    with pytest.raises(NotFound, match=r"b\.txt"):
        store.get("b.txt")
    with pytest.raises(NotFound, match="file name is empty"):
        store.get("")
    with pytest.raises(FeedmillError, match="folder"):
        (tmp_path / "d").mkdir()
        store.get("d")
    with pytest.raises(NotFound, match=r"no media metadata.*prepare-media --media-by-extension"):
        store.get_media_metadata("a.txt")
    with pytest.raises(NotFound, match="no such folder"):
        open_file_store(f"filesystem://{tmp_path}/none")
    with pytest.raises(FeedmillError, match="filesystem://PATH"):
        open_file_store(str(tmp_path))


def test_links_in_a_folder_are_its_makers_word(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far/x.txt").write_text("x")
    (tmp_path / "near").mkdir()
    (tmp_path / "near/link.txt").symlink_to("../far/x.txt")
    assert open_file_store(f"filesystem://{tmp_path}/near").get("link.txt") == b"x"


def test_decoded_values_and_their_errors(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}')
    (tmp_path / "a.b").mkdir()
    (tmp_path / "a.b/c.d.json").write_text("[2]")
    (tmp_path / "bad.json").write_text("{")
    store = DecodedFileStore(open_file_store(f"filesystem://{tmp_path}"), Decoder())
    assert store.get("a.json") == {"x": 1} and store["a.b/c.d.json"][0] == [2]
    with pytest.raises(DataError, match=rf"{tmp_path} 'bad.json'.*cannot be decoded as json"):
        store.get("bad.json")


def test_lines_of_a_jsonl_file() -> None:
    store = open_file_store(str(POLY / "qa.jsonl"))
    assert json.loads(store.get("3"))["id"] == 3 and store.get("3.json") == store.get("3")
    assert store.raw_many(["5", "0.json"]) == [store.get("5"), store.get("0")]
    assert DecodedFileStore(store, Decoder()).get("2")["id"] == 2
    assert store.source("4").names == ("4.json",)
    for name in ("6", "x", "-1", "03", "1.txt"):
        with pytest.raises(NotFound):
            store.get(name)
    with pytest.raises(NotFound, match="no media metadata"):
        store.get_media_metadata("1")


def test_the_primary_data_set_and_the_samples_own_parts() -> None:
    dataset = open_dataset(POLY / "texts", raw=True, decode=None)
    sample = dataset.read([1])[0]
    store = PrimaryFileStore(store_of(dataset), sample)
    assert store.get(".txt") == sample.raw("txt") and store.get("k12.txt") == dataset.get("k12.txt")
    assert store.source(".txt").names == ("k01.txt",)
    with pytest.raises(NotFound, match=r"has no part 'png' \(it has: json, txt\)"):
        store.get(".png")


def test_sources_are_tracked() -> None:
    store = open_file_store(str(POLY / "images"))
    crude = open_dataset(POLY / "texts").read([0])[0]
    typed = TextSample(__key__="a", __restore_key__=(), text="x")
    mapping: dict[str, Any] = {"__sources__": None}
    for sample in (crude, typed, mapping, object()):
        store.get("img_1.png", sample)
        store.get_many(["img_3.png", "img_1.png"], sample)
    names = [("img_1.png",), ("img_3.png",), ("img_1.png",)]
    assert [source.names for source in crude.sources][1:] == names
    assert [source.names for source in typed.__sources__ or ()] == names
    source = mapping["__sources__"][1]
    assert (source.dataset_path, source.shard_name, source.file_names) == (str(POLY / "images"), "a-1.tar", names[1])


def test_crude_samples_are_lazy_dicts() -> None:
    asked: list[str] = []

    def decode(name: str, data: bytes) -> Any:
        asked.append(name)
        return data.decode()

    sample = open_dataset(POLY / "texts", decode=decode).read([2])[0]
    crude = CrudeSample(sample)
    assert isinstance(crude, dict) and not asked and crude["__key__"] == "k02" and "txt" in crude
    assert crude["txt"] == crude.get("txt") == "text 0/2" and asked == ["txt"]
    assert crude.get("png") is None and crude.get("png", 3) == crude.pop("png", 3) == 3
    keys = basic_sample_keys(crude)
    assert keys["__restore_key__"] == ("Webdataset", 2) and keys["__sources__"] == (sample.source,)
    assert crude["__shard__"] == "t0.tar" and keys["__subflavors__"] == {"from_dataset": 1, "kind": "none"}
    whole = {**crude}
    assert whole["json"].startswith("{") and whole == dict(crude) == crude.copy() == {} | crude == crude | {}
    assert json.loads(pickle.loads(pickle.dumps(crude))["json"]) == {"image": "sub dir/img_2.png", "q": 2}
    assert {name for name, _ in crude.items()} == set(crude) and crude == whole
    crude["new"] = 1
    assert crude.pop("json") == whole["json"] and "json" not in crude and crude.setdefault("new", 2) == 1
    with pytest.raises(KeyError):
        crude["json"]
    extra = basic_sample_keys(sample, (sample.source,))
    assert extra["__sources__"] == (sample.source, sample.source)


def test_a_lookup_by_name_opens_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shard in range(3):
        files = [(f"s{shard}_{i}.txt", f"{shard}/{i}".encode()) for i in range(50)]
        write_tar(tmp_path / f"{shard}.tar", files)
    prepare(str(tmp_path), split_ratio="1,0,0")
    store = open_file_store(str(tmp_path))
    assert isinstance(store, DatasetFileStore)
    for shard in range(3):
        store.get(f"s{shard}_0.txt")
    opened: list[Any] = []
    real = os.open

    def counting(*arguments: Any, **others: Any) -> int:
        opened.append(arguments[0])
        return real(*arguments, **others)

    monkeypatch.setattr(os, "open", counting)
    monkeypatch.setattr("builtins.open", lambda *a, **k: opened.append(a[0]) or io_open(*a, **k))
    names = [f"s{shard}_{i}.txt" for i in range(50) for shard in range(3)]
    assert store.get_many(names) == [f"{shard}/{i}".encode() for i in range(50) for shard in range(3)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(store.get, names)) == store.get_many(names)
    assert not opened


def test_many_members_of_a_remote_shard_come_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_file_store(str(POLY / "images"))
    assert isinstance(store, DatasetFileStore)
    names = list(expected("crude_polylithic")["filestore"]["images"]) * 2
    wanted = store.get_many(names)
    requests: list[str] = []
    real = LocalStore.read_ranges

    def counting(self: LocalStore, path: str, offsets: Any, lengths: Any) -> Any:
        requests.append(path)
        return real(self, path, offsets, lengths)

    monkeypatch.setattr(LocalStore, "read_ranges", counting)
    monkeypatch.setattr(LocalStore, "is_local", False)
    assert store.get_many(names) == wanted and sorted(requests) == ["a-0.tar", "a-1.tar"]
    with pytest.raises(NotFound, match=r"nothing\.png|there is no sample"):
        store.get_many([*names, "nothing.png"])


io_open = open
