"""Comparisons: counts, keys, bytes and orders of two datasets, recipes or runs, found by another way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import feedmill as fm
from helpers.tars import write_tar
from helpers.web_server import Site, serving


def make(root: Path, names: list[str], text: str = "same") -> Path:
    write_tar(root / "part.tar", [(f"{name}.txt", f"{text} {name}".encode()) for name in names])
    fm.prepare(str(root), progress=False)
    return root


def compared(one: Path, other: Path) -> dict:  # type: ignore[type-arg]
    with serving(one, other) as site:
        page = site.get(f"/{one.name}/compare?with={other.name}")
        assert page.status == 200
        return site.get(f"/{one.name}/compare.json?with={other.name}").json  # type: ignore[no-any-return]


def test_datasets(tmp_path: Path) -> None:
    names = [f"k{n:03d}" for n in range(100)]
    a = make(tmp_path / "a", names)
    found = compared(a, make(tmp_path / "b", [*names[:40], *names[50:], "new"]))
    assert found["keys"] == {
        "only_a": names[40:50],
        "only_b": ["new"],
        "count_a": 10,
        "count_b": 1,
        "looked_a": 100,
        "looked_b": 91,
        "all": True,
    }
    assert found["order"] == {"differs_at": 40, "a": "k040", "b": "k050", "read": 41, "of": 91}
    assert found["content"]["read"] == 64 and found["content"]["differ"] == 0 and not found["same"]
    facts = {fact["name"]: (fact["a"], fact["b"]) for fact in found["facts"]}
    assert facts["samples"] == (100, 91) and facts["fingerprint"][0] == fm.open(str(a)).fingerprint()


def test_the_same_keys_with_other_bytes(tmp_path: Path) -> None:
    names = [f"k{n}" for n in range(9)]
    found = compared(make(tmp_path / "a", names), make(tmp_path / "b", names, "other"))
    assert found["order"]["differs_at"] is None and found["order"]["read"] == 9
    assert found["content"]["differ"] == found["content"]["read"] == 9
    assert found["content"]["samples"][0]["parts"] == ["txt"]
    found = compared(tmp_path / "a", make(tmp_path / "c", names[:6]))
    assert (found["order"]["differs_at"], found["order"]["a"], found["order"]["b"]) == (6, "k6", None)
    assert compared(tmp_path / "a", make(tmp_path / "d", names))["content"]["differ"] == 0


def test_datasets_of_two_formats(site: Site) -> None:
    found = site.get("/pages/compare.json?with=prose.jsonl").json
    rows = {row["name"]: row for row in found["fields"]["rows"]}
    assert rows["png"]["b"] is None and rows["json.text"]["a"] is None and rows["json.text"]["b"]["types"] == ["text"]
    assert "only in B" in site.get("/pages/compare?with=prose.jsonl").words


def test_recipes(root: Path, site: Site) -> None:
    found = site.get("/mix.yaml/compare.json?with=other.yaml").json
    one, other = (fm.Recipe.load(root / name).plan() for name in ("mix.yaml", "other.yaml"))
    positions = np.arange(4000)
    a, b = one.locate(positions), other.locate(positions)
    assert found["differs_at"] == np.flatnonzero((a.source != b.source) | (a.index != b.index))[0]
    assert [line["text"] for line in found["diff"]["lines"] if line["kind"] in ("add", "del")] == [
        "-  weight: 0.7",
        "+  weight: 0.6",
    ]
    assert "difference, points" in site.get("/mix.yaml/compare?with=other.yaml").words


def test_rows_differ_where_their_spans_do(root: Path, tmp_path: Path) -> None:
    text = (root / "text/packed.yaml").read_text().replace("path: ", f"path: {root}/text/")
    for name, changed in (("a", text), ("b", text.replace("seed: 3", "seed: 4")), ("c", text.replace("128", "64"))):
        (tmp_path / f"{name}.yaml").write_text(changed)
    (tmp_path / "d.yaml").write_text(text.replace("epochs: 4", "epochs: 2"))
    one, other = (fm.Recipe.load(tmp_path / f"{name}.yaml").plan() for name in "ab")
    again = fm.Recipe.load(tmp_path / "d.yaml").plan()
    rows = range(min(one.length, other.length))
    differs = next(n for n in rows if (one.read([n])[0]["input_ids"] != other.read([n])[0]["input_ids"]).any())
    assert compared(tmp_path / "a.yaml", tmp_path / "b.yaml")["differs_at"] == differs
    assert compared(tmp_path / "a.yaml", tmp_path / "c.yaml")["differs_at"] == 0
    shorter = compared(tmp_path / "a.yaml", tmp_path / "d.yaml")
    ended = next(
        (
            n
            for n in range(shorter["searched"])
            if (one.read([n])[0]["input_ids"] != again.read([n])[0]["input_ids"]).any()
        ),
        None,
    )
    assert shorter["differs_at"] == ended and not shorter["same"]


def test_runs(site: Site) -> None:
    found = site.get("/before.run.json/compare.json?with=crawl.yaml").json
    steps = {step["name"]: step for step in found["steps"]}
    assert found["first"] == "lengths" and steps["lengths"]["state"] == "differs"
    assert "the option 'eos' is '<|endoftext|>' and None" in steps["tokens"]["why"]
    assert any("part.jsonl has changed" in why for why in steps["tokens"]["why"])
    assert (
        "The first step whose outputs differ is lengths" in site.get("/before.run.json/compare?with=crawl.yaml").words
    )


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/pages/compare?with=mix.yaml", 400, "cannot be compared"),
        ("/pages/compare?with=nothing", 404, "nothing is open as"),
        ("/loading-rank.jsonl/compare", 404, "this view shows a dataset or recipe or pipeline"),
    ],
)
def test_what_cannot_be_compared(path: str, status: int, words: str, site: Site) -> None:
    answer = site.get(path)
    assert answer.status == status and words in answer.words


def test_nothing_to_compare_with(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "<script>alert(1)</script>"}) + "\n")
    with serving(tmp_path / "x.jsonl") as site:
        assert "Nothing to compare with" in site.get("/x.jsonl/compare").words


def test_what_to_compare_with_is_chosen_where_it_is_unclear(site: Site) -> None:
    data = site.get("/pages/compare.json").json
    assert data["with"] is None and {choice["name"] for choice in data["choices"]} == {*data["candidates"]}
    assert "Compare pages with" in site.get("/pages/compare").words
    page = site.get("/pages/compare?with=prose.jsonl").text
    assert "≠ differs" in page and "pill warn" not in page
