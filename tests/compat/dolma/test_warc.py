"""``feedmill compat dolma warc`` writes what Dolma 1.2.1 wrote for the same archive; so does its function."""

from __future__ import annotations

import datetime
import gzip
import json
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from feedmill.cli.app import app
from helpers.dolma_runs import GOLDEN
from helpers.durations import needs
from helpers.web_archives import archive, html, pages, response

needs("fastwarc", "resiliparse", "trafilatura", "w3lib", "url_normalize", "dateparser")

FOLDER = GOLDEN / "warc"
OPTIONS = {
    "resiliparse": ["--pre.taggers", "cc_re", "--post.taggers", "char_length_v1", "--store_html_in_metadata"],
    "trafilatura": ["--linearizer", "trafilatura"],
    "licensed": ["--pre.taggers", "cc_re", "--pre.skip"],
}
MADE_WITH = {"resiliparse": "2.0.1", "trafilatura": "2.3.1", "licensed": "2.0.1"}


def dolma(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compat", "dolma", *map(str, arguments)])


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.open(path)]


@pytest.mark.parametrize("name", OPTIONS)
def test_the_documents_are_those_of_dolma(tmp_path: Path, name: str) -> None:
    package = "resiliparse" if name == "licensed" else name
    if version(package) != MADE_WITH[name]:
        pytest.skip(f"the texts were made with {package} {MADE_WITH[name]}")
    source = ["--documents", FOLDER / "pages.warc.gz", "--destination", tmp_path / "out", "--source_name", "golden"]
    result = dolma("warc", *source, *OPTIONS[name])
    assert result.exit_code == 0, result.output
    found = rows(tmp_path / "out/pages.jsonl.gz")
    added = [one.pop("added") for one in found]
    assert len(set(added)) == 1 and added[0].endswith("Z") and len(added[0]) == 24
    wanted = [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
    assert found == wanted and [list(one) for one in found] == [list(one) for one in wanted]
    assert "1 x an empty page (http://e.example/)" in result.output
    assert "1 x the record has no valid WARC-Payload-Digest (http://n.example/)" in result.output


def test_a_configuration_and_several_patterns(tmp_path: Path) -> None:
    for name in ("x/one.warc.gz", "x/deep/two.1.warc.gz", "y/three.warc"):
        archive(tmp_path / name, pages(3, name[0]))
    config = tmp_path / "warc.yaml"
    config.write_text(
        f"documents: ['{tmp_path}/x/**/*.gz', '{tmp_path}/y/*']\n"
        f"destination: ['{tmp_path}/a', '{tmp_path}/b']\n"
        "source_name: crawl\nprocesses: 2\npost: {taggers: [char_length_v1]}\n"
    )
    result = dolma("-c", config, "warc")
    assert result.exit_code == 0, result.output
    files = sorted(str(path.relative_to(tmp_path)) for root in "ab" for path in (tmp_path / root).rglob("*.*"))
    assert files == ["a/deep/two.1.jsonl.gz", "a/one.jsonl.gz", "b/three.jsonl.gz"]
    found = rows(tmp_path / "b/three.jsonl.gz")
    assert len(found) == 3 and {one["source"] for one in found} == {"crawl"}
    assert all(list(one["attributes"]) == ["char_length_v1__char_length_v1__length"] for one in found)
    assert "3 up to date" in dolma("-c", config, "warc").output
    assert "up to date" not in dolma("-c", config, "warc", "--ignore_existing").output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--documents none/*.gz --destination o --source_name s", "no archives match any pattern"),
        ("--documents a.warc --destination o", "'source_name' is missing"),
        ("--documents a.warc --source_name s", "1 patterns of archives but 0 destinations"),
        ("--documents a.warc --destination o --source_name s --linearizer x", "unknown linearizer"),
        ("--documents a.warc --destination o --source_name s --pre.taggers x", "unknown tagger"),
    ],
)
def test_errors_are_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    archive(tmp_path / "a.warc", pages(1))
    result = dolma("warc", *options.split())
    assert result.exit_code and message in result.output


def test_dry_runs_write_nothing(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.warc.gz", pages(1))
    result = dolma("warc", "--documents", path, "--destination", tmp_path / "o", "--source_name", "s", "--dryrun")
    assert result.exit_code == 0 and "source_name: s" in result.output and not (tmp_path / "o").exists()


def test_pages_on_which_dolma_fails_are_documents_or_named(tmp_path: Path) -> None:
    from feedmill.compat.dolma.warc import create_and_run_warc_pipeline

    strange = [
        response("http://a.example/1", html("An unknown charset."), "text/html; charset=klingon"),
        response("http://[a.example/2", html("An invalid URL.")),
        response("http://a.example/3", html("No date."), WARC_Date="2024-02-03T04:05:06Z"),
    ]
    archive(tmp_path / "a.warc.gz", strange)
    report = create_and_run_warc_pipeline(f"{tmp_path}/*.gz", str(tmp_path / "o"), "s")
    found = rows(tmp_path / "o/a.jsonl.gz")
    assert report.documents == 3 and [one["metadata"]["url"] for one in found][1] == "http://[a.example/2"
    assert found[2]["created"] == found[2]["metadata"]["warc_date"] == "2024-02-03T04:05:06.000Z"


def test_record_info() -> None:
    from fastwarc.warc import WarcRecordType

    from feedmill.compat.dolma.warc.record_info import WarcRecordInfo

    def info(kind: Any, http: dict[str, str], **more: str) -> WarcRecordInfo:
        headers = {"WARC-Payload-Digest": "sha1:ABC", "WARC-Target-URI": "http://a/", **more}
        return WarcRecordInfo(SimpleNamespace(record_type=kind, headers=headers, http_headers=http))

    found = info(WarcRecordType.response, {"Content-Type": "text/html; a=b", "Date": "Thu, 20 Apr 2023 12:00:00 GMT"})
    assert (found.payload_id, found.target_uri, found.ctype) == ("abc", "http://a/", "text/html")
    assert found.date == datetime.datetime(2023, 4, 20, 12)
    assert info(WarcRecordType.resource, {}, **{"WARC-Date": "2023-04-20T12:00:00Z"}).date.hour == 12
    before = datetime.datetime.now()
    undated = info(WarcRecordType.response, {"Date": "no date"}).date
    assert before <= undated <= datetime.datetime.now()
    with pytest.raises(ValueError, match="unsupported"):
        info("unsupported", {})
    assert not info(WarcRecordType.response, {}, **{"WARC-Target-URI": ""}).is_valid
