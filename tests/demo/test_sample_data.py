"""The data of the documentation: the same each time, and what the pages use."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.demo.sample_data import write_sample_data
from feedmill.errors import ConfigError
from feedmill.storage import LocalStore


def test_the_data_is_always_the_same_and_can_be_written_again(tmp_path: Path) -> None:
    names = write_sample_data(LocalStore(tmp_path / "a"))
    assert names == ["coco", "photos", "pets", "texts", "qa.jsonl"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*") if path.is_file()}
    write_sample_data(LocalStore(tmp_path / "a"))
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*") if path.is_file()}
    write_sample_data(LocalStore(tmp_path / "b"))
    for path in before:
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    (tmp_path / "a/qa.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=r"has another 'qa.jsonl'"):
        write_sample_data(LocalStore(tmp_path / "a"))
    assert (tmp_path / "a/qa.jsonl").read_text() == "mine"


def test_the_command_and_what_import_makes_of_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "--data", str(tmp_path)])
    assert done.exit_code == 0 and done.output.splitlines()[-1] == f"wrote {tmp_path}/qa.jsonl"
    for source, kind, samples in (
        ("photos", "captioning", 12),
        ("pets", "classification", 12),
        ("texts", "documents", 32),
    ):
        report = fm.import_data(tmp_path / source, tmp_path / f"{source}_out", progress=False, workers=1)
        assert (report.type, report.samples, len(report.left_out)) == (kind, samples, 0)
