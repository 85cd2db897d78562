"""What a conversion leaves out is said before, and refused where it is data."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError, MissingExtra
from feedmill.formats.registry import targets
from helpers.conversion_sources import lines, parts, sample_set
from helpers.foreign_datasets import huggingface, lerobot_v3, parquet
from helpers.tars import tar_bytes, write_tar
from helpers.vla_golden import ROOT


def convert(source: Path, destination: Path, to: str, **options: Any) -> Any:
    return fm.convert(source, destination, to, **{"workers": 1, "progress": False, **options})


def lost(report: Any) -> str:
    return " | ".join(loss.what for loss in report.plan.losses)


def raw(root: Path) -> Path:
    lines(root / "web.jsonl", 20)
    for number in range(60):
        (root / f"note_{number:03}.txt").write_text("a note")
    return root


def test_texts_beside_lines_are_not_left_out_without_a_word(tmp_path: Path) -> None:
    source = raw(tmp_path / "raw")
    with pytest.raises(ConfigError, match=r"60 files of text \(note_000\.txt, .* and 57 more\) would be skipped"):
        convert(source, tmp_path / "x", "jsonl")
    assert not (tmp_path / "x").exists()
    (source / "README.md").write_text("about")
    report = convert(source, tmp_path / "x", "jsonl", allow_loss=True)
    assert report.samples == 20
    proof = json.loads((tmp_path / "x/.feedmill/convert.json").read_text())
    said = [loss["what"] for loss in report.as_dict()["plan"]["losses"]]
    assert proof["losses"] == said and said[0].startswith("60 files of text")
    assert said[1] == "1 file (README.md) beside the data"


@pytest.mark.parametrize("other", ["a.csv", "sub/a.txt.gz", "a.tar", "a.parquet", "a.jpg"])
def test_other_kinds_of_data_are_refused(tmp_path: Path, other: str) -> None:
    source = lines(tmp_path / "s/web.jsonl", 5).parent
    (source / other).parent.mkdir(exist_ok=True)
    (source / other).write_bytes(b"data")
    if other == "a.tar":  # then it is a folder of tars, with lines beside them
        write_tar(source / other, [("0.txt", b"a")])
    if other == "a.parquet":
        (tmp_path / "p").mkdir()
        shutil.copy(parquet(tmp_path / "p", [3]) / "0.parquet", source / other)
    with pytest.raises(ConfigError, match=r": 1 file of .* would be skipped"):
        convert(source, tmp_path / "x", "parquet")
    assert convert(lines(tmp_path / "s/web.jsonl", 5), tmp_path / "x.parquet", "parquet").plan.losses[0].unread is False


def test_tars_that_the_index_or_the_manifest_does_not_have_are_not_left_out_without_a_word(tmp_path: Path) -> None:
    prepared = sample_set(tmp_path / "prepared")
    write_tar(prepared / "shards/new.tar", [("0.txt", b"a")])
    listed = tmp_path / "listed"
    shutil.copytree(ROOT / "robotics", listed, ignore=shutil.ignore_patterns("expected.json"))
    rows = (listed / "manifest.jsonl").read_text().splitlines()
    (listed / "manifest.jsonl").write_text(rows[0] + "\n")
    packed = tmp_path / "packed"
    packed.mkdir()
    write_tar(packed / "a.tar", [("0.txt", b"a")])
    (packed / "b.tar.gz").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"compressed ones without a plain tar of the same name: 1 file \(b.tar.gz\)"):
        convert(packed, tmp_path / "x", "wds")
    for source, name in ((prepared, "shards/new.tar"), (listed, "shard_000001.tar")):
        with pytest.raises(ConfigError, match=rf"1 file of tars that are not part of the dataset \({name}\)"):
            convert(source, tmp_path / "x", "wds")
        assert convert(source, tmp_path / f"of {source.name}", "wds", allow_loss=True).samples


def test_nothing_is_said_where_all_is_read(tmp_path: Path) -> None:
    assert convert(sample_set(tmp_path / "s"), tmp_path / "w", "wds").plan.losses == []
    assert convert(tmp_path / "w", tmp_path / "v", "vla").plan.losses == []
    assert convert(tmp_path / "v", tmp_path / "again", "wds").plan.losses == []
    assert convert(huggingface(tmp_path / "h", [4]), tmp_path / "hp", "parquet").plan.losses == []
    assert convert(tmp_path / "hp", tmp_path / "pp", "parquet").plan.losses == []


def test_lines_have_keys_unless_no_sample_has_more_than_json(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    write_tar(folder / "a.tar", [("cat.txt", b"a cat"), ("cat.json", b'{"n": 1}'), ("dog.json", b'{"n": 2}')])
    report = convert(folder, tmp_path / "o.jsonl", "jsonl")
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert rows == [{"__key__": "cat", "txt": "a cat", "json": {"n": 1}}, {"__key__": "dog", "json": {"n": 2}}]
    assert report.plan.losses == []
    convert(tmp_path / "o.jsonl", tmp_path / "back", "wds")
    assert [key for key, _ in parts(tmp_path / "back")] == ["cat", "dog"]


def test_the_proof_is_of_keys_too(tmp_path: Path) -> None:
    found = set()
    for name in ("dog", "cow"):
        write_tar(tmp_path / f"{name}.tar", [("cat.txt", b"a cat"), (f"{name}.json", b'{"n": 2}')])
        found.add(convert(tmp_path / f"{name}.tar", tmp_path / f"{name}.jsonl", "jsonl").digest)
    assert len(found) == 2
    captions = ROOT / "image_caption"  # the sample without a caption
    report = convert(captions, tmp_path / "c.jsonl", "jsonl", fields=["txt", "json"], on_error="skip")
    keys = [json.loads(line)["__key__"] for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert len(keys) == report.samples and set(keys) <= {s.key for s in fm.open(captions, raw=True)}


def test_what_lies_beside_robots_goes_along_or_is_named(tmp_path: Path) -> None:
    names = ("stats.json", "preprocessing_config.yaml")
    report = convert(ROOT / "robotics", tmp_path / "v", "vla")
    for name in names:
        assert (tmp_path / "v" / name).read_bytes() == (ROOT / "robotics" / name).read_bytes()
    assert "stats.json" not in lost(report) and "1 file (expected.json)" in lost(report)
    assert set(names) <= set(json.loads((tmp_path / "v/.feedmill/convert.json").read_text())["files"])
    again = convert(tmp_path / "v", tmp_path / "v2", "vla", workers=2)
    assert again.plan.losses == [] and again.digest == report.digest
    for to in ("wds", "webdataset", "mds", "parquet"):
        said = lost(convert(ROOT / "robotics", tmp_path / to, to, dry_run=True))
        assert "stats.json, preprocessing_config.yaml: VLA Foundry" in said
    assert "stats.json" in lost(convert(ROOT / "robotics", tmp_path / "f", "vla", dry_run=True, fields=["lowdim.npz"]))


def test_what_lerobot_says_beside_its_samples_is_named(tmp_path: Path) -> None:
    source = lerobot_v3(tmp_path / "l", [3, 2])
    for to in ("wds", "parquet", "vla"):
        said = lost(convert(source, tmp_path / to, to, dry_run=True))
        assert "frames per second" in said and ("windows" in said) == (to == "vla")


def test_parts_that_are_all_bytes_are_refused_before_a_loss_is_offered(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("a.input_ids.pth", b"\x80"), ("b.input_ids.pth", b"\x80")])
    with pytest.raises(ConfigError, match=r"all parts are bytes \('input_ids\.pth'\).*nothing would be left") as error:
        convert(tmp_path / "a.tar", tmp_path / "o.jsonl", "jsonl")
    assert "--allow-loss" not in str(error.value)


def test_a_result_without_samples_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": \n{"a": 1\n')
    with pytest.raises(DataError, match=r"nothing to convert: 0 of 2 rows kept \([12]: "):
        convert(tmp_path / "a.jsonl", tmp_path / "o.jsonl.gz", "jsonl.gz", on_error="skip")


@pytest.mark.parametrize(
    "to", [to for to in targets() if to not in ("pbin", "ds", "megatron", "dolma", "vla-text", "lerobot")]
)
def test_a_destination_may_end_in_the_name_of_its_format(tmp_path: Path, to: str) -> None:
    source = lines(tmp_path / "a.jsonl", 5) if to.startswith("jsonl.") else sample_set(tmp_path / "s", 5, binary=False)
    for again in (False, True):
        report = convert(source, tmp_path / f"x.{to}", to, overwrite=again)
        assert report.samples == 5
    assert (tmp_path / f"x.{to}").is_file() == (to.startswith("jsonl") or to == "parquet")


@pytest.mark.parametrize("kind", ["rows", "samples"])
def test_a_table_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    source = lines(tmp_path / "a.jsonl", 5) if kind == "rows" else sample_set(tmp_path / "s", 5)
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"feedmill\[arrow\]"):
        convert(source, tmp_path / "out", "parquet")
    assert not (tmp_path / "out").exists()


def test_what_is_not_converted_at_once_says_the_way(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Convert it to jsonl, and that file to jsonl\.gz"):
        convert(sample_set(tmp_path / "s", 3), tmp_path / "o.jsonl.gz", "jsonl.gz")
    lines(tmp_path / "t/documents/a.jsonl.gz", 3)
    with pytest.raises(ConfigError, match="Convert it to parquet, and that to mds"):
        convert(tmp_path / "t", tmp_path / "m", "mds")


def test_a_prepared_folder_can_be_opened_by_energon_and_says_how_its_samples_are_typed(tmp_path: Path) -> None:
    report = convert(lines(tmp_path / "a.jsonl", 5), tmp_path / "d", "webdataset")
    assert (tmp_path / "d/.nv-meta/dataset.yaml").read_text().split() == [
        *("__module__:", "megatron.energon", "__class__:", "CrudeWebdataset"),
    ]
    assert "feedmill prepare" in report.notes[0] and fm.open(tmp_path / "d")[0]["json"]["id"] == "doc-0"
    assert convert(tmp_path / "d", tmp_path / "w", "wds").plan.losses == []  # crude is nothing to lose
    with fm.writer(str(tmp_path / "t"), sample_type="TextSample", field_map={"text": "txt"}) as writer:
        writer.write({"__key__": "a", "txt": "a"})
    typed = convert(tmp_path / "t", tmp_path / "u", "webdataset")
    assert typed.notes == [] and fm.open(tmp_path / "u")[0].text == "a"


def test_lines_that_become_one_column_are_said_to(tmp_path: Path) -> None:
    report = convert(lines(tmp_path / "a.jsonl", 5), tmp_path / "d", "mds")
    assert report.plan.names["json"].startswith("str, each line as it is (convert to parquet first")


def test_names_of_classes_are_lost_only_with_a_word(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {"info": {"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}
    schema = pa.schema([("label", pa.int64())], metadata={"huggingface": json.dumps(features)})
    pq.write_table(pa.table({"label": [0, 1]}, schema=schema), tmp_path / "a.parquet")
    for to in ("wds", "mds"):
        assert "names of classes and shapes of arrays of 'label'" in lost(
            convert(tmp_path / "a.parquet", tmp_path / to, to, dry_run=True)
        )
    assert convert(tmp_path / "a.parquet", tmp_path / "p", "parquet", dry_run=True).plan.losses == []


def test_shards_that_the_split_file_leaves_out_are_named_and_no_error(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "s", 30, per_shard=10)
    (source / ".nv-meta/split.yaml").write_text(
        "split_parts:\n  train: [shards/000000.tar, shards/000001.tar]\n  val: []\n  test: []\n"
        "exclude: [shards/000002.tar]\n"
    )
    report = convert(source, tmp_path / "w", "wds")
    assert report.samples == 20 and "1 file of tars (shards/000002.tar) that the split file excludes" in lost(report)


@pytest.mark.parametrize("packed", [False, True])
def test_samples_after_the_end_of_a_tar_are_not_skipped_without_a_word(packed: bool, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    two = tar_bytes([("a.txt", b"1")]) + tar_bytes([("b.txt", b"2")])
    (tmp_path / ("s/0.tar.gz" if packed else "s/0.tar")).write_bytes(gzip.compress(two) if packed else two)
    with pytest.raises(ConfigError, match=r"10,240 bytes after the end-of-archive markers of 1 tars would be skipped"):
        convert(tmp_path / "s", tmp_path / "x", "wds")
    report = convert(tmp_path / "s", tmp_path / "x", "wds", allow_loss=True)
    assert report.samples == 1 and "0.tar" in lost(report)
