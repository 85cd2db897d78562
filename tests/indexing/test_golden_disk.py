"""`feedmill compat energon prepare` writes what Energon writes: files byte for byte, the database as sets of rows."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from helpers.digests import GOLDEN, expected

CASES: dict[str, tuple[str, str, list[str]]] = {
    # golden case and dataset -> the command line it was prepared with
    "captioning": (
        "captioning", "ds",
        ["--split-ratio", "1,1,1", "--sample-type", "CaptioningSample",
         "--field-map", '{"image": "jpg,png", "caption": "detail.json[meta][caption]"}'],
    ),
    "presplit_regex": (
        "presplit_regex", "ds",
        ["--split-parts", "train:shards/train_.*", "--split-parts", "val:shards/val_.*",
         "--sample-type", "TextSample", "--field-map", '{"text": "txt"}'],
    ),
    "tar_quirks": ("tar_quirks", "ds", ["--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]),
    "media": (
        "media_wds", "ds",
        ["--split-ratio", "1,0,0", "--media-metadata-by-extension", "--sample-type", "CrudeWebdataset"],
    ),
    "media, the other spelling": (
        "media_wds", "ds",
        ["--split-ratio", "1,0,0", "--media-metadata", "--media-by-extension", "--sample-type", "CrudeWebdataset"],
    ),
    "image": ("sample_types", "image", ["--split-ratio", "1,0,0", "--sample-type", "ImageSample",
                                        "--field-map", '{"image": "png"}']),
    "vqa": ("sample_types", "vqa",
            ["--split-ratio", "1,0,0", "--sample-type", "VQASample", "--field-map",
             '{"image": "png", "context": "json[question]", "answers": "json[answers]",'
             ' "answer_weights": "json[w]"}']),
    "imgcls": ("sample_types", "imgcls",
               ["--split-ratio", "1,0,0", "--sample-type", "ImageClassificationSample", "--field-map",
                '{"image": "png", "label": "cls", "label_name": "name.txt"}']),
    "multichoice": ("sample_types", "multichoice",
                    ["--split-ratio", "1,0,0", "--sample-type", "MultiChoiceVQASample", "--field-map",
                     '{"image": "jpg", "context": "q.txt", "choices": "choices.json",'
                     ' "correct_choice_idx": "cls"}']),
    "text": ("sample_types", "text", ["--split-ratio", "1,0,0", "--sample-type", "TextSample",
                                      "--field-map", '{"text": "txt"}']),
    "ocr": ("sample_types", "ocr", ["--split-ratio", "1,0,0", "--sample-type", "OCRSample"]),
    "interleaved": ("sample_types", "interleaved", ["--split-ratio", "1,0,0", "--sample-type", "InterleavedSample"]),
}  # fmt: skip


def bare_copy(case: str, name: str, target: Path, *, keep: tuple[str, ...] = ()) -> Path:
    """The dataset without anything that preparing writes."""
    shutil.copytree(GOLDEN / case / name, target)
    for path in [*target.rglob("*.idx"), *(target / ".nv-meta").glob("*"), *(target / ".nv-meta").glob(".*")]:
        if path.is_file() and path.name not in keep:
            path.unlink()
    return target


def run(*arguments: str, stdin: str = "") -> Any:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def rows(path: Path) -> dict[str, list[Any]]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        tables = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        out = {name: [list(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in tables}
        out["schema"] = [
            [kind, name, table, " ".join(sql.split()) if sql else None]
            for kind, name, table, sql in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
        ]
        return out


@pytest.mark.parametrize("name", CASES)
def test_written_files_equal_energons(name: str, tmp_path: Path) -> None:
    case, folder, options = CASES[name]
    root = bare_copy(case, folder, tmp_path / "ds", keep=("sample_loader.py",))
    result = run("compat", "energon", "prepare", str(root), "--non-interactive", *options)
    assert result.exit_code == 0, result.output
    disk = expected(case)["disk"]
    prefix = f"{folder}/"
    written = {"dataset.yaml", "split.yaml", ".info.json"}
    compared = 0
    for path, facts in disk["files"].items():
        if not path.startswith(prefix):
            continue
        ours = root / path.removeprefix(prefix)
        if path.endswith((".idx", ".tar")) or ours.name in written:
            assert hashlib.sha256(ours.read_bytes()).hexdigest() == facts["sha256"], path
            compared += 1
    assert compared >= 4
    golden = disk["nv_meta"][folder]["index.sqlite"]
    found = rows(root / ".nv-meta" / "index.sqlite")
    for table in ("samples", "sample_parts", "media_metadata", "schema"):
        assert sorted(map(str, found.get(table, []))) == sorted(map(str, golden.get(table, []))), table
    if "media_filters" in golden:
        assert [row[:3] for row in found["media_filters"]] == [row[:3] for row in golden["media_filters"]]
    assert len((root / ".nv-meta" / "index.uuid").read_text()) == 36


@pytest.mark.parametrize("layout", ["v5", "v6", "v7_0"])
def test_tar_index_only_brings_old_layouts_up_to_date(layout: str, tmp_path: Path) -> None:
    root = tmp_path / "ds"
    shutil.copytree(GOLDEN / "legacy_layouts" / layout, root)
    before = {path.name: path.read_bytes() for path in root.glob("*.idx")}
    split = (root / ".nv-meta" / "split.yaml").read_bytes()
    result = run("compat", "energon", "prepare", str(root), "--tar-index-only", "--non-interactive")
    assert result.exit_code == 0, result.output
    assert {path.name: path.read_bytes() for path in root.glob("*.idx")} == before
    assert (root / ".nv-meta" / "split.yaml").read_bytes() == split
    counts = json.loads((root / ".nv-meta" / ".info.json").read_text())["shard_counts"]
    assert counts == {"0.tar": 3, "1.tar": 3}
    assert len(rows(root / ".nv-meta" / "index.sqlite")["samples"]) == 6


@pytest.mark.parametrize("name", ["plain", "no_last_newline", "blank_between", "unicode", "dots.v1"])
def test_jsonl_index_equals_energons(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN / "jsonl_index" / f"{name}.jsonl", tmp_path))
    assert run("compat", "energon", "prepare", str(path)).exit_code == 0
    assert (tmp_path / f"{name}.jsonl.idx").read_bytes() == (GOLDEN / "jsonl_index" / f"{name}.jsonl.idx").read_bytes()


@pytest.mark.parametrize("name", expected("jsonl_index")["rejected"])
def test_jsonl_that_energon_refuses_is_refused(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN / "jsonl_index" / name, tmp_path))
    result = run("compat", "energon", "prepare", str(path))
    assert result.exit_code == 1
    assert name in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / f"{name}.idx").exists()
