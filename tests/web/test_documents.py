"""Documents without an index: their attributes as columns, spans in their text, and what is left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import NotFound
from feedmill.web.documents import Span, marked_text, open_documents
from helpers.web_server import serving

TEXTS = [f"write to user{n}@example.org now. " + "word " * n for n in range(1, 41)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of documents with attributes: lengths, addresses, and duplicates of some."""
    (tmp_path / "documents").mkdir()
    for name, rows in (("a", TEXTS[:30]), ("b", [*TEXTS[30:], TEXTS[0]])):
        lines = [json.dumps({"id": f"{name}{n}", "text": text, "source": name}) for n, text in enumerate(rows)]
        (tmp_path / f"documents/{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    documents = str(tmp_path / "documents")
    fm.tag(documents, ["char_length_v1", "pii_regex_v2"], name="q", progress=False)
    fm.dedupe(documents, name="dup", progress=False)
    return tmp_path


def test_attributes_are_columns(folder: Path) -> None:
    found = open_documents(str(folder / "documents"))
    assert len(found) == 41 and found.sets == ["dup", "q"] and not found.unread
    lengths = [len(text) for text in [*TEXTS, TEXTS[0]]]
    assert found.columns["characters"].tolist() == found.columns["q__char_length_v1__length"].tolist() == lengths
    assert np.flatnonzero(found.columns["dup"] == 1).tolist() == [40]
    assert (found.columns["spans of q__pii_regex_v2__EMAIL_ADDRESS"] == 1).all()
    assert found.locate(30).key == "b0" and found.find("b0") == 30 and found.locate(30).offset == 1
    with pytest.raises(NotFound):
        found.find("c")


def test_blank_lines_are_no_documents(tmp_path: Path) -> None:
    """As for `feedmill.open`; attributes, which are matched by the number of the line, stay with their documents."""
    for kind in ("documents", "attributes/q"):
        (tmp_path / kind).mkdir(parents=True)
        rows = [{"id": str(n), "text": "x", "attributes": {"q__n": [[0, 1, n]]}} for n in range(3)]
        text = "\n".join(f"{json.dumps(row)}\n{blank}" for row, blank in zip(rows, ("", "  ", ""), strict=True))
        (tmp_path / kind / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    found = open_documents(str(tmp_path / "documents"))
    assert len(found) == 3 and [found.locate(n).key for n in range(3)] == ["0", "1", "2"]
    assert [found.locate(n).offset for n in range(3)] == [1, 3, 5]
    assert found.columns["q__n"].tolist() == [0, 1, 2]


def test_pages_of_documents(folder: Path) -> None:
    with serving(folder / "documents") as site:
        data = site.get("/documents/samples.json?f.q__char_length_v1__length=100:150&at=15").json
        lengths = [len(text) for text in [*TEXTS, TEXTS[0]]]
        assert [row["index"] for row in data["rows"]] == [n for n, size in enumerate(lengths) if 100 <= size <= 150]
        assert site.get("/documents/samples.json?f.dup=1:1").json["selected"] == 1
        page = site.get("/documents/samples?at=15")
        assert "<mark" in page.text and "EMAIL_ADDRESS" in page.words and "attributes of dup, q" in page.words
        assert site.get("/documents/samples?sort=dup").status == site.get("/documents/health").status == 200
        names: dict[str, object] = {}
        program = site.get("/documents/samples.json?f.characters=100:150&sort=-characters").json["python"]
        exec(program, names)
        assert len(names["samples"]) == data["selected"]  # type: ignore[arg-type]


def test_what_is_not_read_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.web.documents.MOST_DOCUMENTS", 35)
    with serving(folder / "documents") as site:
        data = site.get("/documents/samples.json").json
        assert 30 < data["samples"] <= 35 and data["unread"]  # the first ones of both files
        assert "There are more documents" in site.get("/documents/samples").words


def test_rows_that_are_no_documents(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b'{"text": 3}\n[1]\n{"id": 7, "text": "ok"}\nnull\n'))
    with serving(tmp_path / "x.jsonl.gz") as site:
        for n in range(4):
            assert site.get(f"/x.jsonl.gz/samples?at={n}").status == 200
        assert site.get("/x.jsonl.gz/samples.json?at=2").json["opened"]["key"] == "7"
    (tmp_path / "bad.jsonl.gz").write_bytes(b"\x1f\x8b broken")
    with pytest.raises(fm.FeedmillError), serving(tmp_path / "bad.jsonl.gz"):
        pass


def test_a_blank_line_first_is_no_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('\nx\n{"text": "x"}\n')
    with serving(tmp_path) as site:
        name = site.get("/index.json").json["things"][0]["name"]
        assert [site.get(f"/{name}/samples?at={n}").status for n in range(3)] == [200, 200, 404]
        opened = site.get(f"/{name}/samples.json?at=0").json["opened"]
    assert "this line is not JSON" in json.dumps(opened)


def test_a_text_is_cut_at_its_spans() -> None:
    spans = [Span(0, 4, "a__b", 1), Span(2, 6, "c", 1)]
    assert marked_text("abcdefgh", spans, 7) == (
        [
            {"text": "ab", "names": ["b"]},
            {"text": "cd", "names": ["b", "c"]},
            {"text": "ef", "names": ["c"]},
            {"text": "g", "names": []},
        ],
        1,
    )
    assert marked_text("", [], 5) == ([], 0)
