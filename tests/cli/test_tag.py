"""``feedmill tag`` as people meet it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from feedmill.cli.app import app
from helpers.document_datasets import contents, write_tree


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["tag", *map(str, arguments)])


def test_a_folder_is_tagged_and_the_report_says_what_was_done(tmp_path: Path) -> None:
    write_tree(tmp_path)
    result = run(tmp_path / "documents", "-t", "c4_v2", "-t", "gopher_v2", "--name", "quality", "--workers", 2)
    assert result.exit_code == 0, result.output
    assert "files       4" in result.output and "documents   500" in result.output
    assert len(contents(tmp_path / "attributes/quality")) == 4
    assert (
        "4 (4 up to date)" in run(tmp_path / "documents", "-t", "c4_v2", "-t", "gopher_v2", "--name", "quality").output
    )


def test_json_is_one_document(tmp_path: Path) -> None:
    write_tree(tmp_path, 1)
    (tmp_path / "documents/bad.jsonl").write_text("{\n")
    result = run(tmp_path / "documents", "-t", "doc_count_v1", "--json", "--on-error", "skip")
    assert result.exit_code == 4
    report = json.loads(result.stdout)
    assert report["rows"] == 50 and report["failed"][0]["kind"] == "bad-document"


def test_a_bad_file_is_one_message(tmp_path: Path) -> None:
    write_tree(tmp_path, 1)
    (tmp_path / "documents/bad.jsonl").write_text('{"id": "a", "text": "b"}\n\n')
    for status, more in ((1, []), (4, ["--on-error", "skip"])):
        result = run(tmp_path / "documents", "-t", "doc_count_v1", *more)
        assert result.exit_code == status and "Traceback" not in result.output
        assert "bad.jsonl" in result.output and "line 2" in result.output and "blank" in result.output


def test_taggers_are_listed_with_the_files_that_they_need() -> None:
    output = run("--list").output
    assert "gopher_v2 " in output and "ft_lang_id_doc_v1=PATH" in output
    listed = {each["name"]: each for each in json.loads(run("--list", "--json").stdout)}
    assert listed["ft_lang_id_doc_v1"]["needs_file"] and not listed["gopher_v2"]["needs_file"]


def test_mistakes_are_one_message() -> None:
    for arguments in ([], ["x"], ["x", "-t", "nobody"], ["no/such", "-t", "c4_v2"]):
        result = run(*arguments)
        assert result.exit_code == 1 and result.output.startswith("error:") and "Traceback" not in result.output
