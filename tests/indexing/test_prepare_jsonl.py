"""Preparing JSONL files: splits by ratio, growing files, changed files, repair, and Energon's files beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedmill as fm
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.indexing.check import check
from feedmill.indexing.prepare import divide, prepare
from feedmill.indexing.repair import repair
from feedmill.samples.open import open as open_dataset
from feedmill.storage import LocalStore


def lines(path: Path, count: int, first: int = 0) -> Path:
    with path.open("a") as out:
        out.writelines(json.dumps({"n": n}) + "\n" for n in range(first, first + count))
    return path


def seen(path: Path, split: str | None) -> list[int]:
    return [sample["json"]["n"] for sample in open_dataset(path, split=split)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return lines(tmp_path / "x.jsonl", 20)


def test_splits_by_ratio(file: Path) -> None:
    prepare(str(file), progress=False)
    index = Path(f"{file}.idx").read_bytes()
    report = prepare(str(file), split_ratio="8,1,1", progress=False)
    assert report.splits == {"train": 16, "val": 2, "test": 2} and report.samples == 20
    assert Path(f"{file}.idx").read_bytes() == index, "Energon's file is what it was"
    assert seen(file, "train") == list(range(16)) and seen(file, "val") == [16, 17] and seen(file, "test") == [18, 19]
    assert seen(file, None) == list(range(20))
    val = open_dataset(file, split="val")
    assert len(val) == 2 and val.splits == {"train": 16, "val": 2, "test": 2} and val.split == "val"
    assert val[1].key == "17" and val.find("17") == 1 and val.locate(1).index == 1 and val.locate(-1).key == "17"
    assert val.locate(1).offset == open_dataset(file).locate(17).offset
    assert val.describe()["splits"]["test"] == {"samples": 2, "shards": 1} and val.describe()["samples"] == 2
    assert val.read_raw([]) == []
    with pytest.raises(NotFound):
        val.find("3")
    with pytest.raises(IndexError):
        val.read([2])
    with pytest.raises(NotFound, match="It has: train, val, test"):
        open_dataset(file, split="valid")


def test_without_a_split_file_each_name_means_all(file: Path) -> None:
    prepare(str(file), progress=False)
    assert len(open_dataset(file, split="whatever")) == 20 and not open_dataset(file).splits
    assert "splits" not in open_dataset(file).describe()


def test_fingerprints_tell_splits_apart_and_know_what_grew(file: Path) -> None:
    prepare(str(file), split_ratio="8,1,1", progress=False)
    old = {name: open_dataset(file, split=name) for name in ("train", "val", "test", None)}
    assert len({dataset.fingerprint() for dataset in old.values()}) == 4
    lines(file, 5, first=20)
    with pytest.raises(DataError, match="the index does not match the file: expected"):
        open_dataset(file)
    prepare(str(file), progress=False)
    assert seen(file, "train") == [*range(16), *range(20, 25)] and seen(file, "val") == [16, 17]
    for name, before in old.items():
        now = open_dataset(file, split=name)
        assert now.fingerprint_of_first(len(before)) == before.fingerprint()
        assert (now.fingerprint() == before.fingerprint()) == (name in ("val", "test"))


def test_a_file_that_changed_is_not_read_by_its_old_splits(file: Path) -> None:
    prepare(str(file), split_ratio="8,1,1", progress=False)
    text = file.read_text()
    file.write_text(text.replace('{"n": 3}\n', "") + '{"n": 100}\n')
    with pytest.raises(DataError, match="divide the file again"):
        prepare(str(file), progress=False)
    Path(f"{file}.idx").unlink()  # as if Energon had prepared it
    with pytest.raises(DataError, match="the splits do not match the file: expected 20 records"):
        open_dataset(file, split="train")
    prepare(str(file), split_ratio="1,1", progress=False)
    assert seen(file, "val") == [*range(11, 20), 100] and check(str(file)).findings == []


def test_check_tells_of_splits_that_do_not_fit(file: Path) -> None:
    prepare(str(file), split_ratio="8,1,1", progress=False)
    assert check(str(file), read_samples=True).findings == []
    splits = Path(f"{file}.split.yaml")
    splits.write_text(splits.read_text().replace("last_at: ", "last_at: 1"))
    assert [finding.kind for finding in check(str(file)).findings] == ["stale-index"]
    splits.write_text("nothing")
    assert [finding.kind for finding in check(str(file)).findings] == ["bad-config"]


def test_repair_keeps_each_line_in_its_split(file: Path) -> None:
    prepare(str(file), split_ratio="8,1,1", progress=False)
    text = file.read_text().replace('{"n": 3}', '{"n"; 3}').replace('{"n": 17}', "{'n'; 17}")
    file.write_text(text.replace("{'n'; 17}", '{"n"; 17}'))
    assert len(repair(str(file), progress=False).dropped) == 2
    assert seen(file, "train") == [0, 1, 2, *range(4, 16)] and seen(file, "val") == [16]
    assert check(str(file)).findings == []


def test_shuffled_before_it_is_divided(tmp_path: Path) -> None:
    file = lines(tmp_path / "x.jsonl", 50)
    prepare(str(file), split_ratio="8,1,1", shuffle_tars=True, progress=False)
    parts = [seen(file, name) for name in ("train", "val", "test")]
    assert [len(part) for part in parts] == [40, 5, 5]
    assert sorted(n for part in parts for n in part) == list(range(50)) and parts[0] != list(range(40))
    assert all(part == sorted(part) for part in parts)
    first = Path(f"{file}.split.yaml").read_bytes()
    prepare(str(file), split_ratio="8,1,1", shuffle_tars=True, progress=False)
    assert Path(f"{file}.split.yaml").read_bytes() == first


@given(st.integers(1, 5000), st.lists(st.integers(0, 9), min_size=1, max_size=3).filter(any), st.booleans())
def test_every_record_is_in_one_split(count: int, ratio: list[int], shuffle: bool) -> None:
    offsets = np.arange(count + 1, dtype=np.int64) * 7
    splits = divide(offsets, [Fraction(n) for n in ratio], shuffle=shuffle)
    found = [pieces.records(np.arange(len(pieces))) for pieces in splits.parts.values()]
    assert sorted(np.concatenate(found).tolist()) == list(range(count)) and splits.fits(offsets)
    for records, share in zip(found, ratio, strict=False):
        assert abs(len(records) - count * share / sum(ratio)) < 1


@pytest.mark.parametrize(
    "options",
    [
        {"split_parts": ["train:.*"]},
        {"exclude": "x"},
        {"field_map": {"a": "json"}},
        {"sample_type": "TextSample"},
        {"tar_index_only": True},
    ],
)
def test_options_for_shards_are_refused(file: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be used with a JSONL file"):
        prepare(str(file), progress=False, **options)
    assert not Path(f"{file}.idx").exists()


def test_a_ratio_is_judged_before_the_file_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("feedmill.formats.jsonl.index.scan_lines")
    with pytest.raises(ConfigError, match="invalid split ratio"):
        prepare(str(file), split_ratio="8,-1", progress=False)


def test_as_energon_does_it_there_are_no_splits(file: Path) -> None:
    report = prepare(str(file), split_ratio="8,1,1", sample_type="TextSample", energon_exact=True, progress=False)
    assert "was ignored" in report.warnings[0] and not Path(f"{file}.split.yaml").exists()
    prepare(str(file), sample_type="CrudeWebdataset", progress=False)


def test_killed_between_its_files_the_same_command_finishes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LocalStore.build

    @contextmanager
    def killed(store: LocalStore, path: str) -> Iterator[Path]:
        with whole(store, path) as file:
            yield file
            if path.endswith(".idx"):
                raise KeyboardInterrupt

    prepare(str(file), split_ratio="8,1,1", progress=False)
    lines(file, 5, first=20)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LocalStore, "build", killed)
        prepare(str(file), progress=False)
    with pytest.raises(DataError):
        open_dataset(file)
    prepare(str(file), progress=False)
    assert seen(file, "val") == [16, 17] and len(seen(file, "train")) == 21


def test_in_recipes_and_metadatasets(file: Path) -> None:
    prepare(str(file), split_ratio="8,1,1", progress=False)
    mix = file.parent / "mix.yaml"
    mix.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\n"
        "splits:\n  train: {path: x.jsonl}\n  val: {path: x.jsonl}\n  held_out: {path: x.jsonl, split_part: test}\n"
    )
    for split, expected in (("train", range(16)), ("val", range(16, 18)), ("held_out", range(18, 20))):
        plan = fm.Recipe.load(mix, split=split, mode="validation").plan()
        assert [sample["json"]["n"] for sample in plan.read(range(len(expected)))] == list(expected)
        assert plan.length == len(expected)
