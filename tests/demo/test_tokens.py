"""The demo's tokenizer, and its rows of tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import feedmill
from feedmill.demo.corpus import EOS, train_tokenizer
from feedmill.demo.runs import load_rows
from feedmill.storage import LocalStore
from feedmill.tokens.tokenizer import load_tokenizer
from feedmill.tokens.verbs.tokenize import tokenize

TEXTS = [f"def function_{i}(value):\n    return value + {i}" for i in range(200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokens")
    assert train_tokenizer(LocalStore(root / "tokenizer"), TEXTS, 300) == 300
    (root / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    tokenize([root / "texts.jsonl"], root / "texts", tokenizer=root / "tokenizer", progress=False)
    return root


def test_the_tokenizer_gives_every_text_back_and_names_its_end(folder: Path) -> None:
    tokenizer = load_tokenizer(folder / "tokenizer")
    assert tokenizer.declared_eos == EOS
    for text in [*TEXTS, "Äpfel \U0001f34e\x00"]:
        assert tokenizer.decode(tokenizer.encode([text]).ids) == text


def test_the_same_texts_give_the_same_tokenizer(folder: Path, tmp_path: Path) -> None:
    train_tokenizer(LocalStore(tmp_path), TEXTS, 300)
    assert (tmp_path / "tokenizer.json").read_bytes() == (folder / "tokenizer/tokenizer.json").read_bytes()


def test_rows_do_not_depend_on_the_layout_and_go_on_from_a_state(folder: Path) -> None:
    plan = feedmill.Recipe.parse(f"seed: 1\nsource: {{path: {folder / 'texts.pbin'}, windows: 16}}").plan()
    calm, _ = load_rows(plan, until=120, batch_size=8)
    first, state = load_rows(plan, until=60, batch_size=10, world_size=2)
    rest, _ = load_rows(plan, until=120, batch_size=5, world_size=3, state=state)
    assert sorted(first)[-1] == 59 and min(rest) == 60
    assert {**first, **rest} == calm
