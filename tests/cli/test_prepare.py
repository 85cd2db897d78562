"""``feedmill prepare`` on the command line: with flags, in dialogue, and its messages for wrong input."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from feedmill.cli.app import app
from feedmill.samples.open import open as open_dataset
from helpers.tars import make_shards


def run(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def test_flags_alone_prepare_without_a_question(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [2, 2, 1])
    result = run(
        "prepare", root, "--split-ratio", "1,1,1", "--sample-type", "TextSample", "--field-map", '{"text": "txt"}'
    )
    assert result.exit_code == 0, result.output
    assert "samples" in result.stdout
    assert [len(open_dataset(root, split=split)) for split in ("train", "val", "test")] == [2, 2, 1]
    again = run("prepare", root, "--json")
    assert again.exit_code == 0
    report = json.loads(again.stdout)
    assert (report["reused"], report["scanned"], report["samples"]) == (3, 0, 5)


@pytest.mark.parametrize("command", [("prepare", "--interactive"), ("compat", "energon", "prepare")])
def test_the_dialogue_asks_for_ratio_type_and_fields(command: tuple[str, ...], tmp_path: Path) -> None:
    root = make_shards(tmp_path, [1, 1, 1, 1], parts=("txt", "json"))
    number = 0  # CaptioningSample, as the printed list says below
    answers = ["8,x,1", "2,1,1", "", str(number), "", "nope", "json[part]", "txt"]
    result = run(*command, root, stdin="\n".join(answers) + "\n")
    assert result.exit_code == 0, result.output
    assert f"{number}. CaptioningSample" in result.stdout
    assert "invalid split ratio '8,x,1'" in result.stdout
    assert "Sample 's00000'" in result.stdout
    assert '"n": 0' in result.stdout
    assert "no sample has a part 'nope'" in result.stdout
    config = (root / ".nv-meta" / "dataset.yaml").read_text()
    assert "caption: txt" in config
    assert "image: json[part]" in config
    assert [len(open_dataset(root, split=s, raw=True)) for s in ("train", "val", "test")] == [2, 1, 1]
    asked = run(*command, root, stdin="n\n")
    assert "prepared already" in asked.stdout
    assert asked.exit_code == 1


def test_the_dialogue_writes_crude_descriptions_and_loaders(tmp_path: Path) -> None:
    crude = make_shards(tmp_path / "a", [1])
    listed = run("prepare", crude, "--interactive", stdin="1\ny\n99\n12\n")
    assert listed.exit_code == 0, listed.output
    assert "12. CrudeWebdataset" in listed.stdout
    assert "CrudeWebdataset" in (crude / ".nv-meta" / "dataset.yaml").read_text()
    loader = make_shards(tmp_path / "b", [1])
    result = run("prepare", loader, "--interactive", stdin="1\ny\n1\nn\n")
    assert result.exit_code == 0, result.output
    assert (loader / ".nv-meta" / "sample_loader.py").exists()
    assert "Edit " in result.stdout


def test_energons_refusals_are_kept(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [1])
    without = run("compat", "energon", "prepare", root, "--non-interactive")
    assert without.exit_code == 1
    assert "--split-ratio" in without.stderr
    assert run("compat", "energon", "prepare", root, "--non-interactive", "--split-ratio", "1,0,0").exit_code == 0
    twice = run("compat", "energon", "prepare", root, "--non-interactive", "--split-ratio", "1,0,0")
    assert twice.exit_code == 1
    assert "--force-overwrite" in twice.stderr
    assert (
        run(
            "compat", "energon", "prepare", root, "--non-interactive", "--split-ratio", "1,0,0", "--force-overwrite"
        ).exit_code
        == 0
    )


MESSAGES = [
    (["--split-ratio", "1;2"], "invalid split ratio"),
    (["--field-map", "{", "--sample-type", "TextSample"], "--field-map is not JSON"),
    (["--field-map", '{"text": "txt"}'], "--sample-type"),
    (["--split-ratio", "1,1", "--split-parts", "train:.*"], "--split-ratio and --split-parts contradict each other"),
    (["--tar-index-only", "--split-ratio", "1,1"], "--tar-index-only and --split-ratio contradict each other"),
    (["--sample-type", "TextSample", "--skip-dataset-yaml"], "--skip-dataset-yaml contradict each other"),
    (["--field-map", "[1]", "--sample-type", "TextSample"], "must be a JSON object"),
    (["--media-by-glob", "*.jpg", "--media-by-header"], "exactly one media filter"),
    (["--media-metadata"], "exactly one media filter"),
    (["--sample-type", "Nope"], "Nope"),
]


@pytest.mark.parametrize(("options", "message"), MESSAGES)
def test_wrong_options_are_one_message(options: list[str], message: str, tmp_path: Path) -> None:
    root = make_shards(tmp_path, [1])
    result = run("prepare", root, *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("verb", ["prepare", "check", "edit repair", "show"])
def test_a_wrong_path_is_one_message(verb: str, tmp_path: Path) -> None:
    result = run(*verb.split(), tmp_path / "nothing")
    assert result.exit_code == 1
    assert "nothing" in result.stderr
    assert "Traceback" not in result.output


def test_energons_info_and_preview(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [2, 1])
    run("prepare", root, "--split-ratio", "1,1,0", "--sample-type", "TextSample", "--field-map", '{"text": "txt"}')
    info = run("compat", "energon", "info", root)
    assert "TextSample" in info.stdout
    shown = run("compat", "energon", "preview", root)
    assert shown.exit_code == 0, shown.output
    assert "split train" in shown.stdout
    assert "split val" in shown.stdout
    assert "s00002" in shown.stdout


def test_the_console_command_works_as_installed(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [1])
    code = "import sys; from feedmill.cli.app import main; sys.argv[0] = 'feedmill'; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "prepare", str(root), "--split-ratio", "1,0,0"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "prepared" in done.stdout
    assert done.stderr == f"next: feedmill show {root}\n"


@pytest.mark.parametrize(
    ("verb", "told"),
    [
        *((verb, "this kind of file is not a dataset") for verb in ("check", "edit repair", "show")),
        ("prepare", "notes.md: unsupported kind of file: expected a folder of tar shards"),
    ],
)
def test_a_missing_file_is_called_a_file_and_other_files_by_what_they_are(verb: str, told: str, tmp_path: Path) -> None:
    missing = run(*verb.split(), tmp_path / "nothing.jsonl")
    assert missing.exit_code == 1
    assert "there is no such file" in missing.stderr
    (tmp_path / "notes.md").write_text("hello")
    other = run(*verb.split(), tmp_path / "notes.md")
    assert other.exit_code == 1 and told in other.stderr


def test_media_metadata_that_is_empty_is_said(tmp_path: Path) -> None:
    root = make_shards(tmp_path, [1])
    empty = run("prepare", root, "--media-by-glob", "*.xyz")
    assert empty.exit_code == 0
    assert "the media metadata is empty" in empty.stderr


def test_energons_preview_shows_data_without_splits_and_names_the_splits_there_are(tmp_path: Path) -> None:
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"n": 1}\n')
    assert '{"n": 1}' in run("compat", "energon", "preview", lines).stdout
    root = make_shards(tmp_path / "ds", [1])
    run("prepare", root, "--split-parts", "mine:.*")
    other = run("compat", "energon", "preview", root)
    assert other.exit_code == 1
    assert "--split-parts mine" in other.stderr


@pytest.mark.parametrize("in_notebook", [True, False])
def test_a_cell_of_a_notebook_is_asked_nothing(in_notebook: bool, tmp_path: Path) -> None:
    """Its commands have a terminal, where nobody answers; elsewhere a terminal is asked."""
    root = make_shards(tmp_path, [1, 1])
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "feedmill", "prepare", str(root)]
    variables = {**os.environ, "JPY_PARENT_PID": "1"} if in_notebook else dict(os.environ)
    os.write(ours, b"1,0,0\n\x04\x04")
    done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, env=variables, timeout=120)
    os.close(ours)
    os.close(theirs)
    assert ("Ratio of train, val and test" in done.stdout) is not in_notebook, done.stdout + done.stderr
    assert not in_notebook or (done.returncode == 0 and "samples" in done.stdout), done.stdout + done.stderr
