"""The verb extract: documents and attributes, what is left out, what is done once, any number of processes."""

from __future__ import annotations

import gzip
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from feedmill.curation.extract.extract import extract
from feedmill.errors import ConfigError, EmptyResult, NotFound
from helpers.document_datasets import contents, read_json
from helpers.web_archives import TEXTS, archive, html, pages, record, response

for package in ("fastwarc", "resiliparse", "trafilatura"):
    pytest.importorskip(package)

DEEP = b"<html><body>" + b"<div>" * 400_000 + b"x"


def run(root: Path, **options: Any) -> Any:
    return extract([f"{root}/crawl"], root / "web", **{"progress": False, "workers": 1, **options})


def documents(root: Path, name: str = "a") -> list[dict[str, Any]]:
    return read_json(root / f"web/documents/{name}.jsonl.gz")


def test_pages_become_documents(tmp_path: Path) -> None:
    archive(tmp_path / "crawl/a.warc.gz", pages(10))
    archive(tmp_path / "crawl/deep/b.warc", pages(5, "b"))
    report = run(tmp_path, source="crawl")
    assert (report.archives, report.documents, report.reused, len(report.left_out)) == (2, 15, 0, 0)
    assert report.skipped == {"request": 15}
    found = documents(tmp_path)
    assert [list(one) for one in found] == [["id", "text", "source", "created", "metadata"]] * 10
    assert len({one["id"] for one in found}) == 10 and {one["source"] for one in found} == {"crawl"}
    for k, one in enumerate(found):
        text = TEXTS[list(TEXTS)[k % 5]][0]
        assert text in one["text"] and "Footer" not in one["text"] and one["created"] == "2025-09-01T10:00:00Z"
        metadata = one["metadata"]
        assert metadata["url"].endswith(f"/{k}") and metadata["warc"] == "a.warc.gz"
        with open(tmp_path / "crawl/a.warc.gz", "rb") as file:
            file.seek(metadata["offset"])
            assert metadata["url"].encode() in gzip.GzipFile(fileobj=file).read(2000)
    assert documents(tmp_path, "deep/b")[0]["metadata"]["warc"] == "deep/b.warc"


@pytest.mark.parametrize("name", ["resiliparse", "trafilatura"])
def test_the_text_is_that_of_the_linearizer_itself(tmp_path: Path, name: str) -> None:
    bodies = [html(text, language, title="T & t") for language, (text, _) in TEXTS.items()]
    archive(tmp_path / "crawl/a.warc.gz", [response(f"http://a.example/{k}", body) for k, body in enumerate(bodies)])
    run(tmp_path, linearizer=name)
    if name == "trafilatura":
        import trafilatura

        wanted = [trafilatura.extract(body.decode(), include_comments=False) for body in bodies]
    else:
        from resiliparse.extract.html2text import extract_plain_text

        wanted = [extract_plain_text(body.decode(), main_content=True, alt_texts=False) for body in bodies]
    assert [one["text"] for one in documents(tmp_path)] == wanted and all(wanted)


def test_trafilatura_gets_plain_elements_in_its_own_process_only() -> None:
    """Pages with all that has a class of its own in lxml: forms, comments, processing instructions, entities."""
    import trafilatura
    from lxml import html as lxml_html

    from feedmill.curation.extract.linearizers import linearizer, prepare
    from feedmill.jobs.sandbox import Sandbox

    form = '<form action="/go"><label for="x">Search for words</label><input id="x" value="text"><select><option>one'
    form += (
        "</select><textarea>More than a few words in an area of text</textarea></form><!-- no --><?php no ?>&nbsp;&foo;"
    )
    table = "<table><tr><th>Name<td>Value<tr><td>a<td>b</table><blockquote>Words of others, quoted.</blockquote>"
    around = ["", form, table, form + table, f"<nav>{form}</nav>", f"<div class='comments'>{form}</div>"]
    found = [html(f"{text} {text}", language).decode() for language, (text, _) in TEXTS.items()]
    found = [page.replace("</p>", f"</p>{more}", 1) for page in found for more in around]
    assert any("textarea" in page for page in found)
    wanted = [trafilatura.extract(page, include_comments=False) or "" for page in found]
    with Sandbox(linearizer("trafilatura"), 60, partial(prepare, "trafilatura")) as sandbox:
        assert list(sandbox.map(found)) == wanted and all(wanted)
    with Sandbox(_class_of_an_input, 60, partial(prepare, "trafilatura")) as sandbox:
        assert list(sandbox.map(["<input>"])) == ["HtmlElement"]
    assert _class_of_an_input("<input>") == lxml_html.InputElement.__name__


def _class_of_an_input(page: str) -> str:
    from trafilatura.utils import load_html

    tree = load_html(f"<html><head><title>x</title></head><body><p>y</p>{page}</body></html>")
    return type(tree.find(".//input")).__name__


def test_any_number_of_processes_writes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.jobs.run.LARGE", 1000)
    monkeypatch.setattr("feedmill.documents.warc.records._BLOCK", 20_000)
    archive(tmp_path / "crawl/large.warc.gz", pages(120))
    archive(tmp_path / "crawl/b.warc.gz", pages(3, "b"))
    archive(tmp_path / "crawl/c.warc.gz", pages(3, "c"))
    found = []
    for workers in (1, 2, 3):
        out = tmp_path / f"out{workers}"
        options = {"taggers": ["char_length_v1"], "html_taggers": ["cc_re"], "workers": workers, "progress": False}
        report = extract([tmp_path / "crawl"], out, **options)
        assert report.documents == 126
        found.append({path: data for path, data in contents(out).items() if ".feedmill/" not in path})
    assert found[0] == found[1] == found[2] and len(found[0]) == 9


def test_what_is_left_out_is_named_and_counted(tmp_path: Path) -> None:
    good = html("A good page.")
    records = [
        response("http://a.example/good", good),
        response("http://a.example/missing", good, status="404 Not Found"),
        response("http://a.example/a.pdf", b"%PDF", "application/pdf"),
        response("http://a.example/b.pdf", b"%PDF", "application/pdf"),
        response("http://a.example/empty", b"<html><body></body></html>"),
        response("http://a.example/large", html("Large." * 3000)),
        record("metadata", b"x: y", "http://a.example/good"),
    ]
    data = b"".join(gzip.compress(one) for one in [*records, response("http://a.example/cut", good)])
    (tmp_path / "crawl").mkdir()
    (tmp_path / "crawl/a.warc.gz").write_bytes(data[:-50])
    report = run(tmp_path, max_page_size="20kB")
    assert report.documents == 1 and report.skipped == {"metadata": 1}
    counts = {reason.partition(" (")[0]: count for reason, count in report.left_out.counts.items()}
    assert counts == {
        "HTTP status 404": 1,
        "type application/pdf": 2,
        "the linearizer found no text": 1,
        "the page is larger than 20,000 bytes": 1,
        "the compressed data is corrupt": 1,
    }
    names = read_json(tmp_path / "web/.feedmill/mix-documents/a.jsonl.gz.left_out.jsonl")
    assert [one["url"].rpartition("/")[2] for one in names] == ["missing", "a.pdf", "b.pdf", "empty", "large", ""]
    assert [one["offset"] for one in names] == sorted(one["offset"] for one in names)


def test_a_page_that_keeps_the_linearizer_busy_is_left_out(tmp_path: Path) -> None:
    records = [*pages(3), response("http://a.example/deep", DEEP), *pages(6, "b")[1:]]
    archive(tmp_path / "crawl/a.warc.gz", records)
    report = run(tmp_path, page_timeout=1)
    assert report.documents == 9
    assert report.left_out.counts == {"the linearizer took longer than 1 s": 1}
    assert report.left_out.names["the linearizer took longer than 1 s"] == ["http://a.example/deep"]


def test_taggers_write_attribute_sets_that_belong_to_the_documents(tmp_path: Path) -> None:
    link = b'<a rel="license" href="https://creativecommons.org/licenses/by/4.0/">CC</a></footer>'
    bodies = [html("A licensed page.").replace(b"</footer>", link), html("Another page.")]
    archive(tmp_path / "crawl/a.warc.gz", [response(f"http://a/{k}", body) for k, body in enumerate(bodies)])
    run(tmp_path, html_taggers=["cc_re"], taggers=["char_length_v1"])
    found = documents(tmp_path)
    licenses, lengths = (
        read_json(tmp_path / f"web/attributes/{name}/a.jsonl.gz") for name in ("cc_re", "char_length_v1")
    )
    assert [one["attributes"] for one in licenses] == [{"cc_re__cc_re__cc_by_4_0": [[0, 0, 1.0]]}, {}]
    size = len(found[0]["text"])
    assert lengths[0]["attributes"] == {"char_length_v1__char_length_v1__length": [[0, size, size]]}
    assert all("html" not in one["metadata"] for one in found)
    from feedmill.curation.provenance import Verdict, verdict
    from feedmill.storage import open_store

    store = open_store(str(tmp_path / "web"))
    entry = store.stat("documents/a.jsonl.gz")
    assert verdict(store, "cc_re", "attributes/cc_re/a.jsonl.gz", entry) is Verdict.SAME
    report = run(tmp_path, html_taggers=["cc_re"], only_tagged=True, keep_html=True)
    assert report.documents == 1 and "license" in documents(tmp_path)[0]["metadata"]["html"]
    assert report.left_out.counts == {"the taggers of the HTML found nothing": 1}


def test_what_is_up_to_date_is_kept(tmp_path: Path) -> None:
    archive(tmp_path / "crawl/a.warc.gz", pages(4))
    run(tmp_path)
    before = (tmp_path / "web/documents/a.jsonl.gz").stat().st_mtime_ns
    archive(tmp_path / "crawl/b.warc.gz", pages(2, "b"))
    report = run(tmp_path)
    assert (report.archives, report.reused, report.documents) == (2, 1, 6)
    assert (tmp_path / "web/documents/a.jsonl.gz").stat().st_mtime_ns == before
    archive(tmp_path / "crawl/a.warc.gz", pages(5))
    assert run(tmp_path).reused == 1 and len(documents(tmp_path)) == 5
    assert run(tmp_path, linearizer="trafilatura").reused == 0
    assert run(tmp_path, linearizer="trafilatura").reused == 2
    os.remove(tmp_path / "web/documents/b.jsonl.gz")
    assert run(tmp_path, linearizer="trafilatura").reused == 1
    assert run(tmp_path, linearizer="trafilatura", overwrite=True).reused == 0


def test_documents_are_the_raw_ones_of_trace_and_forget(tmp_path: Path) -> None:
    from feedmill.curation.mix.config import read_config
    from feedmill.curation.mix.job import mix
    from feedmill.tracing.forget import forget

    archive(tmp_path / "crawl/a.warc.gz", pages(6))
    run(tmp_path)
    out = {"path": str(tmp_path / "kept"), "max_size_in_bytes": 1 << 20}
    stream = {"name": "web", "documents": [f"{tmp_path}/web/documents/*"], "output": out}
    mix(read_config({"streams": [stream]}), workers=1, progress=False)
    wanted = documents(tmp_path)[3]["id"]
    (kept,) = (tmp_path / "kept").iterdir()
    found = forget([wanted], [kept])
    assert found.files == {str(tmp_path / "web/documents/a.jsonl.gz"): [3], str(kept): [3]}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"linearizer": "lynx"}, ConfigError, "unknown linearizer 'lynx'"),
        ({"taggers": ["nope_v1"]}, ConfigError, "unknown tagger"),
        ({"taggers": ["cc_re"], "html_taggers": ["cc_re"]}, ConfigError, "passed twice"),
        ({"only_tagged": True}, ConfigError, "requires an HTML tagger"),
        ({"max_page_size": 0}, ConfigError, "page size"),
        ({"page_timeout": 0}, ConfigError, "timeout"),
        ({"status": (500,)}, EmptyResult, r"0 of 3 pages kept \(3: HTTP status 200\)"),
    ],
)
def test_errors_are_one_message(tmp_path: Path, options: dict[str, Any], error: type, message: str) -> None:
    archive(tmp_path / "crawl/a.warc.gz", pages(3))
    with pytest.raises(error, match=message):
        run(tmp_path, **options)


def test_inputs_without_archives_and_shared_outputs_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="the folder has no web archives"):
        extract([str(tmp_path / "empty")], str(tmp_path / "out"))
    with pytest.raises(NotFound, match="no such file or folder"):
        run(tmp_path)
    archive(tmp_path / "crawl/a.warc.gz", pages(1))
    archive(tmp_path / "crawl/a.warc", pages(1))
    with pytest.raises(ConfigError, match="would share the file"):
        run(tmp_path)
    assert not (tmp_path / "web").exists()
    with pytest.raises(ConfigError, match="no archive was given"):
        extract([], tmp_path / "web")


def test_remote_archives_and_outputs(tmp_path: Path, s3_bucket: str) -> None:
    from feedmill.storage import open_store

    path = archive(tmp_path / "crawl/a.warc.gz", pages(6))
    run(tmp_path)
    open_store(s3_bucket).write_bytes("crawl/a.warc.gz", path.read_bytes())
    report = extract([f"{s3_bucket}/crawl"], f"{s3_bucket}/web", workers=2, progress=False)
    assert (
        report.documents == 6 and extract([f"{s3_bucket}/crawl/*.gz"], f"{s3_bucket}/web", progress=False).reused == 1
    )
    data = open_store(s3_bucket).read("web/documents/a.jsonl.gz")
    assert data == (tmp_path / "web/documents/a.jsonl.gz").read_bytes()


def test_the_text_of_wet_files_is_kept(tmp_path: Path) -> None:
    text = "Été à la rivière.\nLine two.\n"
    one = record("conversion", text.encode(), "http://a.example/", Content_Type="text/plain")
    archive(tmp_path / "crawl/a.wet.gz", [one])
    run(tmp_path)
    assert [json.loads(json.dumps(one["text"])) for one in documents(tmp_path)] == [text]
