"""Reports: one file that holds all it shows, and says what it could not show."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError, NotFound


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


def test_the_command(root: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["report", str(root / "text/prose.jsonl"), "-o", str(tmp_path / "r.html"), "--json"])
    assert run.exit_code == 0 and json.loads(run.output)["bytes"] == (tmp_path / "r.html").stat().st_size
    assert CliRunner().invoke(app, ["report", str(tmp_path / "nothing"), "-o", str(tmp_path / "x.html")]).exit_code == 1
    with pytest.raises(NotFound):
        fm.report(tmp_path / "nothing", tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()
