"""Odd and damaged tars: what WebDataset reads of them is read; what it leaves out in silence is an error."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import FeedmillError
from helpers.vla_golden import ROOT, expected

FORMATS = ROOT / "formats"
EDGE = expected("formats")["edge"]


@pytest.mark.parametrize("name", ["ok3.tar", "edge_gnu.tar", "two_concatenated.tar", "cut_at_member.tar"])
def test_whole_samples_are_those_of_webdataset(name: str) -> None:
    found = [
        [one.key, {part: [len(one.raw(part)), hashlib.sha256(one.raw(part)).hexdigest()[:16]] for part in one}]
        for one in fm.open(FORMATS / name)
    ]
    assert found == EDGE[name]["ignore"]["samples"]


@pytest.mark.parametrize(
    "name, word",
    [
        ("bad_checksum.tar", "invalid tar header"),  # webdataset: silently one sample of three
        ("cut_in_data.tar", "truncated inside this member"),
        ("cut_in_header.tar", "truncated inside a header"),  # webdataset: silently two samples
        ("not_a_tar.tar", "holds HTML"),
        ("empty.tar", "the file is empty"),
        ("ok3.tar.gz", "."),
    ],
)
def test_damage_is_an_error_of_every_way_to_open(tmp_path: Path, name: str, word: str) -> None:
    shutil.copy(FORMATS / name, tmp_path / "x.tar")
    (tmp_path / "manifest.jsonl").write_text('{"shard": "x.tar", "num_sequences": 3}\n')
    with pytest.raises(FeedmillError, match=word) as info:
        fm.open(tmp_path)
    assert "x.tar" in str(info.value)
    assert any("x.tar" in str(finding) for finding in fm.check(str(tmp_path), progress=False).findings)


def test_what_is_silent_elsewhere_is_found_by_check(tmp_path: Path) -> None:
    for name, count, kind in [
        ("cut_at_member.tar", 2, "no-end-marker"),
        ("cut_at_member.tar", 3, "wrong-count"),
        ("two_concatenated.tar", 3, "data-after-end"),
        ("edge_dup.tar", 2, "duplicate-part"),
        ("zeros.tar", 3, "wrong-count"),
    ]:
        shutil.copy(FORMATS / name, tmp_path / "x.tar")
        (tmp_path / "manifest.jsonl").write_text(f'{{"shard": "x", "num_sequences": {count}}}\n')
        kinds = [finding.kind for finding in fm.check(str(tmp_path), progress=False).findings]
        assert kind in kinds, (name, kinds)
    assert fm.check(str(FORMATS / "edge_dup.tar"), progress=False).findings[0].kind == "duplicate-part"
    shutil.copy(FORMATS / "zeros.tar", tmp_path / "x.tar")
    (tmp_path / "manifest.jsonl").write_text('{"shard": "x", "num_sequences": 0}\n')
    assert not fm.check(str(tmp_path), progress=False).findings


def test_tensors_of_the_table_of_decoders() -> None:
    (sample,) = fm.open(FORMATS / "all_extensions.tar")
    found = expected("formats")["decode"]["None"]
    for part in ("pth", "npz", "npy"):
        wanted = found[part]
        values = sample[part] if part == "npz" else {"": sample[part]}
        items = wanted["items"] if part == "npz" else {"": wanted}
        for name, value in values.items():
            assert hashlib.sha256(value.tobytes()).hexdigest() == items[name]["data_sha256"]
