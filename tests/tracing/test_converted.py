"""Samples that were converted, resharded, appended and deleted lead back to the raw lines or samples."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

import feedmill as fm
from feedmill.documents.lineage.chain import Lineages, read_raw
from feedmill.errors import DataError, NotFound
from feedmill.tracing.document import Documents
from helpers.lineage_data import TOKENIZER

COUNT = 120


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw lines, some of them blank, as shards of 25 samples, and these as shards of 40 in another order."""
    folder = tmp_path_factory.mktemp("converted")
    lines = [json.dumps({"id": f"d{n}", "text": f"document {n}"}) + "\n" + "\n" * (n % 7 == 3) for n in range(COUNT)]
    (folder / "raw.jsonl").write_text("\n" + "".join(lines))
    fm.convert(folder / "raw.jsonl", folder / "wds", "webdataset", max_shard_samples=25, workers=1, progress=False)
    fm.edit.reshard(folder / "wds", folder / "again", max_shard_samples=40, shuffle=3, workers=1, progress=False)
    return folder


def check(dataset: fm.Dataset, verbs: list[str]) -> None:
    """Every sample has the text of the raw line that it leads to."""
    lineages = Lineages()
    paths = dataset.row_files
    files, rows = dataset.stored_rows(np.arange(len(dataset)))
    texts = set()
    for index, (file, row) in enumerate(zip(files.tolist(), rows.tolist(), strict=True)):
        found = lineages.follow(paths[file], row)
        (raw,) = found.raw
        assert [one.verb for one in found.chain] == [*verbs, ""] and raw.path.endswith("/raw.jsonl")
        line = json.loads(read_raw(raw.path, [raw.row])[raw.row])
        sample = dataset[index]
        value = json.loads(sample.raw("json")) if "json" in sample else {"text": sample["text"]}
        assert value["text"] == line["text"]
        texts.add(line["text"])
        assert dataset.samples_of_row(file, row) == [index]
    assert len(texts) == len(dataset)


def test_shards(root: Path) -> None:
    check(fm.open(root / "wds", raw=True), ["convert"])
    check(fm.open(root / "again", raw=True), ["reshard", "convert"])
    assert len(list(root.glob("again/shards/.feedmill/*.lineage"))) == 3


@pytest.mark.parametrize("to", ["parquet", "mds", "npz", "jsonl", "jsonl.gz", "wds", "vla"])
def test_formats(root: Path, tmp_path: Path, to: str) -> None:
    output = tmp_path / (f"out.{to}" if to.startswith("jsonl") else "out")
    source = root / ("raw.jsonl" if to in ("parquet", "jsonl.gz") else "wds")
    fm.convert(source, output, to, max_shard_samples=30, allow_loss=True, workers=1, progress=False)
    verbs = ["convert"] if source.suffix else ["convert", "convert"]
    if to == "jsonl.gz":
        lineages = Lineages()
        assert [lineages.follow(str(output), row).raw[0].row for row in range(4)] == [1, 2, 3, 4]
    else:
        check(fm.open(output, raw=True) if to != "parquet" else fm.open(output), verbs)


def test_skipped_samples_are_gaps(root: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": 1\n\n{"text": "c"}\n')
    fm.convert(tmp_path / "bad.jsonl", tmp_path / "good.jsonl", "jsonl", on_error="skip", workers=1, progress=False)
    lineages = Lineages()
    assert [lineages.follow(str(tmp_path / "good.jsonl"), row).raw[0].row for row in (0, 1)] == [0, 3]
    (found,) = Documents([str(tmp_path / "good.jsonl")]).find([f"{tmp_path}/bad.jsonl:2"]).values()
    assert found[0].artefacts[0].dropped == "not written by convert"


def test_tokens_of_converted_documents_lead_to_the_raw_line_and_back(root: Path, tmp_path: Path) -> None:
    fm.convert(root / "raw.jsonl", tmp_path / "table", "parquet", max_shard_samples=50, workers=1, progress=False)
    fm.tokenize(tmp_path / "table", tmp_path / "ids/x", tokenizer=TOKENIZER, workers=1, progress=False)
    fm.convert(tmp_path / "ids/x.pbin", tmp_path / "ds", "ds", workers=1, progress=False)
    fm.convert(tmp_path / "ds", tmp_path / "vla", "vla-text", seq_len=7, allow_loss=True, workers=1, progress=False)
    lineages = Lineages()
    found = lineages.follow(str(tmp_path / "ds/x.ds"), 17)
    assert [one.verb for one in found.chain] == ["convert", "tokenize", "convert", ""]
    assert json.loads(read_raw(*((found.raw[0].path), [found.raw[0].row]))[found.raw[0].row])["id"] == "d17"
    (document,) = Documents([str(tmp_path / "vla/manifest.jsonl")]).find(["d17"])["d17"]
    row = document.artefacts[-1].rows[0]
    assert document.artefacts[-1].file.endswith("vla/manifest.jsonl")
    assert "d17" in {
        json.loads(read_raw(raw.path, [raw.row])[raw.row])["id"]
        for raw in lineages.follow(str(tmp_path / "vla/manifest.jsonl"), row).raw
    }


def test_a_recipe_of_shards_is_traced_in_both_directions(root: Path) -> None:
    recipe = {"seed": 1, "epochs": 2, "concat": [{"path": "again"}], "shuffle": "global"}
    (root / "r.yaml").write_text(yaml.safe_dump(recipe))
    report = fm.trace(root / "r.yaml", step=3, global_batch=4, origins=True, show=True)
    for entry in report.facts["entries"]:
        (origin,) = entry["origins"]
        assert [one["verb"] for one in origin["through"]] == ["reshard", "convert"]
        assert {one["noun"] for one in origin["through"]} == {"sample"}
        word = json.loads(origin["text"])["id"]
        back = fm.trace(root / "r.yaml", source_document=word, global_batch=4).facts["documents"][0]
        assert 3 in [one["step"] for one in back["seen"]] and back["times"] == 2
        assert back["line"] == origin["line"]


def test_shards_without_lineage_are_the_raw_samples(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "wds", tmp_path / "wds", ignore=shutil.ignore_patterns("*.lineage"))
    fm.edit.reshard(tmp_path / "wds", tmp_path / "new", max_shard_samples=50, workers=1, progress=False)
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"epochs": 1, "shuffle": "none", "concat": [{"path": "new"}]}))
    (entry, *_) = fm.trace(tmp_path / "r.yaml", step=15, global_batch=2, origins=True, show=True).facts["entries"]
    (origin,) = entry["origins"]
    assert origin["file"].endswith("wds/shards/000001.tar") and origin["line"] == 6
    assert json.loads(origin["text"])["json"]["text"] == "document 30"
    key = json.loads(origin["text"])["id"]
    for word in (key, f"{origin['file']}:6"):
        (found,) = fm.trace(tmp_path / "r.yaml", source_document=word, global_batch=2).facts["documents"]
        assert [one["step"] for one in found["seen"]] == [15]
    with pytest.raises(NotFound, match="no raw file has"):
        fm.trace(tmp_path / "r.yaml", source_document="nothing")


def test_shards_that_change_in_place_keep_their_lineage(root: Path, tmp_path: Path) -> None:
    fm.convert(root / "raw.jsonl", tmp_path / "wds", "webdataset", max_shard_samples=25, workers=1, progress=False)
    fm.edit.append(tmp_path / "wds", [root / "wds"], max_shard_samples=60, prefix="b", workers=1, progress=False)
    dataset = fm.open(tmp_path / "wds", raw=True)
    keys = [dataset[n].key for n in (0, 26, 27, 49)]
    fm.edit.delete(tmp_path / "wds", [*keys, *(dataset[n].key for n in range(50, 75))], workers=1, progress=False)
    kept = fm.open(tmp_path / "wds", raw=True)
    lineages = Lineages()
    for index in range(len(kept)):
        (place,) = [(kept.row_files[int(f)], int(r)) for f, r in zip(*kept.stored_rows([index]), strict=True)]
        (raw,) = lineages.follow(*place).raw
        line = json.loads(read_raw(raw.path, [raw.row])[raw.row])
        assert line["text"] == json.loads(kept[index].raw("json"))["text"]
    assert len(list(tmp_path.glob("wds/**/*.lineage"))) == len(kept.row_files)
    fm.edit.add_parts(tmp_path / "wds", added, workers=1, progress=False)
    assert [one.verb for one in Lineages().follow(kept.row_files[0], 0).chain] == ["convert", ""]


def added(samples: list[fm.Sample]) -> list[dict[str, str]]:
    """The new part of each sample."""
    return [{"txt": "new"} for _ in samples]


def test_a_replaced_conversion_has_no_lineages_of_the_old_one(root: Path, tmp_path: Path) -> None:
    for samples in (10, 60):
        fm.convert(
            *(root / "raw.jsonl", tmp_path / "wds", "webdataset"),
            max_shard_samples=samples, overwrite=samples == 60, workers=1, progress=False,
        )  # fmt: skip
    assert len(list(tmp_path.glob("wds/**/*.lineage"))) == 2
    check(fm.open(tmp_path / "wds", raw=True), ["convert"])
    fm.edit.reshard(root / "wds", tmp_path / "wds", max_shard_samples=50, overwrite=True, workers=1, progress=False)
    check(fm.open(tmp_path / "wds", raw=True), ["reshard", "convert"])
    (tmp_path / "wds/shards/000000.tar").write_bytes((root / "wds/shards/000000.tar").read_bytes())
    with pytest.raises(DataError, match="does not describe it"):
        Lineages().follow(str(tmp_path / "wds/shards/000000.tar"), 0)
