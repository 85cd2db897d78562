"""``feedmill convert``: what it prints, its exit status, its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feedmill.cli.app import app
from helpers.conversion_sources import sample_set, tokens


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
    command = (source, tmp_path / "d.jsonl", "--to", "jsonl", "--dry-run", "--workers", 1)
    status, shown = run(*command)
    assert status == 1 and "lost (content): the bytes of 'bin'" in shown and "add --allow-loss" in shown
    status, shown = run(*command, "--allow-loss")
    assert status == 0 and "dry run: nothing was written" in shown and not (tmp_path / "d.jsonl").exists()
    status, shown = run(*command, "--allow-loss", "--json")
    assert json.loads(shown)["plan"]["losses"][0]["content"] is True


def test_json(tmp_path: Path) -> None:
    source = tokens(tmp_path / "source")
    status, shown = run(source, tmp_path / "d", "--to", "megatron", "--json", "--workers", 1)
    report = json.loads(shown)
    assert status == 0 and report["samples"] == 180 and report["plan"]["family"] == "tokens" and report["digest"]
    status, shown = run(source, tmp_path / "e", "--to", "wds", "--json")
    assert status == 1 and json.loads(shown[: shown.rindex("}") + 1])["error"]["kind"] == "no-conversion"


@pytest.mark.parametrize(
    ("to", "options", "told"),
    [
        ("wds", ["--seq-len", 8], "--seq-len requires --to vla-text"),
        ("mds", ["--wids"], "--wids requires --to wds"),
        ("wds", ["--error-budget", 3], "--error-budget requires --on-error skip"),
    ],
)
def test_options_that_would_do_nothing_are_refused(to: str, options: list[object], told: str, tmp_path: Path) -> None:
    status, shown = run(sample_set(tmp_path / "source"), tmp_path / "d", "--to", to, *options)
    assert status == 1 and told in shown and not (tmp_path / "d").exists()


def test_a_budget_is_a_number_or_a_share(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    status, _ = run(source, tmp_path / "d", "--to", "wds", "--on-error", "skip", "--error-budget", 3)
    assert status == 0
    status, shown = run(source, tmp_path / "e", "--to", "wds", "--error-budget", 1.5)
    assert status == 1 and "--error-budget 1.5 is invalid" in shown
    status, shown = run(source, tmp_path / "e", "--to", "wds", "--error-budget", "nan")
    assert status == 1 and "is not a number" in shown and not (tmp_path / "e").exists()


def test_tokens_go_to_a_folder_that_is_not_called_like_a_file(tmp_path: Path) -> None:
    status, shown = run(tokens(tmp_path / "source"), tmp_path / "d.ds", "--to", "ds")
    assert status == 1 and "d.ds: the destination ends in '.ds', and ds is written to a folder" in shown


def test_fields_may_be_spaced_and_have_to_be_some(tmp_path: Path) -> None:
    source = sample_set(tmp_path / "source")
    status, shown = run(source, tmp_path / "d", "--to", "wds", "--fields", "txt, json", "--workers", 1)
    assert status == 0 and "90 samples" in shown
    for nothing in ("", ",", " "):
        status, shown = run(source, tmp_path / "e", "--to", "wds", "--fields", nothing)
        assert status == 1 and "--fields is empty" in shown and not (tmp_path / "e").exists()
