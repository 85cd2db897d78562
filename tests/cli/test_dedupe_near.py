"""``feedmill dedupe --near`` as people and programs use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from feedmill.cli.app import app
from helpers.near_copies import marked, write_documents

WORDS = [f"w{n}" for n in range(60)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    texts = [" ".join(WORDS), " ".join(WORDS[::-1]), " ".join([*WORDS, "more"]), "", " ".join(WORDS).upper()]
    write_documents(tmp_path, {"a.jsonl.gz": texts})
    return tmp_path


def feedmill(*words: str) -> Result:
    return CliRunner().invoke(app, ["dedupe", "--near", *words], prog_name="feedmill")


def test_for_people(folder: Path) -> None:
    done = feedmill("documents/*", "--workers", "1")
    assert done.exit_code == 0 and done.stdout.splitlines() == [
        "2 near-duplicates (40 %) among 5 documents in 1 file, in attributes/dup_near",
        "5 new documents, 1 of them without words; 2 pairs compared; 1 cluster",
        "lowest similarity of a near-duplicate to the document that is kept: 0.982",
        "clusters by documents: 1 of 3",
        "  3 documents: kept a/1 (documents/a.jsonl.gz, line 1); similar: a/3, a/5",
    ]
    assert marked(folder) == ["a/3", "a/5"]
    again = feedmill("documents/*", "--workers", "1")
    assert again.stdout.splitlines()[0] == "nothing to do: an earlier run did all of this"
    assert again.stdout.splitlines()[1:] == done.stdout.splitlines()


def test_for_programs(folder: Path) -> None:
    done = feedmill(
        "documents/*", "--json", "--name", "near", "--keep", "longest", "--keep-case", "--bands", "30", "--rows", "2",
        "--signatures", "s", "--threshold", "0.9", "--ngram", "3", "--keep-punctuation", "--workers", "1",
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert (report["duplicates"], report["added"], report["known"], report["signatures"]) == (1, 5, 5, "s")
    assert report["largest"][0]["kept"] == {"id": "a/3", "file": "documents/a.jsonl.gz", "line": 3}
    assert marked(folder, "near") == ["a/1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["documents/*.zst"], "documents/*.zst: no files match this pattern"),
        (["documents/*", "--threshold", "2"], "the threshold must be above 0 and up to 1, not 2.0"),
        (["documents/*", "--bands", "3"], "3 bands of 0 rows are invalid"),
        (["elsewhere/*"], "elsewhere/*: no files match this pattern"),
    ],
)
def test_errors(words: list[str], said: str) -> None:
    done = feedmill(*words)
    assert done.exit_code == 1 and said in done.output and "Traceback" not in done.output
    assert json.loads(feedmill(*words, "--json").stdout)["error"]["what"]
