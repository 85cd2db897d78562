"""Copies of recipes with other weights: what the page shows is what is saved, and nothing else is ever written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import feedmill as fm
from helpers.web_server import Answer, Site, serving

STAGED = """\
# the run of May
seed: 1
samples: 4000
blend:
  - {path: pages, split: train, shuffle: global}
  - {path: text/prose.jsonl, name: prose, shuffle: global}
stages:
  - {samples: 1000, weights: {pages: 0.9, prose: 0.1}}
  - {weights: {pages: 0.4, prose: 0.6}}
"""


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    for name in ("pages", "text"):
        (tmp_path / name).symlink_to(root / name)
    (tmp_path / "staged.yaml").write_text(STAGED)
    (tmp_path / "mix.yaml").write_text((root / "mix.yaml").read_text())
    return tmp_path


@pytest.fixture
def editable(folder: Path) -> Iterator[Site]:
    with serving(folder / "staged.yaml", folder / "mix.yaml", edit=True) as site:
        yield site


def save(site: Site, name: str, query: str = "w.s1.0=0.5", recipe: str = "staged.yaml", **headers: str) -> Answer:
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://{site.host}", **headers}
    form = {key: value for key, value in form.items() if value}
    return site.get(f"/{recipe}/copy?{query}", "POST", f"name={quote(name)}".encode(), **form)


def test_weights_of_a_stage_are_shown_and_changed(folder: Path, editable: Site) -> None:
    shown = editable.get("/staged.yaml/mixture.json?stage=2").json
    assert [(row["param"], row["weight"]) for row in shown["tree"]] == [("w.s1.0", "0.4"), ("w.s1.1", "0.6")]
    assert [border["x"] for border in shown["chart"]["borders"]] == [0, 250] and len(shown["chart"]["asked"]) == 4
    assert "Stages" in editable.get("/staged.yaml/mixture").words
    changed = editable.get("/staged.yaml/mixture.json?w.s1.0=0.9&w.s0.1=10%25").json
    other = fm.Recipe.parse(STAGED.replace("pages: 0.4", "pages: 0.9").replace("prose: 0.1", "prose: 10%"), base=folder)
    assert changed["fingerprint"] == other.plan().fingerprint and 1000 <= changed["differs_at"] < 1010
    assert 'value="0.9"' in editable.get("/staged.yaml/mixture?stage=2&w.s1.0=0.9").text


def test_the_saved_copy_is_what_the_page_showed(folder: Path, editable: Site) -> None:
    query = "w.s1.0=0.5&w.s0.0=80%25"
    wanted = editable.get(f"/staged.yaml/mixture.json?{query}").json
    assert wanted["copy_name"] == "staged-2.yaml"
    answer = save(editable, "staged-2.yaml", query)
    assert answer.status == 303, answer.words
    assert fm.Recipe.load(folder / "staged-2.yaml").plan().fingerprint == wanted["fingerprint"]
    page = editable.get(answer.headers["location"])
    assert "Saved as" in page.words and "staged-2.yaml" in page.words
    assert editable.get("/staged.yaml/mixture.json").json["copy_name"] == "staged-3.yaml"
    assert (folder / "staged.yaml").read_text() == STAGED
    assert save(editable, "m.yml", "w.0=1/3", "mix.yaml").status == 303
    assert {path.name for path in folder.iterdir() if path.is_file()} == {
        "staged.yaml",
        "staged-2.yaml",
        "mix.yaml",
        "m.yml",
    }


def test_weights_of_recipes_that_a_recipe_names(folder: Path) -> None:
    inner = "blend:\n  - {path: ../pages, split: train, weight: 0.7}\n  - {path: ../text/prose.jsonl, weight: 0.3}\n"
    outer = (
        "seed: 1\nsamples: 2000\nblend:\n  - {path: text/prose.jsonl, weight: 1, name: p}\n"
        "  - weight: 3\n    blend: [{recipe: parts/inner.yaml, weight: 1}]\n"
    )
    (folder / "parts").mkdir()
    (folder / "parts/inner.yaml").write_text(inner)
    (folder / "outer.yaml").write_text(outer)
    with serving(folder / "outer.yaml", edit=True) as site:
        shown = site.get("/outer.yaml/mixture.json").json
        assert [(row["depth"], row["param"], row["weight"]) for row in shown["tree"]] == [
            (0, "w.0", "1"),
            (0, "w.1", "3"),
            (1, "w.1.0", "1"),
            (2, "w.1.0.0", "0.7"),
            (2, "w.1.0.1", "0.3"),
        ]
        query = "w.1.0.0=0.2&w.0=2"
        wanted = site.get(f"/outer.yaml/mixture.json?{query}").json
        assert [row["weight"] for row in wanted["tree"]] == ["2", "3", "1", "0.2", "0.3"]
        assert {"-  weight: 0.7", "+  weight: 0.2"} <= {line["text"] for line in wanted["diff"]}
        assert save(site, "new.yaml", query, "outer.yaml").status == 303
        assert site.get("/outer.yaml/mixture?w.1.0.7=1").status == 400
    assert (folder / "parts/inner.yaml").read_text() == inner and (folder / "outer.yaml").read_text() == outer
    assert {path.name for path in (folder / "parts").iterdir()} == {"inner.yaml", "inner-2.yaml"}
    saved = fm.Recipe.load(folder / "new.yaml").plan()
    assert saved.fingerprint == wanted["fingerprint"]


@pytest.mark.parametrize(
    "name", ["staged.yaml", "../x.yaml", "/x.yaml", "a/b.yaml", "", ".x.yaml", "x.py", "x.yaml\n", "é.yaml", "x\0.yaml"]
)
def test_names_that_are_refused(name: str, folder: Path, editable: Site) -> None:
    before = sorted(os.listdir(folder)), (folder / "staged.yaml").read_text()
    answer = save(editable, name)
    assert answer.status in ((303,) if name == "x.yaml\n" else (400,)), answer.words
    if name != "x.yaml\n":  # a form's field is read without the space around it
        assert (sorted(os.listdir(folder)), (folder / "staged.yaml").read_text()) == before


@pytest.mark.parametrize("query", ["", "w.s9.0=1", "w.s1.9=1", "w.s=1", "w.sx.0=1", "w.s1=1", "w.0.s0.0=1", "w.s1.0=x"])
def test_changes_that_are_none(query: str, folder: Path, editable: Site) -> None:
    assert save(editable, "x.yaml", query).status == 400
    assert not (folder / "x.yaml").exists()


def test_other_origins_write_nothing(folder: Path, editable: Site) -> None:
    for headers in (
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        assert save(editable, "x.yaml", **headers).status == 403
    assert editable.get("/staged.yaml/copy?w.s1.0=0.5").status in (404, 405)
    assert not (folder / "x.yaml").exists()


def test_a_server_without_edit_writes_nothing(folder: Path) -> None:
    with serving(folder / "staged.yaml") as site:
        page = site.get("/staged.yaml/mixture?w.s1.0=0.5")
        assert "Save a copy" not in page.text and "read-only" in page.words
        answer = save(site, "x.yaml")
        assert answer.status == 400 and "read-only" in answer.words and not (folder / "x.yaml").exists()


def test_a_folder_that_cannot_be_written(folder: Path, editable: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("feedmill.storage.local.os.link", refuse)
    answer = save(editable, "x.yaml")
    assert answer.status == 500 and "the file system has no hard links" in answer.words
    assert not [name for name in os.listdir(folder) if name.startswith((".", "x"))]


def test_the_spread_over_ranks(folder: Path, editable: Site) -> None:
    data = editable.get("/mix.yaml/mixture.json?batch=32&world=4").json
    shares = {
        share["source"]: share for share in fm.plan(folder / "mix.yaml", world=4, batch_size=8).facts["ranks"]["shares"]
    }
    assert {row["name"]: row["spread"] for row in data["sources"]} == shares
    assert "spread over ranks" in editable.get("/mix.yaml/mixture?batch=32&world=4").words
    assert editable.get("/mix.yaml/mixture?batch=32&world=5").status == 400
