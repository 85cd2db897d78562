"""The lines of a file, indexed by ranges on an engine: what one pass over the file gives."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import DataError
from feedmill.formats import line_ranges
from feedmill.jobs.engine import StageUnfinished
from feedmill.jobs.parts import PartEngine
from feedmill.tokens.verbs.index import index
from helpers.durations import slow_but

TEXTS = {
    "plain": b'{"a": 1}\n' * 40,
    "open end": b'{"a": 1}\n' * 7 + b'{"b": 2}',
    "blank": b'\n  \n{"a": 1}\n\n\n{"a": 2}\n \t\n\n' + b"\n" * 50 + b'{"b": 2}\n\n\n',
    "long": b'{"a": "' + b"x" * 300 + b'"}\n{"b": 1}\r\n' + b'{"a": "' + b"y" * 90 + b'"}\n',
}


def in_parts(verb: Callable[[], Any]) -> Any:
    for part in (2, 1):
        with PartEngine(part, 2), pytest.raises(StageUnfinished):
            verb()
    with PartEngine(finish=True):
        return verb()


@pytest.mark.parametrize(
    ("text", "size"),
    slow_but(product(TEXTS, [1, 7, 64, 1 << 20]), *product(TEXTS, [1, 64]), ("blank", 1 << 20)),
)
def test_ranges_give_the_index_of_one_pass(
    text: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_ranges, "RANGE", size)
    found = []
    for name, run in (("here", lambda verb: verb()), ("parts", in_parts)):
        path = tmp_path / name / "x.jsonl"
        path.parent.mkdir()
        path.write_bytes(TEXTS[text])
        run(lambda path=path: fm.prepare(str(path), split_ratio="1,1", progress=False))
        report = run(lambda path=path: index(str(path), on_error="skip", progress=False))
        found.append(({p.name: p.read_bytes() for p in path.parent.iterdir()}, report.entries, report.bad))
    assert found[0] == found[1]


@pytest.mark.parametrize("text", [b'{"a": 1}\n' * 9 + b"[1]\n" + b'{"a": 1}\n{\n', b"\n\n", b""])
def test_ranges_give_the_error_of_one_pass(text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_ranges, "RANGE", 16)
    path = tmp_path / "x.jsonl"
    path.write_bytes(text)
    for verb in (lambda: fm.prepare(str(path), progress=False), lambda: index(str(path), progress=False)):
        with pytest.raises(DataError) as wanted:
            verb()
        with PartEngine(finish=True), pytest.raises(DataError) as caught:
            verb()
        assert str(caught.value) == str(wanted.value)
