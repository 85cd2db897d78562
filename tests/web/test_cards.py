"""Cards that notebooks show by themselves: escaped, small, without scripts, requests or the packages of `web`."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import feedmill as fm
from helpers.tars import write_tar

VOID = {"img", "br"}
BAD = '<img src=x onerror="alert(1)">&\u202e\ud800'


class Reader(HTMLParser):
    """Reads a card strictly: tags must be closed, attributes few, and links data."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.words = ""
        self.images = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag in {"div", "b", "br", "table", "tr", "td", "pre", "img"}, tag
        assert {name for name, _ in attrs} <= {"style", "alt", "src"}
        if tag == "img":
            self.images += 1
            assert re.fullmatch(r"data:image/(jpeg|png);base64,[A-Za-z0-9+/=]+", dict(attrs)["src"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += f" {data}"


def card(thing: Any, most: int = 40_000) -> Reader:
    html = thing._repr_html_()
    assert len(html) < most
    html.encode()  # no lone surrogates
    reader = Reader()
    reader.feed(html)
    assert not reader.open
    return reader


def test_datasets_show_samples_as_pictures_and_text(root: Path) -> None:
    found = card(fm.open(root / "pages"))
    assert found.images == 4 and "130 samples" in found.words and "page-0000" in found.words
    assert "and 126 more samples" in found.words
    tokens = card(fm.open(root / "text/prose.pbin"))
    assert tokens.images == 0 and "not decoded" not in tokens.words and "document" in tokens.words.lower()


def test_samples_show_their_parts(root: Path) -> None:
    sample = fm.open(root / "pages")[0]
    found = card(sample)
    assert found.images == 1 and sample.key in found.words
    typed = fm.samples.CaptioningSample(
        __key__="k<b>", __restore_key__=(), image=Image.new("RGB", (2000, 10)), caption="a <b>cat</b>"
    )
    found = card(typed)
    assert found.images == 1 and "CaptioningSample" in found.words and "a <b>cat</b>" in found.words


def test_plans_loaders_and_reports(root: Path) -> None:
    plan = fm.Recipe.load(root / "mix.yaml").plan()
    assert plan.fingerprint in card(plan).words and "4,000 samples" in card(plan).words
    assert "70 samples drawn, 70.00%, 2 epochs" in card(fm.plan(root / "mix.yaml", samples=100)).words
    assert "batch size 8" in card(fm.Loader(plan, 8, workers=0)).words
    check = card(fm.check(root / "pages", progress=False))
    assert "CheckReport" in check.words and "findings" in check.words and "none" in check.words
    assert "page-0001" in card(fm.preview(root / "pages")).words
    assert "130" in card(fm.info(root / "pages")).words


def test_everything_is_escaped_and_cut(tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (3000, 2000)).save(picture, "JPEG")
    name = BAD.replace("/", "").replace(".", "")
    body = BAD.encode("utf-8", "surrogatepass") * 5000
    files = [
        (f"{i}{name}.{part}".encode("utf-8", "replace").decode(), data)
        for i in range(9)
        for part, data in (("jpg", picture.getvalue()), ("png", b"no image"), ("txt", body), ("json", b"{broken"))
    ]
    write_tar(tmp_path / "a.tar", files)
    ds = fm.open(tmp_path / "a.tar")
    for thing in (ds, ds[0], fm.preview(tmp_path / "a.tar"), fm.check(tmp_path / "a.tar", progress=False)):
        found = card(thing)  # raises for a tag or attribute of the data
        assert "<img src=x onerror" in found.words or "CheckReport" in found.words
        assert "\u202e" not in thing._repr_html_()
    assert card(ds).images == 4


def test_data_that_cannot_be_read_is_said(tmp_path: Path, root: Path) -> None:
    write_tar(tmp_path / "a.tar", [(f"{i}.txt", b"x" * 600) for i in range(6)])
    ds = fm.open(tmp_path / "a.tar")
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[0:512] = bytes(range(256)) * 2
    (tmp_path / "a.tar").write_bytes(data)
    assert "cannot be read" in card(ds).words
    (tmp_path / "a.tar").unlink()
    found = card(ds)
    assert "cannot be shown" in found.words or "cannot be read" in found.words


def test_no_package_of_the_web_is_needed(root: Path) -> None:
    code = f"""
import sys
for name in ("jinja2", "markupsafe", "starlette", "uvicorn"):
    sys.modules[name] = None
import feedmill as fm
ds = fm.open({str(root / "pages")!r})
assert "page-0000" in ds._repr_html_() and "<img" in ds[0]._repr_html_()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_without_pillow_the_cards_say_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    found = card(fm.open(root / "pages"))
    assert found.images == 0 and "need Pillow" in found.words
