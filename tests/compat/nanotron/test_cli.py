"""``feedmill compat nanotron preprocess_data``: the original's bytes from the original's arguments."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from feedmill.cli.app import app
from helpers.nanoset_golden import NANOSETS, expected, sha256

RUNS = ["nt_default", "nt_eos", "single_file", "bos_template", "bos_template_eos_override", "four_byte"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the golden runs were made: the tokenizers and the input, under the names that they had."""
    for name in ("jsonl", "tok1k", "tok1k_bos"):
        shutil.copytree(NANOSETS / name, tmp_path / name)
    (tmp_path / "tok66k").mkdir()
    packed = (NANOSETS / "tok66k" / "tokenizer.json.xz").read_bytes()
    (tmp_path / "tok66k" / "tokenizer.json").write_bytes(lzma.decompress(packed))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def preprocess(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["compat", "nanotron", "preprocess_data", "--workers", "1", *map(str, arguments)])


@pytest.mark.parametrize("run", RUNS)
def test_golden_runs(run: str, folder: Path) -> None:
    about = expected()["runs"][run]
    eos = about["options"]["eos_token"]
    result = preprocess(
        "--tokenizer-name-or-path", about["tokenizer"], *(["--eos-token", eos] if eos else []),
        "--output-folder", "out", "--n-tasks", about["tasks"], "jsonl", "--dataset", about["src"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    ours = (".json", ".lineage")
    found = {path.name: sha256(path) for path in (folder / "out").iterdir() if not path.name.endswith(ours)}
    assert found == {name: facts["sha256"] for name, facts in about["files"].items()}
    assert ("end of text  none: documents run together" in result.output) == (eos is None)


def test_what_is_left_out_is_counted_and_named(folder: Path) -> None:
    result = preprocess(
        "--tokenizer-name-or-path", "tok1k/tokenizer.json", "--output-folder", "out", "--n-tasks", 1,
        "--logging-dir", "logs", "jsonl", "--dataset", "jsonl", "--json",
    )  # fmt: skip
    report = json.loads(result.stdout)
    assert (report["documents"], report["skipped"]) == (107, 1)
    (example,) = report["tasks"][0]["skipped_examples"]
    assert example == {"file": "jsonl/01_empty_text.jsonl", "line": 4, "reason": "the text is empty"}
    assert json.loads((folder / "logs" / "preprocess_data.json").read_text()) == report
    strict = preprocess(
        "--tokenizer-name-or-path", "tok1k/tokenizer.json", "--output-folder", "other", "--n-tasks", 1,
        "--on-error", "raise", "jsonl", "--dataset", "jsonl",
    )  # fmt: skip
    assert strict.exit_code == 1
    assert "01_empty_text.jsonl 'line 4': the text is empty" in strict.output


def test_tasks_without_files_write_empty_ones(folder: Path) -> None:
    result = preprocess(
        "--tokenizer-name-or-path", "tok1k", "--output-folder", "out", "--n-tasks", 5, "jsonl", "--dataset", "jsonl"
    )
    assert result.exit_code == 0, result.output
    assert (folder / "out" / "00004_unshuffled.ds").read_bytes() == b""
    assert (folder / "out" / "00004_unshuffled.ds.index").read_bytes() == b""
    assert (folder / "out" / "00003_unshuffled.ds.metadata").read_text() == "tok1k|2\n0\n0.00 T"


def test_the_same_command_again_does_nothing_and_another_is_refused(folder: Path) -> None:
    first = ["--tokenizer-name-or-path", "tok1k", "--output-folder", "out", "--n-tasks", 2]
    assert preprocess(*first, "jsonl", "--dataset", "jsonl").exit_code == 0
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}
    assert preprocess(*first, "jsonl", "--dataset", "jsonl").exit_code == 0
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "out").iterdir()} == before
    other = [*first, "--eos-token", "<|endoftext|>", "jsonl", "--dataset", "jsonl"]
    refused = preprocess(*other)
    assert refused.exit_code == 1 and "the output already exists" in refused.output
    assert preprocess("--overwrite", *other).exit_code == 0
    assert sha256(folder / "out" / "00000_unshuffled.ds") == sha256(NANOSETS / "nt_eos" / "00000_unshuffled.ds")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jsonl", "--dataset", "nowhere"], "there is no such folder"),
        (["jsonl", "--dataset", "tok1k", "--glob-pattern", "*.txt"], "the folder has no file of JSON lines"),
        (["hf", "--dataset", "dair-ai/emotion"], "nothing is downloaded"),
        (["hf", "--dataset", "jsonl"], "Use the form 'jsonl'"),
    ],
)
def test_bad_input(arguments: list[str], message: str) -> None:
    result = preprocess("--tokenizer-name-or-path", "tok1k", "--output-folder", "out", *arguments)
    assert result.exit_code == 1
    assert message in result.output and "Traceback" not in result.output


@pytest.mark.parametrize(("form", "option"), [("hf", "--split"), ("jsonl", "--glob-pattern")])
def test_the_help_of_a_form_needs_nothing_else(form: str, option: str) -> None:
    result = preprocess(form, "--help")
    assert result.exit_code == 0 and option in result.output
    given = ["--tokenizer-name-or-path", "tok1k"]
    for before, missing in (([], "--tokenizer-name-or-path"), (given, "--output-folder")):
        refused = preprocess(*before, form, "--dataset", "jsonl")
        assert refused.exit_code == 2 and f"Missing option '{missing}'" in refused.output


def test_a_column_that_no_line_has_is_a_failure(folder: Path) -> None:
    result = preprocess(
        "--tokenizer-name-or-path", "tok1k", "--output-folder", "out", "jsonl", "--dataset", "jsonl", "--column", "txt"
    )
    assert result.exit_code == 1 and "there is no .txt" in result.output


def test_unknown_tokenizers_and_tokens(folder: Path) -> None:
    result = preprocess("--tokenizer-name-or-path", "gpt9", "--output-folder", "out", "jsonl", "--dataset", "jsonl")
    assert result.exit_code == 1 and "gpt9" in result.output
    result = preprocess(
        "--tokenizer-name-or-path", "tok1k", "--eos-token", "<eos>", "--output-folder", "out",
        "jsonl", "--dataset", "jsonl",
    )  # fmt: skip
    assert result.exit_code == 1 and "has no EOS '<eos>'" in result.output
    assert not (folder / "out").exists() or not list((folder / "out").iterdir())
