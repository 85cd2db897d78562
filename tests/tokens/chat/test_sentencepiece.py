"""Conversations with a SentencePiece model as the only tokenizer: special tokens of the template are special tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from feedmill.tokens.tokenizer import load_tokenizer
from helpers.tokenizer_kinds import KINDS, MADE

TEMPLATE = (
    "{% for m in messages %}{{ bos_token }}[{{ m.role }}] {% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% endfor %}"
)
SETTINGS = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
ROW = {"messages": [{"role": "user", "content": "hello, it is"}, {"role": "assistant", "content": "12 words"}]}
IDS = [1, 323, 356, 349, 267, 393, 343, 363, 278, 352, 351, 360, 263, 350, 263, 349, 2]
IDS += [1, 323, 347, 349, 349, 345, 300, 274, 350, 393, 343, 368, 380, 343, 495, 351, 348, 353, 349, 2]
"""What transformers 4.57 gives: apply_chat_template of the folder."""


def folder(path: Path, settings: dict[str, Any], model: str = "bpe.model") -> Path:
    path.mkdir()
    shutil.copy(KINDS / model, path / "tokenizer.model")
    (path / "tokenizer_config.json").write_text(json.dumps(SETTINGS | settings))
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    return path


def test_ids_are_those_of_transformers(rows: Path, tmp_path: Path) -> None:
    path = folder(tmp_path / "t", {})
    for number, tokenizer in enumerate((path, load_tokenizer(path))):
        report = fm.tokenize(rows, tmp_path / f"x{number}", tokenizer=tokenizer, chat="messages", progress=False)
        (document,) = fm.open(tmp_path / f"x{number}.pbin")
        assert document["input_ids"].tolist() == IDS
        learned = document["input_ids"][document["loss_mask"]].tolist()
        assert learned.count(2) == 2 and 1 not in learned and report.tokens_in_loss == len(learned)
        assert learned[-9:] == IDS[-9:]


@pytest.mark.parametrize(
    ("settings", "model", "said"),
    [
        ({"tokenizer_class": "GemmaTokenizer"}, "bpe.model", "its class is GemmaTokenizer"),
        ({}, "unigram.model", "it is not a BPE model"),
    ],
)
def test_models_whose_special_tokens_are_unknown(
    settings: dict[str, Any], model: str, said: str, rows: Path, tmp_path: Path
) -> None:
    path = folder(tmp_path / "t", settings, model)
    with pytest.raises(ConfigError, match=f"only as LlamaTokenizer does, but {said}"):
        fm.tokenize(rows, tmp_path / "x", tokenizer=path, chat="messages", progress=False)


def test_tekken(rows: Path, tmp_path: Path) -> None:
    path = MADE["tekken"](tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    for given in (path, load_tokenizer(path)):
        with pytest.raises(ConfigError, match=r"which a tekken.json encodes as plain text"):
            fm.tokenize(rows, tmp_path / "x", tokenizer=given, chat="messages", progress=False)
