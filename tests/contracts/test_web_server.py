"""Datasets whose manifest or index lists their files are read from a plain web server, which cannot list a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import NotFound, StorageError
from feedmill.formats.base import Dataset
from helpers import dataset_kinds
from helpers import foreign_datasets as sourcedata
from helpers.range_server import RangeServer, range_server

COUNTS = [2, 1, 3] * 7
"""More files than are asked for one by one, where a store could list them."""
KINDS = {
    "prepared": "",
    "vla": "",
    "vla-indexed": "",
    "wids": "index.json",
    "braces": "shards/shard_{000..020}.tar",
    "tar": "one.tar",
    "jsonl": "lines.jsonl",
    "jsonl-unindexed": "lines.jsonl",
    "mds": "",
    "mds-gz": "",
    "huggingface": "",
    "lerobot-v2": "",
    "lerobot-v3": "",
    "parquet": "0.parquet",
    "arrow": "one.arrow",
    "npz": "0.npz",
    "pbin": "2.pbin",
    "ds": "{0..3}.ds",
    "megatron": "all.idx",
    "dolma": "2.npy",
}
"""What is opened of each kind below its folder."""


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    with range_server() as server:
        server.lists = False
        yield server


def served(server: RangeServer, root: Path, name: str) -> str:
    server.objects = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return f"http://127.0.0.1:{server.server_port}/bkt/{name}".rstrip("/")


def facts(dataset: Dataset) -> object:
    samples = dataset.read_raw(list(range(len(dataset))))
    return len(dataset), dataset.format, dataset.fingerprint(), [(each.key, sorted(each)) for each in samples]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_read_as_from_a_disk(
    kind: str, web: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_kinds, "COUNTS", COUNTS)
    monkeypatch.setattr(dataset_kinds, "TOTAL", sum(COUNTS))
    root = tmp_path / "data"
    root.mkdir()
    dataset_kinds.make(root, kind)
    ours = fm.open(f"{root}/{KINDS[kind]}")
    assert facts(fm.open(served(web, root, KINDS[kind]))) == facts(ours)


def test_a_missing_shard_of_a_manifest_is_named(web: RangeServer, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    url = served(web, Path(str(sourcedata.mds(root, [2, 3]))), "")
    del web.objects["shard.00001.mds"]
    with pytest.raises(NotFound) as caught:
        fm.open(url)
    assert caught.value.kind == "missing-shard" and caught.value.file == f"{url}/shard.00001.mds"


def test_a_folder_without_a_manifest_is_an_error_that_says_why(web: RangeServer, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    dataset_kinds.make(root, "plain")
    with pytest.raises(StorageError, match="cannot list") as caught:
        fm.open(served(web, root, ""))
    assert caught.value.kind == "unsupported"
