"""``feedmill convert``: what it prints, its exit status, its JSON."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from converted import sample_set, tokens
from feedmill.cli.app import app


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["convert", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_what_is_printed(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    status, shown = run(source, tmp_path / "d", "--to", "wds", "--wids", "--workers", 1)
    assert status == 0 and "90 samples" in shown and "same as the source" in shown
    status, shown = run(source, tmp_path / "e", "--to", "wds", "--no-verify", "--fields", "txt,json", "--workers", 1)
    assert status == 0 and "not verified" in shown


def test_the_plan(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    status, shown = run(source, tmp_path / "d.jsonl", "--to", "jsonl", "--plan", "--workers", 1)
    assert status == 0 and "lost (content): the bytes of 'bin'" in shown and not (tmp_path / "d.jsonl").exists()
    status, shown = run(source, tmp_path / "d.jsonl", "--to", "jsonl", "--plan", "--json", "--workers", 1)
    assert json.loads(shown)["plan"]["losses"][0]["content"] is True


def test_json(tmp_path: Path) -> None:
    source = tokens(tmp_path / "source")
    status, shown = run(source, tmp_path / "d", "--to", "megatron", "--json", "--workers", 1)
    report = json.loads(shown)
    assert status == 0 and report["samples"] == 180 and report["plan"]["family"] == "tokens" and report["digest"]
    status, shown = run(source, tmp_path / "e", "--to", "wds", "--json")
    assert status == 1 and json.loads(shown[: shown.rindex("}") + 1])["error"]["kind"] == "no-conversion"
