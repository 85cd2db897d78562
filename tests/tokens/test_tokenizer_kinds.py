"""Tokenizers of every kind give the ids of the library that they are from, on 2,000 texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from feedmill.tokens.tokenizer import Tokenizer, load_tokenizer
from helpers.tokenizer_kinds import DIFFERENT, KINDS, MADE, PATTERN, SOURCE, hashes, original, texts

EXPECTED = json.loads((KINDS / "expected.json").read_bytes())
TEXTS = texts()
ENGINES = {
    "tiktoken": ("fastokens", "hf", "ranks"),
    "tekken": ("fastokens", "hf", "ranks"),
    "sentencepiece bpe": ("fastokens", "hf", "sentencepiece"),
    "sentencepiece unigram": ("sentencepiece",),
}
SLOW_ENGINE = {"sentencepiece unigram", "bert", "bert with case", "electra", "json, Bert"}
SLOW_ENGINE |= {"llama, not legacy"}


def ids_of(tokenizer: Tokenizer) -> list[list[int]]:
    ids, lengths = tokenizer.encode(TEXTS)
    return [piece.tolist() for piece in np.split(ids, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize("name", list(MADE))
def test_ids_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    path = MADE[name](tmp_path)
    for engine in ("auto", *ENGINES.get(name, ("hf",))):
        source = SOURCE.get(name, "transformers4" if name in DIFFERENT else "auto")
        found = load_tokenizer(path, engine, template_source=source, pattern=PATTERN.get(name))  # type: ignore[arg-type]
        if engine == "auto":
            assert (found.backend == "fastokens") == (name not in SLOW_ENGINE), found.fallback
            assert (found.fallback is None) == (name not in SLOW_ENGINE)
        assert hashes(ids_of(found)) == EXPECTED[name], engine


@pytest.mark.parametrize("name", list(MADE))
def test_ids_are_those_of_the_installed_original(name: str, tmp_path: Path) -> None:
    path = MADE[name](tmp_path)
    try:
        wanted = original(name, path, TEXTS)
    except ImportError as error:
        pytest.skip(f"the original library is not installed: {error}")
    source = SOURCE.get(name, "transformers4" if name in DIFFERENT else "auto")
    found = ids_of(load_tokenizer(path, template_source=source, pattern=PATTERN.get(name)))  # type: ignore[arg-type]
    assert [text for text, a, b in zip(TEXTS, found, wanted, strict=True) if a != b] == []
