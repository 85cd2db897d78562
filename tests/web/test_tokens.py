"""The tokens: lengths, how full rows are, and tokenizers on the same text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.web.tokens import HEIGHT, lengths_chart, packing
from helpers.tokenizer_data import EOS, tokenizer_file
from helpers.web_data import TEXTS
from helpers.web_server import Site, serving

WORDS = ["[UNK]", "one", "two", "three", "four", "document"]


def word_tokenizer(folder: Path) -> Path:
    """A tokenizer of five words, to which everything else is unknown."""
    folder.mkdir()
    tree = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 0,
                "content": "[UNK]",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: n for n, word in enumerate(WORDS)}, "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    return folder


@pytest.fixture(scope="module")
def two(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    words = word_tokenizer(tmp_path_factory.mktemp("tokenizers") / "words")
    with serving(root / "text/prose.pbin", root / "corpus/documents", tokenizer=[str(words)]) as site:
        yield site


def get(site: Site, path: str) -> Any:
    answer = site.get(path)
    assert answer.status == 200, answer.text
    return answer.json


def test_lengths_are_those_of_the_index(two: Site, root: Path) -> None:
    data = get(two, "/prose.pbin/tokens.json")
    dataset: Any = fm.open(str(root / "text/prose.pbin"))
    assert data["documents"] == data["sampled"] == 50 and data["tokens"] == dataset.tokens
    figures = {one["label"]: one["value"] for one in data["figures"]}
    assert figures["least"] == dataset.lengths.min() and figures["most"] == dataset.lengths.max()
    for scale in ("log", "linear"):
        chart = get(two, f"/prose.pbin/tokens.json?scale={scale}")["chart"]
        assert sum(bar["documents"] for bar in chart["bars"]) == 50
        assert sum(bar["tokens"] for bar in chart["bars"]) == dataset.tokens


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=60), st.booleans())
def test_every_length_is_in_its_bar(lengths: list[int], log: bool) -> None:
    chart = lengths_chart(np.array(lengths, np.int64), log)
    for bar in chart["bars"]:
        inside = [n for n in lengths if bar["low"] <= n <= bar["high"]]
        assert bar["documents"] == len(inside) and bar["tokens"] == sum(inside)
        assert 0 <= bar["y"] <= HEIGHT and bar["height"] >= 0 and bar["x"] >= 0
    assert sum(bar["documents"] for bar in chart["bars"]) == len(lengths)


@given(st.lists(st.integers(0, 5000), max_size=60), st.integers(1, 600))
def test_rows_hold_the_tokens(lengths: list[int], seq_len: int) -> None:
    total = sum(lengths)
    found = packing(np.array(lengths, np.int64), seq_len)
    assert bool(found) == bool(total)
    for way in found:
        assert way["rows"] * seq_len == way["padding"] + total - way["dropped"] and 0 <= way["fill"] <= 1
    if found:
        padded, cut, split, truncated = found
        assert split["dropped"] == 0 and cut["padding"] == 0 and cut["dropped"] < seq_len
        assert truncated["dropped"] == padded["dropped"] and truncated["rows"] <= padded["rows"]
        assert split["rows"] >= -(-total // seq_len)


def test_rows_are_those_of_a_recipe(root: Path, two: Site, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        f"seed: 1\nepochs: 1\npack: {{seq_len: 64, method: best_fit}}\nconcat:\n  - {{path: {root}/text/prose.pbin}}\n"
    )
    ways = {way["name"]: way for way in get(two, "/prose.pbin/tokens.json?seq_len=64")["packing"]}
    assert ways["best fit, long documents split"]["rows"] == fm.Recipe.load(str(tmp_path / "r.yaml")).plan().length


def test_tokenizers_on_the_same_text(two: Site) -> None:
    data = get(two, "/prose.pbin/tokens.json?doc=1")
    assert data["tokenizers"] == ["tok1k", "words"] and not data["problems"]
    first, words = data["fertility"]
    texts = TEXTS[:50]
    assert first["words"] == words["words"] == sum(len(text.split()) for text in texts)
    assert first["bytes"] == words["bytes"] == sum(len(text.encode()) for text in texts)
    assert first["tokens"] == data["stored_tokens"] == data["tokens"] - 50  # without the end of each document
    assert first["unknown"] is None and 0 < words["unknown"] < words["tokens"]
    known = sum(word in WORDS for text in texts for word in text.replace(":", " : ").replace(".", " . ").split())
    assert words["tokens"] - words["unknown"] == known
    one, other = data["sides"]["sides"]
    assert (one["name"], other["name"]) == ("tok1k", "words") and data["sides"]["index"] == 1
    assert "".join(piece["text"] for piece in one["pieces"]) == texts[1]
    swapped = get(two, "/prose.pbin/tokens.json?a=words&b=tok1k")["sides"]["sides"]
    assert [side["name"] for side in swapped] == ["words", "tok1k"]
    page = two.get("/prose.pbin/tokens?doc=1")
    assert "Side by side" in page.words and "per word" in page.words


def test_documents_are_encoded(two: Site, root: Path) -> None:
    data = get(two, "/documents/tokens.json")
    assert not data["stored"] and data["documents"] == data["sampled"] == 120
    assert data["tokenizers"] == ["words", "tok1k"]  # the one that was given, and that of the tokens beside
    assert sum(bar["documents"] for bar in data["chart"]["bars"]) == 120
    with serving(root / "corpus/documents", root / "pages") as site:
        assert "no tokenizer is open" in site.get("/documents/tokens").words
        assert "without documents" in site.get("/pages/tokens").words


def test_what_is_wrong_is_named(two: Site, root: Path, tmp_path: Path) -> None:
    for query, status in (
        ("a=x", 400),
        ("b=<b>", 400),
        ("seq_len=0", 400),
        ("seq_len=x", 400),
        ("scale=x", 400),
        ("doc=999", 404),
    ):
        assert two.get(f"/prose.pbin/tokens?{query}").status == status
    data = json.loads((root / "text/prose.pbin.feedmill.json").read_text())
    (tmp_path / "prose.pbin").write_bytes((root / "text/prose.pbin").read_bytes())
    data["tokenizer"] |= {"name": "gone/tokenizer", "path": "gone/tokenizer"}
    (tmp_path / "prose.pbin.feedmill.json").write_text(json.dumps(data))
    with serving(tmp_path / "prose.pbin", tokenizer=["nowhere"]) as site:
        page = site.get("/prose.pbin/tokens")
        assert page.status == 200 and "cannot be decoded" in page.words and "How full rows are" in page.words


def test_a_given_tokenizer_need_not_be_that_of_the_tokens(root: Path, tmp_path: Path) -> None:
    words = word_tokenizer(tmp_path / "words")
    with serving(root / "text/prose.pbin", tokenizer=str(words)) as site:
        assert "document 1" in site.get("/prose.pbin/samples?at=1").words


def test_hostile_texts_stay_text(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script><img src=x onerror="alert(2)">\u202e</main>'
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": evil}) + "\n")
    fm.tokenize([tmp_path / "x.jsonl"], tmp_path / "x", tokenizer=tokenizer_file("tok1k"), eos=EOS, progress=False)
    with serving(tmp_path / "x.pbin") as site:
        page = site.get("/x.pbin/tokens")
        assert page.status == 200 and "<script>alert" not in page.text and "<img" not in page.text


def test_a_report_has_the_tokens(root: Path, tmp_path: Path) -> None:
    words = word_tokenizer(tmp_path / "words")
    both = [str(tokenizer_file("tok1k")), str(words)]
    done = fm.report(root / "text/prose.pbin", tmp_path / "r.html", tokenizer=both)
    text = (tmp_path / "r.html").read_text()
    command = ["report", str(root / "text/prose.pbin"), "-o", str(tmp_path / "c.html"), "-t", both[0], "-t", both[1]]
    assert CliRunner().invoke(app, command).exit_code == 0 and "words" in (tmp_path / "c.html").read_text()
    assert not done.problems and "Lengths in tokens" in text and "tokens per word" in text and "style=" not in text
