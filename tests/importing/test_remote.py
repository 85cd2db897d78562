"""Sources and outputs in a bucket: the same as on a disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.demo.sample_data import write_sample_data
from feedmill.errors import ConfigError, NotFound
from feedmill.storage import LocalStore, open_store
from helpers import foreign_datasets as sourcedata


def test_a_bucket_gives_what_a_disk_gives(s3_bucket: str, tmp_path: Path) -> None:
    write_sample_data(LocalStore(tmp_path / "data"))
    write_sample_data(open_store(f"{s3_bucket}/data"))
    for kind in ("photos", "texts"):
        fm.import_data(tmp_path / "data" / kind, tmp_path / kind, progress=False, workers=1)
        report = fm.import_data(f"{s3_bucket}/data/{kind}", f"{s3_bucket}/{kind}", progress=False, workers=1)
        assert not report.left_out
        here, there = LocalStore(tmp_path / kind), open_store(f"{s3_bucket}/{kind}")
        shards = [entry.path for entry in here.files() if entry.path.endswith((".tar", ".jsonl"))]
        assert shards and [here.read(path) for path in shards] == [there.read(path) for path in shards]
    assert fm.open(f"{s3_bucket}/photos")["card_03"].caption == "a white card"
    with pytest.raises(ConfigError, match="not empty"):
        fm.import_data(tmp_path / "data/texts", f"{s3_bucket}/texts", progress=False, workers=1)


def test_documents_that_others_replace_do_not_stay_in_a_bucket(s3_bucket: str, tmp_path: Path) -> None:
    out = open_store(f"{s3_bucket}/out")
    for name, texts, files in (("a", 20, 8), ("b", 1, 1)):
        for number in range(texts):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{number:02d}.txt").write_text(f"{name} {number} " + "x" * 200)
        options = {"max_shard_size": 1200, "overwrite": True, "workers": 1, "progress": False}
        report = fm.import_data(tmp_path / name, out.url, **options)
        assert report.samples == texts and len([*out.files()]) == report.outputs == files


def test_one_object_as_a_source(s3_bucket: str, tmp_path: Path) -> None:
    open_store(f"{s3_bucket}/raw").write_bytes("a.csv", b"text\nrow\n")
    fm.import_data(f"{s3_bucket}/raw/a.csv", tmp_path / "out", progress=False, workers=1)
    lines = (tmp_path / "out/documents/000000.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["a.csv:1"]
    with pytest.raises(NotFound, match="no such file"):
        fm.import_data(f"{s3_bucket}/none", tmp_path / "no", progress=False, workers=1)


def test_episodes_in_a_bucket_are_those_of_a_disk(s3_bucket: str, tmp_path: Path) -> None:
    root = sourcedata.lerobot_v3(tmp_path / "robot", [5, 4, 3], "observation.images.top")
    there = open_store(f"{s3_bucket}/robot")
    for entry in LocalStore(root).files():
        there.write_bytes(entry.path, LocalStore(root).read(entry.path))
    fm.import_data(root, tmp_path / "out", progress=False, workers=1)
    report = fm.import_data(f"{s3_bucket}/robot", f"{s3_bucket}/out", progress=False, workers=1)
    assert report.samples == 3 and not report.left_out
    here, made = LocalStore(tmp_path / "out"), open_store(f"{s3_bucket}/out")
    shards = [entry.path for entry in here.files() if entry.path.endswith(".tar")]
    assert len(shards) == 2 and [here.read(path) for path in shards] == [made.read(path) for path in shards]
