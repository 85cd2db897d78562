from __future__ import annotations

import sysconfig
from pathlib import Path

import orjson
import pytest

from feedmill.demo import corpus
from feedmill.demo.corpus import Document, standard_library, write_docs
from feedmill.errors import DataError
from feedmill.storage import LocalStore


def test_documents_are_many_distinct_and_the_same_each_time() -> None:
    documents = standard_library(400)
    assert len(documents) == 400
    assert len({document.id for document in documents}) == 400
    assert all(len(document.text) >= 120 and document.title for document in documents)
    assert documents == standard_library(400)


def test_docstrings_and_sources_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "test").mkdir()
    long = "word " * 40
    source = f'"""{long}"""\nraise SystemExit  # never run\nclass A:\n    def f(self):\n        """{long}"""\n'
    (tmp_path / "pkg" / "__init__.py").write_text(source)
    (tmp_path / "test" / "left_out.py").write_text(source)
    (tmp_path / "broken.py").write_text("def (")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    found = standard_library(10)
    assert [document.id for document in found] == ["pkg", "pkg:A.f", "pkg@1"]
    assert found[1] == Document("pkg:A.f", "pkg.A.f", long.strip())
    assert found[2].text == source.strip("\n")


def test_a_python_without_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match="no sources"):
        standard_library(3)


def test_no_module_gives_more_than_its_share() -> None:
    modules = [document.id.partition(":")[0].partition("@")[0] for document in standard_library(600)]
    assert max(modules.count(module) for module in set(modules)) <= corpus.PER_MODULE


def test_docs_as_jsonl(tmp_path: Path) -> None:
    write_docs(LocalStore(tmp_path), "docs.jsonl", [Document("a", "A", "x\ny"), Document("b", "B", "ü")])
    lines = (tmp_path / "docs.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line) for line in lines] == [
        {"id": "a", "title": "A", "text": "x\ny"},
        {"id": "b", "title": "B", "text": "ü"},
    ]
