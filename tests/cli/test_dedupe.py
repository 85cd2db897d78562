"""``feedmill dedupe`` as people and programs use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from feedmill.cli.app import app
from helpers.near_copies import write_documents


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_documents(tmp_path, {"a.jsonl.gz": ["one text", "another", "one text"]})
    return tmp_path


def feedmill(*words: str) -> Result:
    return CliRunner().invoke(app, ["dedupe", "documents", *words], prog_name="feedmill")


def test_what_was_marked_is_told() -> None:
    assert feedmill().stdout == "1 document of 3 in 1 file with duplicates (1 span), in attributes/dup_documents\n"
    assert json.loads(feedmill("--json").stdout)["skipped"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--items", "10"], "--bloom"),
        (["--false-positives", "0.1"], "--bloom"),
        (["--read-only"], "--bloom"),
        (["--bloom", "f.bin", "--items", "10", "--read-only"], "Use one of them"),
        (["--bloom", "f.bin", "--read-only"], "f.bin: Bloom filter not found"),
        (["--bloom", "f.bin"], "--items"),
        (["--bloom", "f.bin", "--items", "10", "--false-positives", "2"], "--false-positives between 0 and 1"),
    ],
)
def test_options_of_filters_that_make_no_sense(options: list[str], told: str, folder: Path) -> None:
    done = feedmill(*options)
    assert done.exit_code == 1 and told in done.stderr
    assert not (folder / "f.bin").exists()


def test_the_help_shows_the_separator_as_it_is_typed() -> None:
    assert "default: \\n." in feedmill("--help-all").output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ngram", "5"], "--ngram requires --by ngrams"),
        (["--by", "paragraphs", "--threshold", "0.9"], "--threshold requires --by ngrams"),
        (["--by", "paragraphs", "--stride", "2"], "--stride requires --by ngrams"),
        (["--separator", "x"], "--separator requires --by paragraphs or ngrams"),
        (["--by", "ngrams", "--key", "$.id"], "--key requires --by documents"),
        (["--false-positives", "0.1"], "require a Bloom filter"),
        (["--by", "ngrams", "--threshold", "nan"], "a threshold of nan"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words: list[str], message: str) -> None:
    done = feedmill(*words)
    assert done.exit_code == 1 and message in done.output and not Path("attributes").exists()


def test_options_where_they_belong() -> None:
    assert feedmill("--by", "ngrams", "--ngram", "2", "--stride", "1", "--threshold", "0").exit_code == 0
    assert feedmill("--by", "paragraphs", "--separator", "\\n\\n").exit_code == 0
    assert feedmill("--key", "$.id", "--name", "ids").exit_code == 0
