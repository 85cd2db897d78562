from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from feedmill.cli.app import app
from helpers.tokenizer_data import EOS, tokenizer_file, write_lines


def feedmill(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "a.jsonl", ["one", f"two{EOS}", "three"])


def test_tokenize_info_decode(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = (
        "tokenize",
        source,
        "-o",
        out,
        "-t",
        tokenizer_file("tok1k").parent,
        "--to",
        "pbin,ds",
        "--to",
        "megatron,dolma",
    )
    done = feedmill(*words)
    assert done.exit_code == 0, done.output
    assert f"EOS {EOS} where missing, template on" in done.output and "(fastokens)" in done.output
    again = feedmill(*words, "--json")
    assert json.loads(again.stdout)["complete"] is True
    told = feedmill("show", f"{out}.pbin")
    assert told.exit_code == 0 and str(tokenizer_file("tok1k").parent) in told.output
    for suffix in ("pbin", "ds", "bin", "idx", "npy"):
        shown = feedmill("tokens", "decode", f"{out}.{suffix}", "--json", "--ids", "-d", 2, "-d", 0, "--skip-special")
        assert shown.exit_code == 0, shown.output
        found = json.loads(shown.stdout)
        assert [(d["document"], d["text"]) for d in found] == [(2, "three"), (0, "one")]
        assert len(found[0]["ids"]) == found[0]["tokens"]
    assert f"two{EOS}" in feedmill("tokens", "decode", f"{out}.pbin").output
    assert "the beginning" in feedmill("tokens", "decode", f"{out}.pbin", "--max-tokens", 1).output


def test_errors_are_one_message(source: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_file("tok1k")
    out = tmp_path / "out"
    for words, said in (
        (("-t", tmp_path / "none"), "the tokenizer does not exist"),
        (("-t", tokenizer, "--eos", "<|end|>"), "Did you mean"),
        (("-t", tokenizer, "--to", "zip"), "unknown token format"),
        (("-t", tokenizer, "--on-error", "ignore"), "Use 'raise' or 'skip'"),
        (("-t", tokenizer, "--tokenizer-backend", "fast"), "unknown tokenizer backend"),
        (("-t", tokenizer, "--text", "nothing"), "line 1"),
    ):
        done = feedmill("tokenize", source, "-o", out, *words)
        assert done.exit_code == 1 and said in done.output and "Traceback" not in done.output, done.output
    assert feedmill("tokenize", source, "-o", out, "-t", tokenizer).exit_code == 0
    done = feedmill("tokens", "decode", f"{out}.pbin", "-t", tokenizer_file("tok1k_bos"))
    assert done.exit_code == 1 and "another tokenizer" in done.output
    assert "no document 7" in feedmill("tokens", "decode", f"{out}.pbin", "-d", 7).output
    Path(f"{out}.pbin.feedmill.json").unlink()
    assert "--tokenizer" in feedmill("tokens", "decode", f"{out}.pbin").output
    assert "expected token files" in feedmill("tokens", "decode", source, "-t", tokenizer).output


def test_what_is_left_out_is_listed(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", ["one", b"{", "two"])
    done = feedmill("tokenize", source, "-o", tmp_path / "a", "-t", tokenizer_file("tok1k"), "--on-error", "skip")
    assert done.exit_code == 0 and "1 document\n" in done.output and f"skipped: {source} line 2: " in done.output


def test_a_run_that_skips_every_document_is_an_error_that_names_the_fields(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("tokenize", source, "-o", out, "-t", tokenizer_file("tok1k"), "--text", "txt", "--on-error", "skip")
    done = feedmill(*words)
    assert done.exit_code == 1
    assert "0 of 3 documents kept" in done.output and "--allow-empty" in done.output
    assert 'there is no .txt (its fields: "text")' in done.output and f"{source} line 1" in done.output
    assert sorted(tmp_path.iterdir()) == [source]
    assert feedmill(*words, "--allow-empty").exit_code == 0 and Path(f"{out}.pbin").exists()
    again = feedmill(*words)  # the output is there, and still it is empty
    assert again.exit_code == 1 and "0 of 3 documents kept" in again.output


def test_tokenizing_no_documents_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n\n")
    words = ("tokenize", tmp_path / "a.jsonl", "-o", tmp_path / "out", "-t", tokenizer_file("tok1k"))
    done = feedmill(*words)
    assert done.exit_code == 1 and "the inputs hold no documents" in done.output
    assert feedmill(*words, "--allow-empty").exit_code == 0


def test_a_missing_field_is_named_with_those_that_there_are(source: Path, tmp_path: Path) -> None:
    done = feedmill("tokenize", source, "-o", tmp_path / "out", "-t", tokenizer_file("tok1k"), "--text", "txt")
    assert done.exit_code == 1 and 'there is no .txt (its fields: "text")' in done.output
