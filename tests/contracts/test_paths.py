"""Every function of the package takes a `pathlib.Path` where it takes a path, and one path where it takes several."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import FeedmillError, NotFound
from helpers.tars import make_shards
from helpers.tokenizer_data import tokenizer_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_shards(tmp_path / "tars", [5, 5])
    fm.prepare(tmp_path / "tars", progress=False)
    make_shards(tmp_path / "more", [2])
    (tmp_path / "documents").mkdir()
    rows = [json.dumps({"id": str(n), "text": f"hello world {n} " * 5}) + "\n" for n in range(20)]
    (tmp_path / "documents/a.jsonl").write_text("".join(rows))
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    fm.tokenize([tmp_path / "documents"], tmp_path / "t", tokenizer=tokenizer_file("tok1k"), progress=False)
    return tmp_path


CALLS: dict[str, Callable[[Path], Any]] = {
    "append": lambda root: fm.edit.append(root / "tars", root / "more", prefix="more-"),
    "check": lambda root: fm.check(root / "tars", progress=False),
    "convert": lambda root: fm.convert(root / "tars", root / "mds", to="mds", progress=False),
    "decode": lambda root: fm.tokens.decode(root / "t.pbin"),
    "dedupe": lambda root: fm.dedupe(root / "documents", progress=False),
    "delete": lambda root: fm.edit.delete(root / "tars", ["s00001"]),
    "filter": lambda root: fm.filter(root / "t.pbin", root / "f.pbin", min_length=1),
    "index": lambda root: fm.tokens.index(root / "rows.jsonl"),
    "info": lambda root: fm.info(root / "tars"),
    "merge": lambda root: fm.tokens.merge(root / "t.pbin", root / "m.pbin"),
    "decontaminate": lambda root: fm.documents.decontaminate(
        root / "documents", against=[root / "documents"], progress=False
    ),
    "neardedupe": lambda root: fm.dedupe(root / "documents", near=True, progress=False),
    "open": lambda root: fm.open(root / "tars"),
    "open_store": lambda root: fm.open_store(root),
    "prepare": lambda root: fm.prepare(root / "rows.jsonl", progress=False),
    "preview": lambda root: fm.preview(root / "tars"),
    "repair": lambda root: fm.edit.repair(root / "tars", progress=False),
    "report": lambda root: fm.report(root / "tars", root / "r.html"),
    "reshard": lambda root: fm.edit.reshard(root / "tars", root / "re", max_shard_samples=3, progress=False),
    "shuffle": lambda root: fm.tokens.shuffle(root / "t.pbin", root / "s.pbin", seed=1),
    "split": lambda root: fm.tokens.split(root / "t.pbin", root / "x.{part}.pbin", chunks=2),
    "stat": lambda root: fm.documents.stat(root / "documents"),
    "tag": lambda root: fm.tag(root / "documents", ["char_length_v1"], progress=False),
    "tokenize": lambda root: fm.tokenize(root / "documents", root / "u", tokenizer=tokenizer_file("tok1k")),
    "write": lambda root: fm.write(root / "w", [{"__key__": "z", "txt": "a"}]),
}


@pytest.mark.parametrize("name", CALLS)
def test_paths_are_taken(name: str, root: Path) -> None:
    assert CALLS[name](root) is not None


@pytest.mark.parametrize("name", ["check", "info", "merge", "prepare", "preview", "tag", "tokenize"])
def test_a_path_that_does_not_exist_is_one_message(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        CALLS[name](tmp_path)
    assert str(tmp_path) in str(caught.value) and isinstance(caught.value.file, str)


def test_an_error_has_its_file_as_text() -> None:
    assert FeedmillError("no", file=Path("a/b")).file == "a/b"  # type: ignore[arg-type]
