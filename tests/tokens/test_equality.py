"""fastokens gives the ids of Hugging Face `tokenizers`, on texts made to part them."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from feedmill.tokens.engines import TEXTS, Encoded, differences
from helpers.tokenizer_data import loaded

RANGES = [(0x20, 0x7F), (0, 0x20), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE80)]
RANGES += [(0x2000, 0x2070), (0x2070, 0x2C00), (0x3000, 0x3100), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xFE00, 0x10000)]
RANGES += [(0x10000, 0x10400), (0x1F000, 0x1FB00), (0xE0000, 0xE0200), (0, 0x110000)]
BITS = [
    "'s",
    "'LL",
    "<|endoftext|>",
    "<|endoftext",
    "|>",
    "  ",
    "\n\n",
    "\r\n",
    "\t",
    " \n ",
    "123",
    "0x",
    "é",
    "e\u0301",
]
BITS += ["\u200d", "\ufeff", "\u3000", "Ġ", "Ċ", "...", "——", "👩‍👧", "the ", " the", "ing", "ſ", "İ"]


def adversarial(rng: random.Random) -> str:
    """A text of a few runs: of one alphabet, of one character, of awkward pieces."""
    parts = []
    for _ in range(rng.randint(1, 6)):
        kind = rng.random()
        if kind < 0.4:
            low, high = rng.choice(RANGES)
            parts += [chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 12))]
        elif kind < 0.5:
            parts.append(chr(rng.randrange(0x20, 0x3000)) * rng.randint(1, 40))
        else:
            parts += rng.choices(BITS, k=rng.randint(1, 6))
    return "".join(parts).encode("utf-8", "ignore").decode()


def documents(found: Encoded) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(found.ids, np.cumsum(found.lengths)[:-1])]


def compare(tokenizer: str, count: int, seed: int) -> None:
    rng = random.Random(seed)
    fast, reference = loaded(tokenizer, "fastokens"), loaded(tokenizer, "hf")
    for _ in range(0, count, 1000):
        texts = [adversarial(rng) for _ in range(1000)]
        ours, theirs = documents(fast.encode(texts)), documents(reference.encode(texts))
        wrong = [text for text, a, b in zip(texts, ours, theirs, strict=True) if a != b]
        assert not wrong, f"{len(wrong)} of 1000 differ, e.g. {wrong[0]!r}"


@pytest.mark.parametrize("tokenizer", ["tok1k", "tok66k", "tok256", "tok1k_bos"])
def test_some_texts(tokenizer: str) -> None:
    compare(tokenizer, 2000, 1)


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["tok1k", "tok66k"])
def test_a_hundred_thousand_texts(tokenizer: str) -> None:
    compare(tokenizer, 100_000, 2)


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["tok1k", "tok66k"])
def test_every_character(tokenizer: str) -> None:
    fast, reference = loaded(tokenizer, "fastokens"), loaded(tokenizer, "hf")
    letters = [chr(i) for i in range(sys.maxunicode + 1) if not 0xD800 <= i < 0xE000]
    for low in range(0, len(letters), 20_000):
        texts = [f"a{c} {c}{c}1" for c in letters[low : low + 20_000]]
        ours, theirs = fast.encode(texts), reference.encode(texts)
        assert np.array_equal(ours.lengths, theirs.lengths) and np.array_equal(ours.ids, theirs.ids)


class Wrong:
    """An engine that is wrong on one text of the self-check."""

    def __init__(self, fail: bool = False) -> None:
        self.fail = fail

    def encode(self, texts: list[str], template: bool, ordinary: bool) -> Encoded:
        if self.fail:
            raise RuntimeError("no")
        found = loaded("tok1k", "hf")._engine.encode(texts, template, ordinary)
        return Encoded(np.where(np.arange(len(found.ids)) == 0, 7, found.ids).astype(np.uint32), found.lengths)

    def decode(self, ids: list[int], skip_special: bool) -> str:
        return ""


def test_the_self_check_notices() -> None:
    reference = loaded("tok1k", "hf")._engine
    assert differences(loaded("tok1k", "fastokens")._engine, reference) == []
    assert set(differences(Wrong(), reference)) == {TEXTS[0]}
    assert set(differences(Wrong(fail=True), reference)) == set(TEXTS)
