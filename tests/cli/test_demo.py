"""The whole demo, small: every room at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app

pytest.importorskip("PIL")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training processes import this checkout, wherever the tests' own path came from."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))


@pytest.mark.usefixtures("environment")
def test_the_small_demo_finds_identical_streams(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    arguments = ["demo", "--output", str(out), "--pages", "60", "--docs", "60", "--samples", "400", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["identical"] and facts["compared"] == 400
    assert facts["saved_at"] > 0
    assert sum(facts["realised"]) == 400 and abs(facts["realised"][0] - 280) <= 1
    assert 60 < facts["curated"] <= 120 and facts["duplicates"] >= 0 and facts["near_duplicates"] >= 0
    assert facts["rows_identical"] and facts["rows"] >= 2000 and facts["tokens"] > 5_000
    assert facts["robots"] == [192, 96] and len(facts["robot_windows"]) == 3
    assert set(facts["converted"]) == {"mds", "webdataset"} and None not in facts["converted"].values()
    assert all(abs(first - 112) <= 1 and first + second == 160 for first, second in facts["robot_windows"])
    assert (out / "sheet.png").stat().st_size > 10_000
    assert (out / "report.html").stat().st_size > 100_000 and facts["report_findings"] == 0


def test_a_folder_that_is_not_a_demo_s_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "mine.txt").write_text("keep")
    done = CliRunner().invoke(app, ["demo", "--output", str(tmp_path)])
    assert done.exit_code == 1 and "the folder holds other files" in done.stderr
    assert (tmp_path / "pages" / "mine.txt").read_text() == "keep"


def test_a_file_or_a_folder_that_cannot_be_made_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in ("file", "file/in"):
        done = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / out)])
        assert done.exit_code == 1 and done.stderr.startswith("error: ")
    assert (tmp_path / "file").read_text() == "mine"
