from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from feedmill.cli.output import emit, facts, fail, human_rate, human_size, printable, table, to_json
from feedmill.errors import FeedmillError


def test_emit_prints_one_document_or_calls_human(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"n": np.int64(3), "path": Path("a")}, True, lambda: pytest.fail("not for people"))
    assert json.loads(capsys.readouterr().out) == {"n": 3, "path": "a"}
    called: list[int] = []
    emit({}, False, lambda: called.append(1))
    assert called == [1] and capsys.readouterr().out == ""


def test_json_takes_arrays_and_any_key() -> None:
    assert json.loads(to_json({1: np.arange(3)})) == {"1": [0, 1, 2]}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (5_120, "5.12 kB"),
        (123_456, "123 kB"),
        (2**40, "1.1 TB"),
        (5e15, "5,000 TB"),
    ],
)
def test_human_size(count: float, text: str) -> None:
    assert human_size(count) == text


def test_tables_and_facts_print_every_cell_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    table(["split", "samples"], [("train[x]", 12345), ("val", 2)])
    table(["recipe", "web[topic=code]"], [("run-001", "50%")])
    facts([("format", "jsonl"), ("nothing", None), ("indexed", True)])
    out = capsys.readouterr().out
    assert "train[x]" in out and "12,345" in out and "web[topic=code]" in out
    assert "jsonl" in out and "yes" in out and "nothing" not in out


def test_json_takes_what_orjson_does_not() -> None:
    """Names of files that are not UTF-8, and numbers beyond 64 bits."""
    data = {
        "name": "b\udcff",
        "n": 10**20,
        "nan": float("nan"),
        "path": Path("a"),
        1: (np.arange(2), np.float64(0.5), None),
    }
    assert json.loads(to_json(data)) == {
        "name": "b\udcff",
        "n": 10**20,
        "nan": None,
        "path": "a",
        "1": [[0, 1], 0.5, None],
    }


def test_an_error_about_an_odd_name_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    fail(FeedmillError("no \x1b[31mred", file="b\udcff"), as_json=True)
    shown = capsys.readouterr()
    assert json.loads(shown.out)["error"]["file"] == "b\udcff"
    assert "\x1b" not in shown.err and r"no \x1b[31mred" in shown.err


def test_text_of_data_does_not_command_the_terminal() -> None:
    assert printable("a\tb\n\x1b[2J\x9b1m\x07é\r") == "a\tb\n\\x1b[2J\\x9b1m\\x07é\\r"


@pytest.mark.parametrize("width", [30, 50, 80, 100])
def test_a_narrow_terminal_breaks_no_number(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(width=width, highlight=False, force_terminal=True, color_system=None)
    monkeypatch.setattr("feedmill.cli.output._console", lambda: console)
    columns = ["source", "samples", "used", "tokens", "asked", "realized", "drawn", "repeats", "to read"]
    row = ["a/rather/long/name", 141_384, 141_384, 9_876_543, "50.0000%", "49.9998%", "≈250,000", 1.768, "48.2 MB"]
    console.file = io.StringIO()
    table(columns, [row, ["b", *row[1:]]])
    out = console.file.getvalue() + capsys.readouterr().out
    for text in (*columns[1:], "141,384", "9,876,543", "50.0000%", "49.9998%", "≈250,000", "48.2 MB"):
        assert out.count(text) >= (1 if text in columns else 2), text
    assert max(len(line.rstrip()) for line in out.splitlines()) <= width


def test_long_texts_are_folded_beside_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=60, highlight=False, force_terminal=True, color_system=None, file=io.StringIO())
    monkeypatch.setattr("feedmill.cli.output._console", lambda: console)
    table(["name", "count", "why"], [["a", 12_345, "words " * 20]])
    assert "12,345" in console.file.getvalue() and console.file.getvalue().count("words") == 20


def test_rates() -> None:
    assert [human_rate(n, "tokens") for n in (0, 310, 1234, 2.4e6, 3e9)] == [
        *("0 tokens/s", "310 tokens/s", "1.2 k tokens/s", "2.4 M tokens/s", "3.0 G tokens/s"),
    ]
