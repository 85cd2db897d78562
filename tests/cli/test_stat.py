from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from feedmill.cli.app import app
from feedmill.cli.documents import number
from helpers.dolma_golden import DOLMA

DOCUMENTS, ATTRIBUTES = DOLMA / "data/documents", DOLMA / "data/attributes/exp-1"


def feedmill(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_tables() -> None:
    done = feedmill("documents", "stat", DOCUMENTS, ATTRIBUTES, "-a", "word_count")
    assert done.exit_code == 0, done.output
    assert "documents   85" in done.output and "28,793" in done.output
    assert "exp_1__gopher_v2__word_count" in done.output and "synth/prose" in done.output
    assert "█" not in done.output


def test_plot_and_json() -> None:
    done = feedmill("documents", "stat", ATTRIBUTES, "-a", "gopher_v2__word_count", "--plot", "--bins", 5)
    assert done.exit_code == 0 and "█" in done.output
    done = feedmill("documents", "stat", ATTRIBUTES, "-a", "gopher_v2__word_count", "--plot", "--bins", 5, "--json")
    found = json.loads(done.stdout)
    assert found["documents"] is None
    assert found["attributes"]["exp_1__gopher_v2__word_count"]["score"]["sum"] == 4324
    assert sum(found["histograms"]["exp_1__gopher_v2__word_count score"]["counts"]) == 85


def test_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    done = feedmill("documents", "stat", DOCUMENTS, "--plot-to", tmp_path / "p.png")
    assert done.exit_code == 0, done.output
    with image.open(tmp_path / "p.png") as picture:
        assert picture.width > 1000
    done = feedmill("documents", "stat", DOCUMENTS, "--plot-to", tmp_path / "p.doc")
    assert done.exit_code == 1 and "picture format" in done.output
    done = feedmill("documents", "stat", DOCUMENTS, "--plot-to", tmp_path / "none/p.png", "--json")
    assert done.exit_code == 1 and json.loads(done.stdout)["error"]["what"] == "there is no such folder"


def test_with_json_an_error_of_drawing_is_the_only_document(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    done = feedmill("documents", "stat", ATTRIBUTES, "-a", "nothing", "--plot-to", tmp_path / "p.png", "--json")
    assert done.exit_code == 1 and "found 0" in json.loads(done.stdout)["error"]["what"]


def test_bad_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "text": "x"}\n{"id":\n')
    (tmp_path / "b.jsonl").write_text('{"id": 1, "text": "x"}\n')
    done = feedmill("documents", "stat", tmp_path)
    assert done.exit_code == 1 and "a.jsonl" in done.output and "line 2" in done.output
    done = feedmill("documents", "stat", tmp_path, "--on-error", "skip")
    assert done.exit_code == 4 and "documents  1" in done.output and "1 invalid file skipped" in done.output


def test_numbers_that_are_none_are_shown_as_such() -> None:
    assert [number(value) for value in (float("inf"), float("nan"))] == ["inf", "nan"]
