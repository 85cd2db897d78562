"""Reports: one file that holds all it shows, and says what it could not show."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from jinja2 import Environment
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.demo.sample_data import card
from feedmill.errors import ConfigError, FeedmillError, NotFound, StorageError
from feedmill.web import templating
from helpers.web_server import serving


def test_a_report_needs_nothing_else(root: Path, tmp_path: Path) -> None:
    paths = [root / "pages", root / "text/prose.pbin", root / "mix.yaml", root / "text/packed.yaml"]
    done = fm.report(paths, tmp_path / "r.html", loss=str(root / "loss.csv"))
    text = (tmp_path / "r.html").read_text()
    assert done.bytes == len(text.encode()) and (done.findings, done.problems) == (0, [])
    links = re.findall(r'(?<!-)(?:src|href|action|srcset|poster)="([^"]*)"', text)
    assert links and all(link.startswith(("#", "data:image/")) and not urlsplit(link).netloc for link in links)
    assert "<script" not in text and "style=" not in text and "style-src 'sha256-" in text
    words = re.sub(r"<[^>]*>", " ", text)
    for wanted in ("page-0000", "document 0", "no findings", "spikes at 60", "prose", "fingerprint"):
        assert wanted in words
    with pytest.raises(ConfigError, match="exists"):
        fm.report(paths[:1], tmp_path / "r.html")


def test_duplicates_of_documents(root: Path, tmp_path: Path) -> None:
    done = fm.report(root / "corpus/documents", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert (done.findings, done.problems) == (0, []) and "<script" not in text and "style=" not in text
    words = re.sub(r"<[^>]*>", " ", text)
    assert "largest clusters" in words and "Source by source" in words and "as dedupe wrote them" in words
    shutil.copytree(root / "corpus/documents", tmp_path / "documents")
    fm.report(tmp_path / "documents", tmp_path / "plain.html")
    assert "largest clusters" not in (tmp_path / "plain.html").read_text()


def test_what_is_damaged_is_said_and_counted(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "pages", tmp_path / "pages")
    shard = tmp_path / "pages/pages-1.tar"
    shard.write_bytes(shard.read_bytes()[:5000])
    done = fm.report(tmp_path / "pages", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert done.findings > 0 and "pages-1.tar" in text
    unchecked = fm.report(tmp_path / "pages", tmp_path / "q.html", check=False)
    assert unchecked.findings == 0 and "not checked" in (tmp_path / "q.html").read_text()


def test_files_beside_documents_are_named(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(3):
        (tmp_path / f"photos/{number}.jpg").write_bytes(card(number))
        (tmp_path / f"photos/{number}.txt").write_text("a card")
    done = fm.report(tmp_path / "photos", tmp_path / "r.html")
    (problem,) = done.problems
    assert "3 files (" in problem and "skipped: no documents. To make" in problem and "feedmill import" in problem
    assert "skipped: no documents" in (tmp_path / "r.html").read_text()
    with serving(tmp_path / "photos") as site:
        assert "Some files are not shown" in site.get("/photos/samples").words


def test_the_command(root: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke(
        app, ["serve", str(root / "text/prose.jsonl"), "--export", str(tmp_path / "r.html"), "--json"]
    )
    assert run.exit_code == 0 and json.loads(run.output)["bytes"] == (tmp_path / "r.html").stat().st_size
    assert (
        CliRunner().invoke(app, ["serve", str(tmp_path / "nothing"), "--export", str(tmp_path / "x.html")]).exit_code
        == 1
    )
    with pytest.raises(NotFound):
        fm.report(tmp_path / "nothing", tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


def test_two_datasets_recipes_or_runs(root: Path, tmp_path: Path) -> None:
    pairs = {
        "datasets": (root / "pages", root / "text/prose.jsonl", "only in A"),
        "recipes": (root / "mix.yaml", root / "other.yaml", "first position that differs"),
        "runs": (root / "before.run.json", root / "crawl.yaml", "first step whose outputs differ is lengths"),
    }
    for name, (one, other, words) in pairs.items():
        fm.report([one, other], tmp_path / f"{name}.html", compare=True, check=False)
        text = re.sub(r"<[^>]*>", " ", (tmp_path / f"{name}.html").read_text())
        assert words in text and f"{one.name} and {other.name}" in text
        links = re.findall(r'(?<!-)(?:src|href)="([^"]*)"', (tmp_path / f"{name}.html").read_text())
        assert all(link.startswith(("#", "data:image/")) for link in links)
    for paths, message in (
        ([root / "pages"], "needs two paths"),
        ([root / "pages", root / "mix.yaml"], "a dataset cannot be compared with a recipe"),
    ):
        with pytest.raises(ConfigError, match=message):
            fm.report(paths, tmp_path / "x.html", compare=True)
    assert not (tmp_path / "x.html").exists()


def test_runs_and_telemetry(root: Path, tmp_path: Path) -> None:
    done = fm.report([root / "crawl.yaml", root / "run/loading-{rank}.jsonl"], tmp_path / "r.html")
    text = re.sub(r"<[^>]*>", " ", (tmp_path / "r.html").read_text())
    assert not done.problems and "up to date" in text and "rank 3" in text and "data-plot" not in text


def test_outputs_and_inputs_that_are_no_files(root: Path, tmp_path: Path) -> None:
    for output, message in (("", "output is empty"), (tmp_path, "a folder"), (f"{tmp_path}/", "a folder")):
        with pytest.raises(ConfigError, match=message):
            fm.report(root / "pages", output, check=False)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="a pipe, which cannot be shown"):
        fm.report(tmp_path / "pipe", tmp_path / "x.html")
    with pytest.raises(StorageError, match="would be replaced"):
        fm.report(root / "pages", tmp_path / "pipe", check=False, overwrite=True)
    (tmp_path / "rand.yaml").write_bytes(b"\x84\xff steps")
    with pytest.raises(FeedmillError, match="unacceptable character") as raised:
        fm.run(tmp_path / "rand.yaml")
    assert "\n" not in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "rand.yaml"]


@pytest.mark.parametrize("path", ["s3://nowhere/p.yaml", "s3://nowhere/x.jsonl", "s3://nowhere/x-{rank}.jsonl"])
def test_a_store_that_does_not_answer_is_asked_once(path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def refuse(self: object, path: str = "", *_: object) -> None:
        asked.append(path)
        raise StorageError("the server cannot be reached", file=path)

    for name in ("stat", "read", "files"):
        monkeypatch.setattr(f"feedmill.storage.remote.object_store.RemoteStore.{name}", refuse)
    with pytest.raises(StorageError, match="cannot be reached"):
        fm.report(path, tmp_path / "x.html")
    assert len(asked) == 1


def test_a_report_begins_with_a_summary_and_contents(root: Path, tmp_path: Path) -> None:
    fm.report([root / "pages", root / "corpus/documents", root / "mix.yaml"], tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    links = set(re.findall(r'href="#([^"]+)"', text)) - {"main"}
    assert "Summary" in text[: text.index('id="part-1"')] and {"part-1-samples", "part-2-duplicates"} <= links
    assert not {link for link in links if f'id="{link}"' not in text}
    for n in (1, 2, 3):  # on a phone each is folded below its facts, and opened by its box or by a link into it
        begin = text.index(f'id="part-{n}"')
        fold = text.index(f'<input class="fold" type="checkbox" id="fold-{n}"', begin)
        assert f'<label class="btn fold" for="fold-{n}">' in text[fold:] and '<div class="folded' in text[fold:]
        assert all(text.index(f'id="{link}"') > fold for link in links if link.startswith(f"part-{n}-"))
    assert "input.fold:not(:checked) + .fold + .folded:not(:has(:target)) { display: none; }" in text


def test_templates_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each server and each report of a notebook took a tenth of a second for it."""
    templating.environment().get_template("report.html")
    monkeypatch.setattr(Environment, "compile", None)
    assert templating.environment().get_template("report.html").name == "report.html"
