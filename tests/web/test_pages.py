"""Every view answers, as a page and as data, in one shape: no inline style or script, nothing from elsewhere."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.web.state import FIRST, State
from helpers.dataset_kinds import FORMATS, SOURCES, TOKENS, TOTAL, make
from helpers.durations import examples
from helpers.web_data import make_pictures
from helpers.web_server import Answer, Site, serving

PAGES = [
    "/",
    "/pages/samples",
    "/pages/samples?as=table",
    "/pages/samples?split=val&at=3",
    "/pages/samples?q=page-0077",
    "/prose.jsonl/samples?at=4",
    "/prose.pbin/samples?at=2&as=table",
    "/mix.yaml/step?step=7&world=4",
    "/mix.yaml/mixture",
    "/mix.yaml/mixture?w.0=0.2",
    "/packed.yaml/step?batch=4&world=2",
    "/packed.yaml/mixture",
    "/packed.yaml/life?at=3",
    "/mix.yaml/life",
    "/pages/health",
    "/documents/filters",
    "/documents/filters?min.q__char_length_v1__length=200&max.dup=0",
    "/pages/filters",
    "/documents/duplicates?set=dup_near&cluster=1",
    "/documents/duplicates?set=dup&source=news",
    "/pages/duplicates",
    "/prose.pbin/tokens?scale=linear",
    "/prose.pbin/tokens?seq_len=64",
    "/pages/tokens",
    "/nothing/here",
    "/pages/samples?page=x",
]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def elements(answer: Answer) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Links()
    parser.feed(answer.text)
    return parser.found


@pytest.mark.parametrize("path", PAGES)
def test_pages_hold_no_inline_code_and_nothing_from_elsewhere(path: str, site: Site) -> None:
    answer = site.get(path)
    found = elements(answer)
    assert answer.status in (200, 400, 404) and ("main", "id") in {(tag, name) for tag, a in found for name in a}
    for tag, attributes in found:
        assert not [name for name in attributes if name == "style" or name.startswith("on")], (tag, attributes)
        assert tag != "script" or attributes.get("src")
        for name in ("src", "href", "action"):
            assert not urlsplit(attributes.get(name) or "").netloc, attributes
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and answer.headers["cache-control"] == "no-store"


_SEEN: dict[tuple[str, str], int] = {}
"""The status of each link that was followed: most are on many pages."""


@pytest.mark.parametrize("path", PAGES)
def test_the_links_of_a_page_lead_somewhere(path: str, site: Site) -> None:
    here = urlsplit(path)
    page = elements(site.get(path))
    links = {a["href"] for tag, a in page if tag == "a" and a.get("href")}
    images = {a["src"] for tag, a in page if tag == "img"}
    assert links
    for link in sorted(str(link).partition("#")[0] for link in [*links, *list(images)[:5]])[:60]:
        target = link if link.startswith("/") else here.path + link
        again = "page=x" in target or target.startswith("/nothing")  # the address that cannot be shown
        if link and (site.host, target) not in _SEEN:
            _SEEN[site.host, target] = site.get(target).status
        assert not link or (_SEEN[site.host, target] == 200) != again, link


@pytest.mark.parametrize("path", [page for page in PAGES if "nothing" not in page])
def test_the_data_of_a_page_is_beside_it(path: str, site: Site) -> None:
    base, _, query = path.partition("?")
    twin = ("/index" if base == "/" else base) + ".json" + ("?" + query if query else "")
    answer = site.get(twin)
    assert answer.headers["content-type"] == "application/json" and answer.json
    assert answer.status == site.get(path).status


SHOWN = [kind for kind in (*FORMATS, *SOURCES, *TOKENS) if kind not in TOKENS or "-" not in kind]
for _kind in ("documents", "documents-packed"):  # shown with their attributes: test_documents.py
    SHOWN.remove(_kind)


@pytest.mark.parametrize("kind", SHOWN)
def test_samples_of_every_format(kind: str, tmp_path: Path) -> None:
    url = make(tmp_path, kind)
    with serving(url) as site:
        name = site.get("/index.json").json["things"][0]["name"]
        for layout in ("grid", "table"):
            page = site.get(f"/{name}/samples?as={layout}&at={TOTAL - 1}")
            assert page.status == 200, page.words[:500]
        data = site.get(f"/{name}/samples.json?as=table&at={TOTAL - 1}").json
        assert data["samples"] == len(fm.open(url)) and [row["index"] for row in data["rows"]] == list(
            range(len(data["rows"]))
        )
        assert not [row for row in data["rows"] if "problem" in row]
        assert data["opened"]["key"] == fm.open(url).locate(TOTAL - 1).key and data["opened"]["parts"]
        assert site.get(f"/{name}/health").status == 200


def test_pages_of_a_selection_hold_each_sample_once(root: Path, site: Site) -> None:
    sizes = fm.open(str(root / "pages")).costs("bytes")
    assert sizes is not None
    low, high = (int(np.percentile(sizes, q)) for q in (20, 90))
    query = f"f.bytes={low}:{high}&sort=-bytes"
    first = site.get(f"/pages/samples.json?{query}").json
    found = []
    for page in range(1, first["pages"] + 1):
        found += [row["index"] for row in site.get(f"/pages/samples.json?{query}&page={page}").json["rows"]]
    inside = np.flatnonzero((sizes >= low) & (sizes <= high))
    assert found == inside[np.argsort(-sizes[inside], kind="stable")].tolist() and first["selected"] == len(found)


def test_histograms_count_every_sample(site: Site) -> None:
    data = site.get("/prose.pbin/samples.json").json
    assert {facet["name"] for facet in data["facets"]} == {"tokens", "bytes"}
    for facet in data["facets"]:
        assert sum(bar["count"] for bar in facet["bars"]) == data["samples"]


def test_a_bar_filters_to_the_samples_that_it_counts(site: Site) -> None:
    whole = [b for b in site.get("/prose.pbin/samples.json").json["facets"][0]["bars"] if b["count"]]
    links = [
        a["href"]
        for tag, a in elements(site.get("/prose.pbin/samples"))
        if tag == "a" and "f.tokens" in str(a.get("href"))
    ]
    assert len(links) >= len(whole)
    last = whole[-1]
    data = site.get(f"/prose.pbin/samples.json?f.tokens={last['low']}:{last['high']}").json
    assert data["selected"] >= last["count"] > 0


@pytest.mark.parametrize(
    ("text", "by", "count"), [("page-0077", "key", 1), ("DOCUMENT 12:", "text", 2), ("nowhere", "text", 0)]
)
def test_search(text: str, by: str, count: int, site: Site) -> None:
    data = site.get(f"/pages/samples.json?q={text.replace(' ', '+')}").json
    assert (data["search"]["by"], data["selected"], len(data["rows"])) == (by, count, count)
    assert "No samples here" in site.get("/pages/samples?q=nowhere").words


def test_the_program_reads_what_the_page_shows(root: Path, site: Site) -> None:
    data = site.get("/pages/samples.json?f.bytes=300:&sort=bytes&as=table").json
    names: dict[str, object] = {}
    exec(data["python"], names)
    keys = [sample.key for sample in names["samples"]]  # type: ignore[attr-defined]
    assert keys == [row["key"] for row in data["rows"]][:100]


@pytest.mark.parametrize(
    ("to", "target"), [("page-0003", "/pages/samples?at=3#sample"), ("1,2", "/pages/samples?at=12#sample")]
)
def test_jump(to: str, target: str, site: Site) -> None:
    answer = site.get(f"/pages/jump?to={to}")
    assert (answer.status, answer.headers["location"]) == (303, target)
    assert site.get("/pages/jump?to=nope").status == 404
    assert site.get("/mix.yaml/jump?to=12").headers["location"] == "/mix.yaml/step?step=12"


def test_a_page_follows_the_opened_sample(site: Site) -> None:
    data = site.get("/pages/samples.json?at=100").json
    assert data["page"] == 2 and 100 in [row["index"] for row in data["rows"]]
    assert (data["opened"]["previous"], data["opened"]["next"]) == (99, 101)


def test_images_are_written_again(site: Site) -> None:
    small = site.get("/pages/image?at=7&part=png&size=small")
    assert small.headers["content-type"] == "image/jpeg" and small.body[:3] == b"\xff\xd8\xff"
    assert site.get("/pages/image?at=7&part=json").status == 404
    assert site.get("/pages/part?at=7&part=json").headers["content-type"].startswith("text/plain")
    assert site.get("/pages/part?at=7&part=png").headers["content-type"] == "application/octet-stream"


def test_themes(site: Site) -> None:
    assert (
        'data-theme="dark"' in site.get("/?theme=dark").text
        and "feedmill-theme=dark" in site.get("/?theme=dark").headers["set-cookie"]
    )
    assert 'data-theme="light"' in site.get("/", Cookie="feedmill-theme=light").text
    assert "data-theme" not in site.get("/", Cookie='feedmill-theme="x').text


words = (
    st.text(st.characters(codec="utf-8"), max_size=12)
    | st.integers(-5, 10**20).map(str)
    | st.sampled_from(["1:2", ":", "nan:", "1e999:"])
)


PARAMETERS = (*FIRST, "f.bytes", "f.x", "w.0", "w.1.2")


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(
        ["/pages/samples", "/prose.pbin/samples", "/mix.yaml/step", "/packed.yaml/step", "/mix.yaml/mixture"]
    ),
    items=st.lists(
        st.tuples(
            st.sampled_from(PARAMETERS),
            words,
        ),
        max_size=4,
    ),
)
def test_no_address_is_a_defect(path: str, items: list[tuple[str, str]], site: Site) -> None:
    answer = site.get(f"{path}?{urlencode(items)}")
    assert answer.status in (200, 400, 404), (path, items, answer.words[-400:])
    assert "defect" not in answer.words


def test_the_address_keeps_one_order(site: Site) -> None:
    state = State([("f.b", "1:2"), ("page", "3"), ("as", "grid"), ("f.a", "0:")])
    assert state.link() == "?as=grid&page=3&f.a=0%3A&f.b=1%3A2"
    assert dict(parse_qsl(state.link(page=None).removeprefix("?"))) == {"as": "grid", "f.a": "0:", "f.b": "1:2"}


def test_health_names_the_damaged_shard(tmp_path: Path) -> None:
    folder = make_pictures(tmp_path / "pages", 20)
    data = (folder / "pages-3.tar").read_bytes()
    (folder / "pages-3.tar").write_bytes(data[: len(data) // 2])
    with serving(folder) as site:
        for _ in range(600):
            found = site.get("/pages/health.json").json
            if found["state"] == "done":
                break
        assert found["findings"] and [cell["bad"] is not None for cell in found["cells"]] == [False, False, False, True]
        assert "pages-3.tar" in site.get("/pages/health").words
        broken = site.get("/pages/samples?at=19")
        assert broken.status in (200, 500) and "pages-3.tar" in broken.words


def test_json_of_numbers_and_texts_that_json_lacks(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(
        json.dumps({"n": 10**30, "text": "\ud800 \x00", "deep": [[[[[[[[1]]]]]]]]}) + "\n"
    )
    with serving(tmp_path / "x.jsonl") as site:
        for path in ("/x.jsonl/samples?at=0", "/x.jsonl/samples.json?at=0", "/x.jsonl/part?at=0&part=json"):
            answer = site.get(path)
            assert answer.status == 200, answer.words
        assert "U+D800" in site.get("/x.jsonl/samples?at=0").text and re.search(
            "1 entries", site.get("/x.jsonl/samples?at=0").words
        )


def test_a_step_of_packed_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of pictures beside documents of tokens: the open one shows the parts of a sample, or the texts."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    from helpers.processor_data import dataset, picture, processor, talk

    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path / "cache"))
    processor(tmp_path / "p")
    parts = {"jpg": picture(90, 60), "json": talk("what", None)}
    members = {f"{n}.{part}": data for n in range(4) for part, data in parts.items()}
    dataset(tmp_path / "vqa", members)
    (tmp_path / "docs.jsonl").write_text("".join(f'{{"input_ids": [{n}, 2, 3]}}\n' for n in range(4)))
    (tmp_path / "rows.yaml").write_text(
        "seed: 1\nsamples: 8\nblend:\n  - {path: vqa, lengths: a}\n  - {path: docs.jsonl, tokens: input_ids}\n"
        "lengths: {a: {processor: p}}\npack: {seq_len: 8192, media: 2}\n"
    )
    with serving(tmp_path / "rows.yaml") as own:
        shown = own.get("/rows.yaml/mixture")
        assert shown.status == 200 and "media a row" in shown.words and "LlavaNextProcessor" in shown.words
        answers = [own.get(f"/rows.yaml/step?batch=2&world=1&row=0&doc={n}") for n in range(3)]
        assert [answer.status for answer in answers] == [200] * 3
        assert any("messages" in answer.text for answer in answers)
