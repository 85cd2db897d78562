"""``feedmill import``: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from feedmill.cli.app import app


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["import", *map(str, words)])


def test_what_is_recognized_and_left_out_is_shown(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for name, text in (("a.txt", "a"), ("b.md", "b"), ("c.pdf", "%PDF"), ("d.txt", ""), ("e.txt", "")):
        (tmp_path / "raw" / name).write_text(text)
    done = run(tmp_path / "raw", tmp_path / "out", "--dry-run")
    assert done.exit_code == 0 and "would write" in done.stdout and not (tmp_path / "out").exists()
    done = run(tmp_path / "raw", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "recognized  4 files of text" in done.stdout and "documents   2" in done.stdout
    assert done.stderr.splitlines() == [
        "left out: 1 x unsupported kind of file (.pdf) (c.pdf)",
        "left out: 2 x an empty file (d.txt, e.txt)",
        f"all names are in {tmp_path}/out/.feedmill/left_out.jsonl",
        f"next: feedmill tag {tmp_path}/out -t gopher_v2",
    ]
    done = run(tmp_path / "raw", tmp_path / "out", "--overwrite", "--json")
    report = json.loads(done.stdout)
    assert (report["type"], report["samples"], report["files"], report["outputs"]) == ("documents", 2, 2, 1)
    assert report["left_out"]["an empty file"] == {"count": 2, "examples": ["d.txt", "e.txt"]}


def test_errors(tmp_path: Path) -> None:
    assert run(tmp_path).exit_code == 2
    done = run(tmp_path / "none", tmp_path / "out", "--json")
    assert done.exit_code == 1 and json.loads(done.stdout)["error"]["kind"] == "not-found"
    done = run(tmp_path, tmp_path / "out")
    assert done.exit_code == 1 and "nothing to import" in done.stderr and "Traceback" not in done.output
