"""A document's life: from a spike of the loss to its raw line in four clicks, and back to its steps."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest

import feedmill as fm
from feedmill.planning import ledger
from helpers.lineage_data import TOKENIZER, build
from helpers.web_server import Site, serving

HOSTILE = "</p><script>alert(1)</script> mail me@example.org \u202egnp"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("life")
    build(folder, 300)
    losses = [(step, 8 / (1 + step / 20) + 3 * (step == 40)) for step in range(60)]
    (folder / "loss.csv").write_text("step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in losses))
    raw = folder / "hostile/documents/a.jsonl"
    raw.parent.mkdir(parents=True)
    raw.write_text(json.dumps({"id": "<b>", "text": HOSTILE}) + "\n")
    spans = folder / "hostile/attributes/pii/a.jsonl"
    spans.parent.mkdir(parents=True)
    at = HOSTILE.index("me@")
    spans.write_text(json.dumps({"id": "<b>", "attributes": {"pii__EMAIL_ADDRESS": [[at, at + 14, 1]]}}) + "\n")
    fm.tokenize([raw], folder / "hostile/x", tokenizer=TOKENIZER, progress=False)
    (folder / "hostile.yaml").write_text("samples: 8\nconcat: [{path: hostile/x.pbin}]\n")
    return folder


@pytest.fixture(scope="module")
def site(root: Path) -> Iterator[Site]:
    with serving(root / "recipe.yaml", root / "hostile.yaml", loss=str(root / "loss.csv")) as found:
        yield found


def link(text: str, words: str) -> str:
    """The address of the first link whose text or label has these words."""
    for address, rest in re.findall(r'<a [^>]*?href="([^"]+)"([^>]*>.*?)</a>', text, re.S):
        if re.search(words, rest, re.S):
            return unescape(address).partition("#")[0]
    raise AssertionError(f"no link {words!r}")


def test_from_a_spike_to_the_raw_line_in_four_clicks_and_back(root: Path, site: Site) -> None:
    here = "/recipe.yaml/step"
    page = site.get(f"{here}?batch=2")
    page = site.get(here + link(page.text, "spike at 40"))  # 1: the spike
    page = site.get(here + link(page.text, r'aria-label="[^"]*web'))  # 2: a document in a row
    chosen = site.get(link(page.text, "Life of this document"))  # 3: its life, with the raw line
    data = json.loads(site.get(link(chosen.text, "This page as JSON")).text)
    raw = Path(data["raw"]["file"]).read_bytes() if not data["raw"]["file"].endswith(".gz") else None
    text = "".join(piece["text"] for piece in data["raw"]["pieces"])
    if raw is not None:
        line = raw.splitlines()[data["raw"]["line"] - 1]
        assert json.loads(line)["text"] == text and json.loads(line)["id"] == data["id"]
    assert all(escape(piece["text"]) in chosen.text for piece in data["raw"]["pieces"])
    assert f"documents/{Path(data['raw']['file']).name}:{data['raw']['line']}" in chosen.text
    assert data["filters"][0]["kept"] and {rule["kind"] for rule in data["filters"][0]["rules"]} == {
        "include",
        "exclude",
    }
    assert 40 in {row["step"] for row in data["seen"]["rows"]}
    back = site.get(link(chosen.text, ">step 40$"))  # and back to the step
    assert back.status == 200 and "What step 40 sees" in back.text
    # the steps are those of the ledger
    plan = fm.Recipe.load(root / "recipe.yaml").plan()
    (token,) = data["tokens"]
    seen = ledger.occurrences(plan, "web", token["rows"][0], global_batch=2)
    assert [(row["position"], row["step"]) for row in data["seen"]["rows"]] == [(o.position, o.step) for o in seen]


def test_a_dropped_document_names_its_rule_and_its_copies(root: Path, site: Site) -> None:
    lines = [json.loads(line) for line in (root / "documents/part-2.jsonl").read_bytes().splitlines()]
    marks = [json.loads(line)["attributes"] for line in (root / "attributes/dup_documents/part-2.jsonl").open()]
    number = next(n for n, one in enumerate(marks) if one)
    answer = site.get("/recipe.yaml/life?" + urlencode({"document": lines[number]["id"]}))
    data = json.loads(site.get("/recipe.yaml/life.json?" + urlencode({"document": f"part-2.jsonl:{number + 1}"})).text)
    assert data["id"] == lines[number]["id"] and not data["seen"]["rows"] and not data["filters"][0]["kept"]
    assert data["filters"][0]["dropped"].startswith(("include", "exclude")) and "dropped: " in answer.text
    assert any(one["same"] for one in data["copies"]["rows"])
    other = data["copies"]["rows"][0]["document"]
    assert site.get("/recipe.yaml/life?" + urlencode({"document": other})).status == 200


def test_hostile_text_is_shown_as_text_with_its_spans(site: Site) -> None:
    page = site.get("/hostile.yaml/life")
    assert page.status == 200 and "<script>alert" not in page.text and "&lt;script&gt;alert(1)" in page.text
    assert '<mark class="pii">me@example.org<sup>EMAIL_ADDRESS</sup></mark>' in page.text and "U+202E" in page.text
    assert "<b>" not in page.text.split('class="trail"')[0].split("<h1")[1] and "No filter read it" in page.text


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("document=nobody", 404),
        ("document=part-0.jsonl:999999", 404),
        ("document=../../etc/passwd:1", 404),
        ("source=none", 400),
        ("at=-1", 400),
        ("at=99999999", 404),
        ("batch=x", 400),
    ],
)
def test_wrong_addresses_are_errors(site: Site, query: str, status: int) -> None:
    assert site.get(f"/recipe.yaml/life?{query}").status == status
    assert "error" in json.loads(site.get(f"/recipe.yaml/life.json?{query}").text)


def test_the_report_for_forget_is_that_of_the_verb(root: Path, site: Site, tmp_path: Path) -> None:
    data = json.loads(site.get("/recipe.yaml/life.json?at=2").text)
    page = site.get("/recipe.yaml/life?at=2")
    answer = site.get(
        "/recipe.yaml/" + re.search(r'href="/recipe.yaml/(forget.zip[^"]+)"', page.text)[1].replace("&amp;", "&")
    )
    assert answer.status == 200 and answer.headers["content-type"] == "application/zip"
    fm.documents.forget(
        [data["document"]], [root / "recipe.yaml"], report=tmp_path / "gone", global_batch=data["batch"]
    )
    with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
        found = {name.removeprefix("forget/"): archive.read(name) for name in archive.namelist()}
    wanted = {path.name: path.read_bytes() for path in (tmp_path / "gone").iterdir()}
    assert set(found) == set(wanted) >= {"report.json", "exclude.yaml", "drop-web.pbin.txt"}
    assert all(found[name] == wanted[name] for name in wanted if name != "report.json")
    assert json.loads(found["report.json"])["files"] == json.loads(wanted["report.json"])["files"]
    assert site.get("/recipe.yaml/forget.zip").status == 404
    assert site.get("/recipe.yaml/forget.zip?document=nothing").status == 404


def test_sightings_of_an_endless_plan_are_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small source is seen any number of times: each sighting takes memory and time, for all who use the server."""
    (root / "endless.yaml").write_text("blend: [{path: hostile/x.pbin}]\n")
    monkeypatch.setattr("feedmill.web.step.MOST_TIMES", 500)
    with serving(root / "endless.yaml") as site:
        data = site.get("/endless.yaml/life.json?steps=100000000").json
        assert 400 <= data["seen"]["pieces"] <= 501 and not data["seen"]["all"]
        assert "in its first 500 positions" in site.get("/endless.yaml/life?steps=100000000").text
        assert site.get("/endless.yaml/life.json?steps=1&batch=2").json["seen"]["all"]
        step = site.get("/endless.yaml/step.json?steps=100000000").json
        assert step["sightings"]["times"] <= 501
        answer = site.get(f"/endless.yaml/forget.zip?steps=100000000&document={data['document']}")
        assert b"too many for a page" in answer.body and answer.status in (400, 404)
