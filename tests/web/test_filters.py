"""The filter bench: limits, what they keep and drop, and the same as a file that `feedmill filter` runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.web.filters import _step
from helpers.durations import examples
from helpers.web_server import Site, serving

WEIRD = 'it\'s "a" [b].c'


def kept_by_filter(site: Site, query: str, out: Path) -> set[str]:
    """The ids that the verb keeps with the file that the page exports."""
    answer = site.get(f"/documents/filter.yaml?{query}")
    assert answer.status == 200, answer.text
    tree = yaml.safe_load(answer.text)
    tree["streams"][0]["output"]["path"] = str(out / f"kept-{abs(hash(query))}")
    tree["allow_empty"] = True
    fm.filter(tree, progress=False)
    rows = [row for path in out.rglob("*.jsonl.gz") for row in gzip.decompress(path.read_bytes()).splitlines()]
    return {json.loads(row)["id"] for row in rows}


def kept_on_page(site: Site, query: str) -> int:
    data = site.get(f"/documents/filters.json?{query}").json
    assert data["kept"] + data["dropped"] == data["sample"]["documents"] == 120
    return int(data["kept"])


QUERIES = [
    "min.q__char_length_v1__length=200",
    "min.q__char_length_v1__length=100&max.q__char_length_v1__length=400",
    "max.dup=0",
    "max.dup_near=0&min.metadata.score=0.3",
    "max.spans+of+q__pii_regex_v2__EMAIL_ADDRESS=0.5",
    "min.spans+of+q__pii_regex_v2__EMAIL_ADDRESS=1",
    "min.stars=2.5",
    f"max.{quote(WEIRD)}=0.25",
    "max.rare=3",
]


@pytest.mark.parametrize("query", QUERIES)
def test_the_exported_filter_keeps_the_same_documents(query: str, site: Site, tmp_path: Path) -> None:
    count = kept_on_page(site, query)
    assert 0 < count < 120
    assert len(kept_by_filter(site, query, tmp_path)) == count


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_limits_keep_the_same_documents(
    site: Site, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    scores = [score for score in site.get("/documents/filters.json").json["scores"] if score["bars"]]
    chosen = data.draw(st.lists(st.sampled_from(scores), min_size=1, max_size=3, unique_by=lambda score: score["name"]))
    limits = []
    for score in chosen:
        low, high = sorted(
            data.draw(st.one_of(st.floats(score["low"], score["high"]), st.sampled_from(score["edges"])))
            for _ in range(2)
        )
        limits += [f"min.{quote(score['name'])}={low!r}", f"max.{quote(score['name'])}={high!r}"]
    query = "&".join(limits)
    if site.get(f"/documents/filters.json?{query}").json["rules"]:
        assert len(kept_by_filter(site, query, tmp_path_factory.mktemp("f"))) == kept_on_page(site, query)


def test_what_limits_do_is_counted(site: Site) -> None:
    data = site.get(
        "/documents/filters.json?min.q__char_length_v1__length=200&min.metadata.score=0.5&by=metadata.score"
    ).json
    rules = {rule["name"]: rule for rule in data["rules"]}
    both = data["dropped"] - sum(rule["alone"] for rule in rules.values())
    assert sum(rule["dropped"] for rule in rules.values()) == data["dropped"] + both > data["dropped"]
    assert sum(row["documents"] for row in data["sources"]) == 120
    assert sum(row["kept"] for row in data["sources"]) == data["kept"]
    drawn = next(score for score in data["scores"] if score["name"] == "metadata.score")
    assert sum(bar["kept"] for bar in drawn["bars"]) == data["kept"]
    border = data["border"]
    assert border["by"] == "metadata.score"
    assert all(one["value"] < 0.5 for one in border["dropped"]) and all(one["value"] >= 0.5 for one in border["kept"])
    distances = [abs(one["value"] - 0.5) for one in border["kept"]]
    assert distances == sorted(distances) and len(distances) == 6


def test_a_limit_at_the_end_of_a_scale_is_none(site: Site) -> None:
    data = site.get("/documents/filters.json").json
    query = "&".join(
        f"min.{quote(s['name'])}={s['low']}&max.{quote(s['name'])}={s['high']}" for s in data["scores"] if s["bars"]
    )
    same = site.get(f"/documents/filters.json?{query}").json
    assert not same["rules"] and same["kept"] == 120 and same["filter"] is None
    assert site.get("/documents/filter.yaml").status == 404


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("min.lenth=3", "no document has a score"),
        ("min.stars=much", "is not a number"),
        ("min.stars=nan", "is not a number"),
        ("min.stars=3&max.stars=2", "above the most"),
    ],
)
def test_bad_limits_are_named(query: str, words: str, site: Site) -> None:
    for page in ("filters", "filters.json"):
        answer = site.get(f"/documents/{page}?{query}")
        assert answer.status == 400 and words in answer.text


def test_what_has_no_documents_or_no_scores_says_so(root: Path, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents/a.jsonl.gz").write_bytes(gzip.compress(b'{"id": "a", "text": "b"}\n'))
    with serving(root / "pages", tmp_path / "documents") as site:
        answer = site.get("/pages/filters")
        assert answer.status == 200 and "without documents" in answer.words
        assert "These documents have no scores" in site.get("/documents/filters").words


def test_a_sample_is_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.web.documents.MOST_DOCUMENTS", 30)
    (tmp_path / "documents").mkdir()
    for name in "abc":
        rows = [json.dumps({"id": f"{name}{n}", "text": "x" * 50, "score": n}) for n in range(40)]
        (tmp_path / f"documents/{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode() + b"\n"))
    with serving(tmp_path / "documents") as site:
        data = site.get("/documents/filters.json?min.score=5").json
        assert data["sample"] == {"documents": 30, "files": 3, "more": True}
        assert all(8 <= row["documents"] <= 12 for row in data["sources"]) and data["kept"] == 15
        assert "more than memory holds" in site.get("/documents/filters").words
        assert "first 30" in site.get("/documents/filter.yaml?min.score=5").text


def test_names_of_any_kind_are_steps_of_a_path() -> None:
    from feedmill.documents.expressions import compile_test

    for name in ("words", "a-b", "it's", 'say "x"', "back\\slash", "a.b", "[0]", "ünï", "0"):
        rule = compile_test(f"$.attributes[?(@{_step(name)}[0][2] > 1)]")
        assert rule({"attributes": {name: [[0, 1, 2]]}}) and not rule({"attributes": {name: [[0, 1, 1.0]]}})


def test_attributes_that_are_numbers_or_nonsense(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "attributes/a").mkdir(parents=True)
    texts = [{"id": str(n), "text": "word " * (n + 1)} for n in range(20)]
    values = [{"plain": n / 10, "mixed": n if n % 2 else [[0, 3, n]], "bad": 1} for n in range(20)]
    values[3]["bad"] = [["a", None, {}]]  # type: ignore[assignment]
    values[4]["bad"] = "x" * 50  # type: ignore[assignment]
    values[5]["bad"] = [7]  # type: ignore[assignment]
    rows = [json.dumps({"id": str(n), "attributes": value}) for n, value in enumerate(values)]
    documents = "".join(json.dumps(text) + "\n" for text in texts).encode()
    (tmp_path / "documents/x.jsonl.gz").write_bytes(gzip.compress(documents))
    (tmp_path / "attributes/a/x.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode() + b"\n"))
    with serving(tmp_path / "documents") as site:
        page = site.get("/documents/filters?min.plain=0.55")
        assert page.status == 200 and "3 documents have neither spans nor a number" in page.words
        assert site.get("/documents/samples?at=4").status == site.get("/documents/samples?at=3").status == 200
        for query, kept in (("min.plain=0.55", 14), ("min.mixed=4", 18)):
            assert site.get(f"/documents/filters.json?{query}").json["kept"] == kept
            assert len(kept_by_filter(site, query, tmp_path / query)) == kept
    (tmp_path / "attributes/a/x.jsonl.gz").write_bytes(gzip.compress(b'{"attributes": 3}\nnull\n{bad\n{}\n'))
    with serving(tmp_path / "documents") as site:
        page = site.get("/documents/filters")
        assert page.status == 200 and "a row without attributes" in page.words


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\u202e'\"]"
    (tmp_path / "documents").mkdir()
    (tmp_path / "attributes/<i>").mkdir(parents=True)
    rows = [{"id": evil + str(n), "text": evil * 3, "source": evil, "metadata": {evil: n}} for n in range(9)]
    spans = [{"id": row["id"], "attributes": {evil: [[0, len(evil) * 3, n]]}} for n, row in enumerate(rows)]
    for path, lines in (("documents/x.jsonl.gz", rows), ("attributes/<i>/x.jsonl.gz", spans)):
        (tmp_path / path).write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    with serving(tmp_path / "documents") as site:
        for name in (evil, f"metadata.{evil}"):
            query = f"min.{quote(name)}=4"
            page = site.get(f"/documents/filters?{query}")
            assert page.status == 200 and "<script>alert" not in page.text and "<i>" not in page.text
            assert len(kept_by_filter(site, query, tmp_path / str(len(name)))) == 5


def test_presets_say_what_they_would_drop(tmp_path: Path) -> None:
    (tmp_path / "d/documents").mkdir(parents=True)
    texts = ["the words of this text and those that follow it. " * n for n in range(1, 30)]
    lines = [json.dumps({"id": str(n), "text": text}) + "\n" for n, text in enumerate(texts)]
    (tmp_path / "d/documents/a.jsonl").write_text("".join(lines))
    fm.tag(str(tmp_path / "d/documents"), ["gopher_v2"], name="q", progress=False)
    with serving(tmp_path / "d/documents") as site:
        data = site.get("/documents/filters.json").json
        (preset,) = data["presets"]
        assert preset["name"] == "gopher" and preset["missing"] == 0 and 0 < preset["dropped"] <= 29
        assert "Use gopher" in site.get("/documents/filters").text and data["next"]["href"]
        used = site.get("/documents/filters.json?" + urlencode(preset["query"])).json
        assert used["dropped"] == preset["dropped"] and "Download the filter" in used["next"]["label"]
        (count,) = [score for score in used["scores"] if score["name"].endswith("__word_count")]
        assert 0 < count["dropped"] <= preset["dropped"]
        heights = []
        for way in ("log", "linear"):
            scores = site.get(f"/documents/filters.json?heights={way}").json["scores"]
            heights.append([bar["height"] for score in scores for bar in score["bars"]])
        assert sum(heights[0]) > sum(heights[1]) and max(heights[0]) == max(heights[1]) == 32
