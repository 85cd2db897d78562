"""What takes long is made while the page shows that it is being made."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from feedmill.errors import ConfigError, FeedmillError
from feedmill.tracing import copies
from feedmill.web import life, tokens
from feedmill.web import results as module
from feedmill.web.results import Behind, behind
from helpers.web_server import serving


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)


def test_it_is_made_once_and_errors_reach_every_visitor(hasty: None) -> None:
    gate, made, holder = threading.Event(), [], SimpleNamespace()

    def make() -> int:
        made.append(1)
        gate.wait(120)
        return 7

    assert [behind(holder, "_x", make).result() for _ in range(3)] == [None] * 3
    gate.set()
    assert behind(holder, "_x", make).result(wait=True) == 7 and made == [1]

    def fail() -> int:
        raise ConfigError("no")

    def break_() -> int:
        raise ValueError("a defect")

    for function, kind in ((fail, ConfigError), (break_, FeedmillError)):
        for _ in range(2):
            with pytest.raises(kind):
                Behind(function).result(wait=True)


def test_the_page_of_tokens_comes_before_the_tokenizer(
    root: Path, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, load = threading.Event(), tokens._tokenizer
    monkeypatch.setattr(tokens, "_tokenizer", lambda thing: (gate.wait(120), load(thing))[1])
    with serving(root / "text/prose.pbin", root / "corpus/documents") as site:
        data = json.loads(site.get("/prose.pbin/tokens.json").text)
        assert not data["loading"] and data["chart"] and data["packing"]  # those of tokens need no tokenizer
        first = site.get("/documents/tokens")
        assert 'data-refresh="1000"' in first.text and "A tokenizer is loaded" in first.words
        gate.set()
        monkeypatch.setattr(module, "PATIENCE", 60.0)
        data = json.loads(site.get("/documents/tokens.json").text)
        assert not data["loading"] and data["chart"]
        assert "data-refresh" not in site.get("/documents/tokens").text


def test_the_life_of_a_document_comes_before_its_copies(
    root: Path, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    class Slow(copies.Texts):
        def __init__(self, files: list[str]) -> None:
            gate.wait(120)
            super().__init__(files)

    monkeypatch.setattr(life, "Texts", Slow)
    with serving(root / "text/packed.yaml") as site:
        first = site.get("/packed.yaml/life?at=3")
        assert "searched for the same text" in first.words and 'data-refresh="1000"' in first.text
        gate.set()
        monkeypatch.setattr(module, "PATIENCE", 60.0)
        data = json.loads(site.get("/packed.yaml/life.json?at=3").text)
        assert not data["copies"]["searching"] and data["copies"]["whole"]
