"""What steps leave out and warn of is shown, and is in the exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from feedmill.cli.app import app
from feedmill.cli.run import failures, remarks
from helpers.engine_verbs import TOKENIZER


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "w/documents").mkdir(parents=True)
    (tmp_path / "w/documents/a.jsonl").write_text('{"id": "a", "text": "A text."}\n')
    (tmp_path / "w/documents/b.jsonl").write_text('{"id": "b", "text": "Another."}\n{"id"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*steps: dict[str, Any]) -> Result:
    Path("p.json").write_text(json.dumps({"steps": steps}))
    return CliRunner().invoke(app, ["run", "p.json"])


TAG = {
    "verb": "tag",
    "inputs": ["w/documents"],
    "outputs": ["w/attributes"],
    "options": {"taggers": ["char_length_v1"], "on_error": "skip"},
}
TOKENIZE = {
    "verb": "tokenize",
    "inputs": ["w/documents"],
    "outputs": ["tok/x"],
    "options": {"tokenizer": TOKENIZER, "on_error": "skip"},
}


def test_failed_files_are_named_and_tried_again(folder: Path) -> None:
    for _ in range(2):
        result = run(TAG, TOKENIZE)
        assert result.exit_code == 4 and "w/documents/b.jsonl 'line 2': " in result.output
        assert "tag       ran in" in result.output
    assert "tokenize  up to date" in result.output  # later steps run all the same
    Path("w/documents/b.jsonl").write_text('{"id": "b", "text": "Another."}\n')
    result = run(TAG, TOKENIZE)
    assert result.exit_code == 0 and "error" not in result.output
    assert "tag       up to date" in run(TAG, TOKENIZE).output


def test_skipped_documents_are_named(folder: Path) -> None:
    result = run(TOKENIZE)
    assert result.exit_code == 0 and "tokenize: skipped: 1 document\n" in result.output
    assert "b.jsonl line 2: " in result.output


def test_dropped_lines_are_in_the_exit_status(folder: Path) -> None:
    index = {"verb": "index", "inputs": ["w/documents/b.jsonl"], "outputs": ["w/documents/b.idx"]}
    for _ in range(2):
        result = run({**index, "options": {"on_error": "skip"}})
        assert result.exit_code == 4 and "index: skipped: 1 line\n" in result.output and "line 2" in result.output


def test_what_reports_have() -> None:
    assert failures(None) == [] and failures({"failed": [], "dropped": 0}) == []
    assert remarks({"skipped": True, "left_out": 0}) == [] == remarks({"skipped": {"request": 3}, "left_out": {}})
    assert remarks({"warnings": ["a"], "notes": ["b"], "missing": ["c/*"], "left_out": {"d": 1, "e": 0}}) == [
        "warning: a",
        "warning: no files match c/*",
        "note: b",
        "left out: 1 x d",
    ]
    assert remarks({"left_out": {"no text": {"count": 2, "examples": ["u"]}}}) == ["left out: 2 x no text (u)"]
    assert remarks({"left_out": [{"what": "it is cut", "file": "x.tar"}]}) == ["left out: x.tar: it is cut"]
    assert remarks({"left_out": 3}) == ["left out: 3 pairs that were not compared"]
    examples = [{"index": n, "key": f"k{n}", "reason": "no"} for n in range(9)]
    lines = remarks({"skipped": 9, "examples": examples})
    assert lines[1] == "skipped: k0 index 0: no" and lines[-1] == "skipped: and 4 more" and len(lines) == 7
