"""Tokens as text: in `preview`, `trace --show` and errors, with borders of documents and loss masks marked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import DataError
from feedmill.formats.tokens.windows import WindowDataset
from feedmill.samples.preview import preview
from feedmill.tokens.pieces import row_text

TOKENIZER = Path(__file__).parents[1] / "golden" / "modalities" / "tok256"
TEXTS = ["The first text. ", "Ein zweiter Text mit Ärger. ", "third: " + "word " * 200]
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}"
    "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    shutil.copytree(TOKENIZER, tmp_path / "tok")
    rows = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(TEXTS)]
    (tmp_path / "d.jsonl").write_text("\n".join(rows))
    fm.tokenize(str(tmp_path / "d.jsonl"), str(tmp_path / "d"), tokenizer=str(tmp_path / "tok"), progress=False)
    return tmp_path / "d.pbin"


def feedmill(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words)], prog_name="feedmill")
    assert done.exit_code == 0, done.output
    return done.output


def texts(report: Any) -> list[str]:
    return [sample["parts"]["text"] for sample in report.samples]


def test_preview_decodes_documents(tokens: Path) -> None:
    found = texts(preview(tokens))
    assert found[:2] == [f"{text}<|endoftext|>" for text in TEXTS[:2]]
    assert found[2].startswith("third: word word") and found[2].endswith("... (+608 tokens)")
    assert all(len(line) <= 110 for line in found[2].splitlines())
    assert "Ein zweiter Text mit Ärger. <|endoftext|>" in feedmill("show", tokens)


def test_windows_have_lines_between_documents(tokens: Path) -> None:
    windows = WindowDataset(fm.open(tokens), width=32)  # type: ignore[arg-type]
    first = row_text(windows, windows.read([0])[0])
    assert first == "The first text. <|endoftext|>\n--- document at token 17 ---\nEin zweiter Text"[: len(first)]
    assert first.count("--- document at token 17 ---") == 1
    assert row_text(windows, windows.read([0])[0], (17, 20)) == "Ein"


def test_trace_shows_the_part_that_is_in_a_packed_row(tokens: Path, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("source: d.pbin\npack: {seq_len: 24, method: concat}\nshuffle: none\nepochs: 1\n")
    shown = feedmill("trace", tmp_path / "r.yaml", "--step", 0, "--global-batch", 1, "--show")
    assert "text:          The first text. <|endoftext|>\n" in shown and "text:          Ein zwe\n" in shown


def test_tokens_outside_the_loss_are_marked(tmp_path: Path) -> None:
    shutil.copytree(TOKENIZER, tmp_path / "tok")
    (tmp_path / "tok" / "chat_template.jinja").write_text(TEMPLATE)
    rows = [{"role": "user", "content": "Why? "}, {"role": "assistant", "content": "So."}]
    (tmp_path / "c.jsonl").write_text(json.dumps({"messages": rows}))
    out = str(tmp_path / "c")
    fm.tokenize(str(tmp_path / "c.jsonl"), out, tokenizer=str(tmp_path / "tok"), chat="auto", progress=False)
    assert texts(preview(f"{out}.pbin")) == ["[no loss: Why? ]So."]


def test_text_tokenized_when_it_is_read_is_decoded_too(tokens: Path, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "source: {path: d.jsonl, tokenize: {tokenizer: tok}}\npack: {seq_len: 24, method: concat}\nshuffle: none\n"
    )
    shown = feedmill("trace", tmp_path / "r.yaml", "--step", 0, "--global-batch", 1, "--show")
    assert "text:          The first text. <|endoftext|>\n" in shown


def test_a_missing_tokenizer_is_said_and_data_without_tokens_is_as_before(tokens: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "tok")
    assert texts(preview(tokens, count=1))[0].startswith("(not decoded: ")
    Path(f"{tokens}.feedmill.json").unlink()
    assert "(not decoded: no manifest names the tokenizer; " in texts(preview(tokens, count=1))[0]
    assert list(preview(tmp_path / "d.jsonl").samples[0]["parts"]) == ["json"]


def broken(sample: Any) -> Any:
    raise ValueError("no such luck")


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_samples_have_their_text_as_a_note(tokens: Path, workers: int) -> None:
    plan = fm.Plan.over([fm.open(tokens)], shuffle="none")
    with pytest.raises(DataError, match="failed with ValueError: no such luck") as error:
        next(iter(fm.Loader(plan, 1, transform=broken, workers=workers)))
    assert error.value.__notes__ == ["The tokens as text:\nThe first text. <|endoftext|>"]


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_packed_rows_have_the_text_of_their_documents(tokens: Path, tmp_path: Path, workers: int) -> None:
    (tmp_path / "r.yaml").write_text("source: d.pbin\npack: {seq_len: 24, method: concat}\nshuffle: none\nepochs: 1\n")
    with pytest.raises(DataError, match="failed with ValueError: no such luck") as error:
        next(iter(fm.Loader(tmp_path / "r.yaml", 1, transform=broken, workers=workers)))
    shown = "The first text. <|endoftext|>\n--- document at token 17 ---\nEin zwe"
    assert error.value.__notes__ == [f"The tokens as text:\n{shown}"]


def test_errors_of_packed_rows_without_their_tokenizer_say_so(tokens: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "tok")
    (tmp_path / "r.yaml").write_text("source: d.pbin\npack: {seq_len: 24}\nshuffle: none\nepochs: 1\n")
    with pytest.raises(DataError, match="no such luck") as error:
        next(iter(fm.Loader(tmp_path / "r.yaml", 1, transform=broken)))
    assert error.value.__notes__[0].startswith("The tokens as text:\n(not decoded: ")
