"""What notebooks display: self-contained, escaped, without scripts or requests."""

from __future__ import annotations

import html
import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import MissingExtra
from feedmill.web.notebook import Frame


def inside(frame: Frame) -> str:
    """Return the page of a frame, after checking that it needs nothing else."""
    shown = frame._repr_html_()
    found = re.fullmatch(r'<iframe sandbox srcdoc="([^"]*)" width="100%" height="(\d+)" [^<>]*></iframe>', shown)
    assert found is not None
    page = html.unescape(found[1])
    assert page == frame.html and "<script" not in page and 'http-equiv="Content-Security-Policy"' in page
    links = re.findall(r'(?<!-)(?:src|href|action)="([^"]*)"', page)
    assert all(link.startswith(("#", "data:image/")) for link in links)
    return re.sub(r"<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)


def test_datasets(root: Path) -> None:
    frame = fm.open(root / "pages").show()
    assert "page-0000" in inside(frame) and "data:image/" in frame.html
    assert "130 samples" in repr(frame) and "<" not in repr(frame)
    assert "document 0" in inside(fm.show(fm.open(root / "text/prose.jsonl"), height=200))
    assert "page-0000" in inside(fm.show(root / "pages"))


def test_plans(root: Path) -> None:
    plan = fm.Recipe.load(root / "mix.yaml").plan()
    for shown in (
        plan.show(),
        fm.plan(root / "mix.yaml", samples=100).show(),
        fm.show(fm.Recipe.load(root / "mix.yaml").plan()),
    ):
        words = inside(shown)
        assert "prose" in words and "70.0000" in words
    assert plan.fingerprint[:8] in inside(plan.show()) and repr(plan.show()) == str(plan)
    packed = fm.Recipe.load(root / "text/packed.yaml").plan()
    assert "rows" in inside(packed.show())


def test_reports(root: Path, tmp_path: Path) -> None:
    good = fm.check(root / "pages", progress=False)
    assert "no findings" in inside(good.show())
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n<script>alert(1)</script>\n')
    bad = inside(fm.check(tmp_path / "x.jsonl", progress=False).show())
    assert "damaged" in bad and "x.jsonl" in bad
    assert "up to date" in inside(fm.run(root / "crawl.yaml", dry_run=True, progress=False).show())
    assert "entries" in inside(fm.trace(str(root / "mix.yaml"), step=0, global_batch=4).show())
    assert pickle.loads(pickle.dumps(good)).samples == good.samples


def test_hostile_data_stays_text(tmp_path: Path) -> None:
    text = "</iframe><script>alert(1)</script>\"' &quot; &#34; \u202e"
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": text, '"><img src=x onerror=alert(1)>': 1}) + "\n")
    frame = fm.open(tmp_path / "x.jsonl").show()
    assert "<img src=x" not in frame.html and "alert(1)" in inside(frame)
    assert frame._repr_html_().count("<") == 2


def test_what_cannot_be_shown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="a int cannot be shown"):
        fm.show(5)
    for name in [name for name in sys.modules if name.startswith(("feedmill.web.", "jinja2", "markupsafe"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setitem(sys.modules, "markupsafe", None)
    dataset: Any = fm.open(root / "pages")
    with pytest.raises(MissingExtra, match=r"feedmill\[web\]"):
        dataset.show()
    assert len(dataset) == 130
