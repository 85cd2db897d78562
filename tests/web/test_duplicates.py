"""The duplicates: clusters as verbs wrote them or as found, source by source, and the words in which texts differ."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedmill as fm
from feedmill.web.duplicates import MOST_WORDS, diff
from helpers.web_server import Site, serving


def get(site: Site, query: str = "") -> Any:
    answer = site.get(f"/documents/duplicates.json?{query}")
    assert answer.status == 200, answer.text
    return answer.json


def members(site: Site, query: str) -> list[set[str]]:
    """The keys of the documents of each cluster."""
    data = get(site, query)
    return [
        {one["key"] for one in get(site, f"{query}&cluster={row['cluster']}")["opened"]["members"]}
        for row in data["rows"]
    ]


def documents(root: Path, files: dict[str, list[dict[str, Any]]]) -> Path:
    (root / "documents").mkdir(parents=True)
    for name, rows in files.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (root / f"documents/{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return root / "documents"


def test_clusters_as_the_verbs_wrote_them(site: Site, root: Path) -> None:
    data = get(site, "set=dup_near")
    assert data["written"] and data["kind"] == "near" and data["clusters"] == len(data["rows"]) > 3
    assert data["report"]["clusters"] == data["clusters"] and data["report"]["duplicates"] == data["duplicates"]
    assert {"a5", "a40", "b70"} in members(site, "set=dup_near") and {"a49", "a45", "b90"} in members(
        site, "set=dup_near"
    )
    exact = get(site, "set=dup")
    assert exact["written"] and exact["kind"] == "exact"
    groups = members(site, "set=dup")
    assert {"a5", "a40", "b70"} in groups and {"a6", "b71"} in groups
    assert exact["duplicates"] == sum(len(group) - 1 for group in groups)
    assert data["sets"] == ["dup", "dup_near"]


def test_clusters_that_are_found_here_are_those_of_the_verb(site: Site, root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "corpus/documents", tmp_path / "documents")
    with serving(tmp_path / "documents") as plain:
        data = get(plain)
        assert data["sets"] == ["exact", "near"] and not data["written"] and "found here" in data["about"]
        assert "found here, nothing is written" in plain.get("/documents/duplicates?set=near").words
        for here, written in (("exact", "dup"), ("near", "dup_near")):
            assert members(plain, f"set={here}") == members(site, f"set={written}")
            one, other = get(plain, f"set={here}"), get(site, f"set={written}")
            assert one["duplicates"] == other["duplicates"] and one["sources"] == other["sources"]


def test_a_file_of_several(root: Path) -> None:
    with serving(root / "corpus/documents/b.jsonl.gz") as site:
        data = site.get("/b.jsonl.gz/duplicates.json?set=dup_near").json
        marked = {key for row in data["rows"] for key in [row["cluster"]] if row["marked"]}
        assert data["elsewhere"] > 0 and data["duplicates"] == data["elsewhere"] + sum(
            row["marked"] for row in data["rows"] if row["cluster"] in marked
        )
        assert "not in memory" in site.get("/b.jsonl.gz/duplicates?set=dup_near").words


def test_near_duplicates_among_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.web.duplicates.MOST_NEAR", 20)
    words = " ".join(f"word{k}" for k in range(60))
    folder = documents(tmp_path, {"a": [{"id": f"d{n}", "text": f"{words} {n}"} for n in range(60)]})
    with serving(folder) as site:
        data = get(site, "set=near")
        assert data["compared"] == 20 and data["duplicates"] == 19 and data["sources"][0]["documents"] == 20
        assert "among 20 documents from everywhere" in site.get("/documents/duplicates?set=near").words


def test_source_by_source(site: Site) -> None:
    data = get(site, "set=dup_near")
    assert sum(row["documents"] for row in data["sources"]) == 120
    assert sum(row["marked"] for row in data["sources"]) == data["duplicates"]
    assert sum(cell["count"] for row in data["sources"] for cell in row["of"]) == data["duplicates"]
    some = get(site, "set=dup_near&source=news")
    assert 0 < some["selected"] <= data["clusters"]
    assert all("news" in [one["name"] for one in row["sources"]] for row in some["rows"])


def test_two_members_side_by_side(site: Site) -> None:
    rows = get(site, "set=dup_near")["rows"]
    number = next(k for k, keys in enumerate(members(site, "set=dup_near")) if "a49" in keys)
    opened = get(site, f"set=dup_near&cluster={rows[number]['cluster']}")["opened"]
    assert {one["is"] for one in opened["members"]} == {"a", "b", None}
    found = opened["diff"]
    assert found["only_a"] + found["only_b"] == 4 and " and a new end" in [one["text"] for one in found["pieces"]]
    page = site.get(f"/documents/duplicates?set=dup_near&cluster={rows[number]['cluster']}")
    assert "and a new end" in page.words and ("<ins>" in page.text or "<del>" in page.text)
    other = opened["members"][2]["index"]
    again = get(site, f"set=dup_near&cluster={rows[number]['cluster']}&b={other}")["opened"]
    assert again["b"]["index"] == other and again["previous_b"] is not None


def test_paragraphs(tmp_path: Path) -> None:
    texts = ["news\nsubscribe now", "soup\nsubscribe now", "news\nsubscribe now", "nothing"]
    folder = documents(tmp_path, {"a": [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)]})
    fm.dedupe(str(folder), by="paragraphs", progress=False)
    with serving(folder) as site:
        data = get(site, "set=dup_paragraphs")
        assert data["kind"] == "paragraphs" and data["duplicates"] == 2
        assert sorted(map(sorted, members(site, "set=dup_paragraphs"))) == [["d1", "d2"], ["d2"]]
        assert data["sets"] == ["dup_paragraphs", "exact", "near"]
        alone = next(row for row in data["rows"] if row["documents"] == 1)
        assert "Only one document in memory" in site.get(f"/documents/duplicates?cluster={alone['cluster']}").words


def test_a_key_other_than_the_text(tmp_path: Path) -> None:
    rows = [{"id": f"d{n}", "text": f"text {n}", "metadata": {"url": f"u{n % 3}"}} for n in range(6)]
    folder = documents(tmp_path, {"a": rows})
    fm.dedupe(str(folder), key="$.metadata.url", name="url", progress=False)
    with serving(folder) as site:
        assert get(site, "set=url")["clusters"] == 3 and "$.metadata.url" in get(site, "set=url")["about"]
        assert {"d0", "d3"} in members(site, "set=url")


def test_nothing_and_nonsense(site: Site, root: Path, tmp_path: Path) -> None:
    folder = documents(tmp_path, {"a": [{"id": "x", "text": "one"}, {"id": "y", "text": "two"}, {"id": "z"}]})
    with serving(folder, root / "pages") as other:
        for name in ("exact", "near"):
            page = other.get(f"/documents/duplicates?set={name}")
            assert page.status == 200 and "No duplicates" in page.words and "3 documents were compared" in page.words
        assert "without documents" in other.get("/pages/duplicates").words
    for query, status in (
        ("set=x", 400),
        ("source=x", 400),
        ("cluster=99999", 404),
        ("cluster=0&a=119&b=118", 404),
        ("cluster=-1", 400),
        ("page=0", 400),
    ):
        assert site.get(f"/documents/duplicates?{query}").status == status


def test_hostile_texts_stay_text(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script><img src=x onerror="alert(2)">\u202e</del></main>'
    rows = [
        {"id": f"<b>{n}", "text": evil + " word" * 40 + end, "source": "<i>"} for n, end in enumerate(("", "", " x"))
    ]
    folder = documents(tmp_path, {"a": rows})
    with serving(folder) as site:
        for query in ("set=exact&cluster=0", "set=near&cluster=0&a=0&b=2"):
            page = site.get(f"/documents/duplicates?{query}")
            assert page.status == 200 and "<script>alert" not in page.text and "<img" not in page.text
            assert "<i>" not in page.text and "U+202E" in page.text


@given(st.text("ab \n", max_size=40), st.text("ab \n", max_size=40))
def test_differences_join_to_both_texts(a: str, b: str) -> None:
    found = diff(a, b)
    for kind, text in (("a", a), ("b", b)):
        words = " ".join(piece["text"] for piece in found["pieces"] if piece["kind"] in ("same", kind)).split()
        assert words == text.split()


def test_differences_of_long_texts_are_bounded() -> None:
    a, b = " ".join(f"a{n}" for n in range(50_000)), " ".join(f"b{n}" for n in range(50_000))
    found = diff(a, b)
    assert found["only_a"] == found["only_b"] == MOST_WORDS and found["left_out"] > 0 and found["unread"] > 0
    same = " ".join(map(str, range(500)))
    found = diff(f"{same} x {same}", f"{same} y {same}")
    assert [piece["kind"] for piece in found["pieces"]] == ["hidden", "same", "a", "b", "same", "hidden"] or [
        piece["kind"] for piece in found["pieces"]
    ] == ["hidden", "same", "b", "a", "same", "hidden"]
    assert found["same"] == 1000 and found["only_a"] == found["only_b"] == 1
    assert diff("x" * 10_000, "y")["pieces"][0]["cut"] == 6_000
