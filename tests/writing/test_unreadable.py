"""Samples that the declared sample type cannot read are not appended, and `check` tells of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import feedmill as fm
from feedmill.errors import DataError
from feedmill.indexing.check import check
from feedmill.jobs.work_folder import FOLDER
from feedmill.writing.append import append
from helpers.tars import tar_bytes
from helpers.written_datasets import files

TYPED = {"sample_type": "CaptioningSample", "field_map": {"image": "png,jpg", "caption": "json[caption],txt"}}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    made = ({"__key__": f"k{i}", "jpg": b"a picture", "txt": f"text {i}"} for i in range(6))
    fm.write(str(tmp_path / "d"), made, max_shard_samples=3, progress=False, **TYPED)
    return tmp_path / "d"


@pytest.mark.parametrize("how", ["append", "write"])
def test_samples_that_the_type_cannot_read_are_not_appended(dataset: Path, how: str) -> None:
    before = files(dataset)
    new = [
        {"__key__": "n0", "jpg": b"a picture", "json": {"caption": "one"}},
        {"__key__": "n1", "txt": "no picture"},
    ]
    fm.write(str(dataset.parent / "new"), new, progress=False)
    with pytest.raises(DataError, match="'image' is read from 'png,jpg'") as caught:
        if how == "append":
            append(str(dataset), [str(dataset.parent / "new")], workers=1, progress=False)
        else:
            fm.write(str(dataset), new, append=True, progress=False)
    assert (caught.value.record, caught.value.kind) == ("n1", "missing-field")
    assert "Nothing was appended" in str(caught.value) and "'txt'" in str(caught.value)
    assert files(dataset) == before and not (dataset / FOLDER).exists()
    fm.write(str(dataset), new[:1], append=True, progress=False)
    assert len(fm.open(dataset, raw=True)) == 7


def test_datasets_without_a_field_map_take_any_samples(tmp_path: Path) -> None:
    fm.write(str(tmp_path / "d"), [{"__key__": "a", "txt": "a"}], sample_type="CrudeWebdataset", progress=False)
    fm.write(str(tmp_path / "d"), [{"__key__": "b", "cls": 1}], append=True, progress=False)
    assert check(str(tmp_path / "d"), progress=False).findings == []


def test_check_tells_of_samples_that_the_type_cannot_read(dataset: Path) -> None:
    assert check(str(dataset), progress=False).findings == []
    (dataset / "shards/000002.tar").write_bytes(tar_bytes([("x.txt", b"1"), ("y.jpg", b"2"), ("y.txt", b"3")]))
    from feedmill.indexing.prepare import prepare

    prepare(str(dataset), progress=False)
    (found,) = check(str(dataset), progress=False).findings
    assert (found.kind, found.record) == ("missing-field", "x") and "1 of 2 samples" in str(found)
    split = dataset / ".nv-meta/split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude: [shards/000002.tar/x]"))
    assert check(str(dataset), progress=False).findings == []
