"""Prepared folders whose index is damaged: an error that names the file, never a traceback or another sample."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from feedmill.errors import ConfigError, DataError
from feedmill.formats import yamls
from feedmill.formats.energon.join import JoinSide, compute
from feedmill.formats.energon.sidecar import _as_written
from feedmill.indexing.check import check
from feedmill.indexing.prepare import prepare
from feedmill.samples.open import open as open_dataset
from helpers.tars import make_shards


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_shards(tmp_path, [200, 300])
    prepare(str(tmp_path), progress=False)
    (tmp_path / ".nv-meta/feedmill.members").unlink()  # it answers without the database
    return tmp_path


def test_a_damaged_database(folder: Path) -> None:
    index = folder / ".nv-meta/index.sqlite"
    data = index.read_bytes()
    index.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    dataset = open_dataset(folder, raw=True)
    part = JoinSide.of(dataset)
    for ask in (lambda: dataset.find("s00007"), lambda: dataset.get("s00007.txt"), lambda: compute([part, part])):
        with pytest.raises(DataError, match="index cannot be read") as caught:
            ask()
        assert caught.value.file is not None and str(index) in caught.value.file


@pytest.mark.parametrize("change", ["tar_file_id = 2", "tar_file_id = -2", "tar_file_id = 'x'", "sample_index = 200"])
def test_places_that_are_not_there(folder: Path, change: str) -> None:
    with sqlite3.connect(folder / ".nv-meta/index.sqlite") as connection:
        connection.execute(f"UPDATE samples SET {change} WHERE sample_key = 's00007'")
    dataset = open_dataset(folder, raw=True)
    with pytest.raises(DataError, match=r"it has 's00007' as sample"):
        dataset.find("s00007")
    with pytest.raises(DataError, match="index cannot be read"):
        compute([JoinSide.of(open_dataset(folder, raw=True)), JoinSide.of(dataset)])


@pytest.mark.parametrize("count", [2**63 - 1, 2**63, -1, True, 1.5])
def test_counts_that_make_no_sense(folder: Path, count: object) -> None:
    info = folder / ".nv-meta/.info.json"
    content = json.loads(info.read_text())
    content["shard_counts"] = dict.fromkeys(content["shard_counts"], count)
    info.write_text(json.dumps(content))
    with pytest.raises(DataError, match="numbers of samples"):
        open_dataset(folder, raw=True)


def excluding(folder: Path, *entries: str) -> None:
    listed = "".join(f"- {entry}\n" for entry in entries)
    (folder / ".nv-meta/split.yaml").write_text(
        f"exclude:\n{listed}split_parts: {{train: ['shards/shard_{{000..001}}.tar']}}\n"
    )


@pytest.mark.parametrize("entry", ["shards/shard_001.tar/s00007", "shards/shard_000.tar/nowhere"])
def test_an_excluded_sample_that_is_not_there_is_refused(folder: Path, entry: str) -> None:
    """Else the sample that is meant would be trained on: the first lies in another shard than its entry says."""
    excluding(folder, entry)
    for split in (None, "train"):
        with pytest.raises(ConfigError, match="is excluded, but this shard has no such sample") as caught:
            open_dataset(folder, split=split, raw=True)
        assert caught.value.file == str(folder / ".nv-meta/split.yaml") and entry in str(caught.value)
    assert [finding.kind for finding in check(str(folder), progress=False).findings] == ["unknown-exclude"]


def test_check_notes_excluded_shards_that_are_none(folder: Path) -> None:
    excluding(folder, "shards/shard_007.tar", "shards/shard_008.tar/s00007", "shards/shard_000.tar/s00007")
    report = check(str(folder), progress=False)
    assert not report.findings
    assert [note.partition(": ")[2] for note in report.notes] == [
        f"'exclude' names 'shards/shard_00{number}.tar', which is not in the index" for number in (7, 8)
    ]


def test_excluded_samples_do_not_count_in_splits(folder: Path) -> None:
    excluding(folder, "shards/shard_000.tar/s00007", "shards/shard_000.tar/s00007", "shards/shard_001.tar/s00300")
    assert open_dataset(folder, raw=True).splits == {"train": 498}
    assert len(open_dataset(folder, split="train", raw=True)) == 498


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("split_parts:\n  train:\n  - a-{000..007}.tar\n  - s/b_1.tar\n  val: []\nexclude: []\n", True),
        ("split_parts:\n  a: []\nexclude: []\n", True),
        ("split_parts:\n  train:\n  - a.tar\n  train:\n  - b.tar\nexclude: []\n", False),
        ("split_parts:\n  train:\n  - a.tar # not b\nexclude: []\n", False),
        ("split_parts:\n  train:\n  - 'a.tar'\n  - 1.tar\n  - '{0..1}.tar'\nexclude: []\n", True),
        ("split_parts:\n  train:\n  - 'a''b.tar'\n  - 1.tar\nexclude: []\n", False),
        ("split_parts:\n  train:\n  - {0..1}.tar\nexclude: []\n", False),
        ("split_parts:\n  train:\n  - a.tar\nexclude:\n- a.tar/1\n", False),
        ("split_parts:\n  train:\n  - a.tar\n", False),
        ("split_parts:\n  1.5:\n  - a.tar\nexclude: []\n", False),
    ],
)
def test_a_split_file_is_read_alike_with_and_without_the_package(text: str, read: bool) -> None:
    found = _as_written(text.encode())
    assert (found is not None) is read
    if found is not None:
        assert found | {"exclude": []} == yamls.read_config(text.encode(), "split.yaml", last_counts=True).value
