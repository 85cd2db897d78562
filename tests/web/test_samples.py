"""Samples: their own words as titles, facets by field, columns to choose, matches of a search, marks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

import feedmill as fm
from feedmill.formats.sample import Sample
from feedmill.web.parts import title_of
from helpers.tars import write_tar
from helpers.web_data import picture
from helpers.web_server import Site, serving

KINDS = ("cat", "dog", "bird")


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("pets")
    files = []
    for n in range(30):
        fields = {"id": n, "caption": f"a {KINDS[n % 3]} number {n}", "kind": KINDS[n % 3], "score": n / 10}
        fields |= {"note": "words " * 60 + "needle <b> at the end"} if n == 7 else {}
        files += [(f"p{n:02d}.png", picture(n)), (f"p{n:02d}.json", json.dumps(fields).encode())]
    write_tar(root / "pets/pets-0.tar", files)
    fm.prepare(str(root / "pets"), progress=False)
    (root / "mix.yaml").write_text("samples: 60\nblend:\n  - {path: pets, name: animals}\n")
    with serving(root / "pets", root / "mix.yaml") as site:
        site.root = root  # type: ignore[attr-defined]
        yield site


def _sample(**parts: object) -> Sample:
    data = {name: json.dumps(value).encode() for name, value in parts.items()}
    block, members, at = b"", {}, 0
    for name, one in data.items():
        members[name] = (at, at + len(one))
        block, at = block + one, at + len(one)
    return Sample("key", block, members, lambda: None, lambda _, one: json.loads(bytes(one)))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("parts", "fields", "title"),
    [
        ({"json": {"id": 3, "caption": "a red card"}}, None, "a red card"),
        ({"json": {"title": "lines 1 to 40", "text": "import os"}}, {"caption": "json[title]"}, "lines 1 to 40"),
        ({"json": {"n": 1}, "txt": "two\n words"}, None, "two words"),
        ({"json": {"messages": [{"role": "user", "content": [{"text": "Why?"}]}]}}, None, "Why?"),
        ({"language_instructions.json": {"original": ["reach the point"]}}, None, "reach the point"),
        ({"json": {"x": "one", "y": "three words here"}}, None, "three words here"),
        ({"json": {"x": "one", "n": 5}}, None, None),
    ],
)
def test_titles_are_the_words_of_the_sample(
    parts: dict[str, object], fields: dict[str, str] | None, title: str | None
) -> None:
    assert title_of(_sample(**parts), fields) == title


def test_facets_by_field(pets: Site) -> None:
    assert pets.get("/pets/samples").status == 200  # the fields are read after the first page
    data = pets.get("/pets/samples.json").json
    assert data["rows"][1]["title"] == "a dog number 1" and data["fields"] == {"read": 30, "of": 30}
    assert [(field["name"], len(field["values"])) for field in data["values"]] == [("kind", 3)]
    assert [facet["name"] for facet in data["facets"]] == ["bytes", "score"]
    chosen = pets.get("/pets/samples.json?v.kind=dog&f.score=1:&sort=-score").json
    assert [row["index"] for row in chosen["rows"]] == [28, 25, 22, 19, 16, 13, 10]
    names: dict[str, object] = {"fm": fm, "np": np}
    exec(chosen["python"], names)
    assert [sample.key for sample in names["samples"]] == [row["key"] for row in chosen["rows"]]  # type: ignore[attr-defined]
    assert pets.get("/pets/samples?v.kind=fish").status == 200
    answer = pets.get("/pets/samples?v.knd=dog")
    assert answer.status == 400 and "kind" in answer.words


def test_columns_are_chosen(pets: Site) -> None:
    page = pets.get("/pets/samples?as=table&cols=kind&cols=score").text
    head = page[page.index("<thead>") : page.index("</thead>")]
    assert "kind" in head and "score" in head and "caption" not in head
    assert "Default columns" in page and "cols=kind%2Cscore" in page


def test_a_search_reads_whole_texts_and_marks_what_it_finds(pets: Site) -> None:
    data = pets.get("/pets/samples.json?q=NEEDLE").json
    assert [row["index"] for row in data["rows"]] == [7] and data["rows"][0]["match"]["field"] == "note"
    page = pets.get("/pets/samples?q=needle&at=7").text
    assert page.count('<mark class="hit">needle</mark>') >= 2 and "<b> at" not in page


def test_a_search_of_documents_finds_words_in_any_case_and_escaped(tmp_path: Path) -> None:
    lines = ['{"text": "The NEEDLE"}', '{"text": "n\\u0065edle"}', '{"text": "hay"}']
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    with serving(tmp_path / "a.jsonl.gz") as site:
        data = site.get("/a.jsonl.gz/samples.json?q=needle").json
        assert [row["index"] for row in data["rows"]] == [0, 1] and data["search"]["read"] == data["search"]["of"] == 3


def test_marks_become_a_skip_list_that_a_recipe_takes(pets: Site) -> None:
    def post(query: str, body: str) -> int:
        headers = {"Content_Type": "application/x-www-form-urlencoded", "Origin": f"http://{pets.host}"}
        return pets.get(f"/pets/mark{query}", "POST", body.encode(), **headers).status

    assert pets.get("/pets/skip.yaml").status == 404 and "no sample is marked" in pets.get("/pets/marked.txt").text
    assert post("?at=4", "action=mark&key=p04") == 303 and post("?v.kind=bird", "action=all") == 303
    assert post("", "action=unmark&key=p02") == 303
    assert post("", "action=mark&key=nobody") == 404 and post("", "action=burn") == 400
    assert pets.get("/mix.yaml/mark", "POST", b"action=none", Origin=f"http://{pets.host}").status == 404
    keys = pets.get("/pets/marked.txt").text.split()
    assert len(keys) == 10 and {"p04", "p05"} <= {*keys} and "p02" not in keys
    assert pets.get("/pets/samples.json?marked=1").json["selected"] == 10
    page = pets.get("/pets/samples?at=4").text
    assert 'aria-pressed="true"' in page and "10 samples are marked" in page
    skip = yaml.safe_load(pets.get("/pets/skip.yaml").text)
    assert skip["skip"][0]["source"] == "animals"  # as the open recipe names it
    root: Path = pets.root  # type: ignore[attr-defined]
    recipe = (root / "mix.yaml").read_text() + pets.get("/pets/skip.yaml").text
    (root / "skipping.yaml").write_text(recipe)
    plan = fm.Recipe.load(str(root / "skipping.yaml")).plan()
    seen = {plan.source("animals").locate(entry.index).key for entry in _entries(plan)}
    assert not seen & {*keys} and "p02" in seen
    assert post("", "action=none") == 303 and pets.get("/pets/samples.json").json["marked"] == 0


def _entries(plan: fm.Plan) -> list:  # type: ignore[type-arg]
    from feedmill.planning import ledger

    return list(ledger.entries(plan, range(plan.length or 0)))


def test_a_tab_never_leads_to_something_else(pets: Site) -> None:
    for here, other in (("pets", "mix.yaml"), ("mix.yaml", "pets")):
        page = pets.get(f"/{here}/{'samples' if here == 'pets' else 'step'}").text
        tabs = page[page.index('<nav class="views"') : page.index("</nav>", page.index('<nav class="views"'))]
        links = [part.partition('"')[0] for part in tabs.split('href="')[1:]]
        named = [part for part in tabs.split("<a ")[1:] if f'href="/{other}/' in part]
        assert links and all(f">{other}</a>" in part for part in named) and len(named) == 1
