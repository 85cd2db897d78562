"""The tokens: lengths, and how full rows are."""

from __future__ import annotations

import gzip
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
from feedmill.tokens.tokenizer import load_tokenizer
from feedmill.web.tokens import HEIGHT, lengths_chart, packing
from helpers.tokenizer_data import tokenizer_file
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


def test_documents_are_encoded(two: Site, root: Path) -> None:
    data = get(two, "/documents/tokens.json")
    assert not data["stored"] and data["documents"] == data["sampled"] == 120 and data["tokens"] is None
    assert data["tokenizer"] == "words"  # the one that was given
    assert sum(bar["documents"] for bar in data["chart"]["bars"]) == 120
    with serving(root / "corpus/documents", root / "text/prose.pbin") as site:
        assert get(site, "/documents/tokens.json")["tokenizer"] == "tok1k"  # that of the tokens beside
    with serving(root / "corpus/documents", root / "pages") as site:
        assert "no tokenizer is open" in site.get("/documents/tokens").words
        assert "without documents" in site.get("/pages/tokens").words
    with serving(root / "corpus/documents", tokenizer=["nowhere"]) as site:
        assert "the tokenizer does not exist on this machine" in site.get("/documents/tokens").words.lower()


def test_lengths_are_those_without_special_tokens(root: Path) -> None:
    with serving(root / "corpus/documents", tokenizer=[str(tokenizer_file("tok1k"))]) as site:
        chart = get(site, "/documents/tokens.json")["chart"]
    tokenizer = load_tokenizer(str(tokenizer_file("tok1k")))
    special = list(tokenizer.special_tokens().values())
    files = sorted((root / "corpus/documents").glob("*.gz"))
    lines = [line for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    documents = [json.loads(line)["text"] for line in lines]
    ids = tokenizer.encode(documents).ids
    assert sum(bar["tokens"] for bar in chart["bars"]) == int((~np.isin(ids, special)).sum())


def test_what_is_wrong_is_named(two: Site) -> None:
    for query in ("seq_len=0", "seq_len=x", "scale=x"):
        assert two.get(f"/prose.pbin/tokens?{query}").status == 400


def test_lengths_of_tokens_need_no_tokenizer(root: Path, tmp_path: Path) -> None:
    data = json.loads((root / "text/prose.pbin.feedmill.json").read_text())
    (tmp_path / "prose.pbin").write_bytes((root / "text/prose.pbin").read_bytes())
    data["tokenizer"] |= {"name": "gone/tokenizer", "path": "gone/tokenizer"}
    (tmp_path / "prose.pbin.feedmill.json").write_text(json.dumps(data))
    with serving(tmp_path / "prose.pbin", tokenizer=["nowhere"]) as site:
        page = site.get("/prose.pbin/tokens")
        assert page.status == 200 and "How full rows are" in page.words


def test_a_given_tokenizer_need_not_be_that_of_the_tokens(root: Path, tmp_path: Path) -> None:
    words = word_tokenizer(tmp_path / "words")
    with serving(root / "text/prose.pbin", tokenizer=str(words)) as site:
        assert "document 1" in site.get("/prose.pbin/samples?at=1").words


def test_a_report_has_the_tokens(root: Path, tmp_path: Path) -> None:
    words = word_tokenizer(tmp_path / "words")
    done = fm.report(root / "text/prose.pbin", tmp_path / "r.html")
    command = ["serve", str(root / "corpus/documents"), "--export", str(tmp_path / "c.html"), "-t", str(words)]
    assert CliRunner().invoke(app, command).exit_code == 0
    for name in ("r.html", "c.html"):
        text = (tmp_path / name).read_text()
        assert "Lengths in tokens" in text and "How full rows are" in text and "style=" not in text
    assert not done.problems
