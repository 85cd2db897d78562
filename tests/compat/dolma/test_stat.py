"""``feedmill compat dolma stat`` beside what Dolma wrote, and where it does better."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from helpers.dolma_golden import RUNS, digest, dolma, inputs, plain

REPORT = "stat/summaries.jsonl.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return inputs(tmp_path, "data/attributes/exp-1")


def summaries(path: Path) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in plain(path).decode().splitlines()]
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("processes", [1, 2])
def test_golden(processes: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.curation.measure._SMALL", 0)
    run = RUNS["stat"]
    done = dolma(folder, "--exact", *run["argv"][1:], "--processes", processes, monkeypatch=monkeypatch)
    assert done.exit_code == 0, done.output
    assert digest(plain(folder / REPORT)) == run["outputs"][0]["sha256"]
    assert "28,793" in done.output and "exp_1__gopher_v2__word_count/score" in done.output


def test_numbers_stay_in_their_bins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dolma's summaries of summaries move numbers to lower edges; the bins of all numbers are what one file gives."""
    words = RUNS["stat"]["argv"][1:]
    assert dolma(folder, *words, monkeypatch=monkeypatch).exit_code == 0
    ours = summaries(folder / REPORT)
    rows = [
        row
        for path in sorted(folder.rglob("attributes/**/*.gz"))
        for row in gzip.decompress(path.read_bytes()).split(b"\n")
        if row
    ]
    one = folder / "one/attributes/all.jsonl.gz"
    one.parent.mkdir(parents=True)
    one.write_bytes(gzip.compress(b"\n".join(rows)))
    again = ["--attributes", "one/attributes/*.gz", "--report", "whole"]
    assert dolma(folder, *words, *again, monkeypatch=monkeypatch).exit_code == 0
    whole = summaries(folder / "whole/summaries.jsonl.gz")
    assert {**whole, **ours}.keys() == whole.keys()
    for name, summary in whole.items():
        assert {**summary, "sum": 0} == {**ours[name], "sum": 0}
        assert ours[name]["sum"] == pytest.approx(summary["sum"])
    assert dolma(folder, "--exact", *words, monkeypatch=monkeypatch).exit_code == 0
    exact = summaries(folder / REPORT)
    assert exact["exp_1__gopher_v2__word_count/score"] != ours["exp_1__gopher_v2__word_count/score"]


def test_several_patterns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = RUNS["stat"]["argv"][1:]
    assert dolma(folder, *words, monkeypatch=monkeypatch).exit_code == 0
    want = plain(folder / REPORT)
    root = "data/attributes/exp-1"
    several = ["--attributes", f"{root}/web/**/*.gz", f"{root}/wiki/**/*.gz"]
    assert dolma(folder, *words, *several, monkeypatch=monkeypatch).exit_code == 0
    assert plain(folder / REPORT) == want
    done = dolma(folder, "--exact", *words, *several, monkeypatch=monkeypatch)
    assert done.exit_code == 1 and "one pattern" in done.output


def test_empty_lists_labels_and_rows_without_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"attributes": {"a": [], "x__label__en": [[0, 5, 1.00001]]}, "id": 1},
        {"attributes": {"a": [[2, 4, 1]]}, "id": 2},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = dolma(tmp_path, "stat", "--attributes", "a.jsonl", "--report", "stat", monkeypatch=monkeypatch)
    assert done.exit_code == 0, done.output
    found = summaries(tmp_path / REPORT)
    assert list(found) == ["a/score", "a/length", "x__label__en/score", "x__label__en/length"]
    assert (found["a/score"]["counts"], found["a/score"]["bins"][:2]) == ([1, 1], [0.0, 1.0])
    assert found["x__label__en/score"]["sum"] == 1.0


def test_bad_rows_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "1", "attributes": {}}\n\n')
    done = dolma(tmp_path, "stat", "--attributes", "a.jsonl", monkeypatch=monkeypatch)
    assert done.exit_code == 1 and "a.jsonl" in done.output and "line 2" in done.output and "blank" in done.output
    (tmp_path / "a.jsonl").write_text('{"id": "1", "attributes": {"x": 0.5}}\n')
    done = dolma(tmp_path, "stat", "--attributes", "a.jsonl", "--bins", 5, monkeypatch=monkeypatch)
    assert done.exit_code == 1 and "line 1" in done.output
    assert dolma(tmp_path, "stat", monkeypatch=monkeypatch).exit_code == 1
    assert dolma(tmp_path, "stat", "--attributes", "b*", monkeypatch=monkeypatch).exit_code == 1
