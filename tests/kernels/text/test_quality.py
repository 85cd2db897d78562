"""C4's and Gopher's kernels against their plain forms."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings

from feedmill.curation.documents import Batch, Row
from feedmill.curation.taggers.c4 import _automaton, _flags, naughty_words
from feedmill.kernels.text import c4, characters, gopher
from feedmill.kernels.text.lengths import encode
from helpers.awkward_texts import BATCHES
from helpers.durations import examples
from oracles import gopher as plain_gopher
from oracles.texts import c4_lines

TABLE = characters.table()


def batch(texts: list[str], exact: bool = False) -> Batch:
    return Batch([Row(str(k), text) for k, text in enumerate(texts)], exact)


@settings(deadline=None)
@given(BATCHES)
def test_flags_of_c4(texts: list[str]) -> None:
    found = _flags(batch(texts)) & ~np.uint8(c4.DOTTED)
    assert found.tolist() == [c4.flags_of_lowered(text.lower(), *naughty_words()) for text in texts]


@pytest.mark.parametrize("change", [str, str.upper, str.title])
def test_every_word_and_phrase_of_the_list_is_found_where_it_counts(change: object) -> None:
    words, phrases = naughty_words()
    texts = [change(text) for text in (*words, *phrases)]  # type: ignore[operator]
    assert all(_flags(batch(texts)) & c4.NAUGHTY)
    inside = [f"x{text}x" for text in texts]
    assert (_flags(batch(inside)) & c4.NAUGHTY).tolist() == [
        c4.flags_of_lowered(text.lower(), words, phrases) & c4.NAUGHTY for text in inside
    ]


def test_capitals_of_all_scripts_become_the_letters_of_the_list() -> None:
    everything = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    symbols, rare, rare_symbols, *_ = _automaton()
    column = {chr(code): symbols[code] for code in range(128)} | {
        chr(code): symbol for code, symbol in zip(rare.tolist(), rare_symbols.tolist(), strict=True)
    }
    for c in everything:
        if len(c.lower()) == 1:
            assert column.get(c, 0) == column.get(c.lower(), 0), hex(ord(c))
        else:
            assert c == "İ"


@settings(deadline=None)
@given(BATCHES)
def test_lines_of_c4(texts: list[str]) -> None:
    codes, offsets = encode(texts)
    found = c4.lines(codes, offsets, TABLE)
    wanted = [(k, *line) for k, text in enumerate(texts) for line in c4_lines(text)]
    assert [tuple(column) for column in found.T.tolist()] == wanted


@settings(max_examples=examples(300), deadline=None)
@given(BATCHES)
def test_signals_of_gopher(texts: list[str]) -> None:
    documents = batch(texts)
    inside = np.array([sum(map(len, text.split())) for text in texts])
    for joined in (False, True):
        by_line = gopher.line_signals(documents.codes, documents.offsets, inside, joined)
        for text, row in zip(texts, np.concatenate([documents.gopher, by_line], axis=1).tolist(), strict=True):
            found = {name: value for name, value in zip(gopher.SIGNALS, row, strict=True) if not math.isnan(value)}
            assert found == plain_gopher.signals(text, joined)


def test_signals_of_long_words_and_many_repeats() -> None:
    texts = [
        " ".join(["a" * 100, "b" * 80, "c" * 70]),
        "one two three four five six seven eight nine ten " * 50,
        "w " * 99,
    ]
    for text, row in zip(texts, batch(texts).gopher.tolist(), strict=True):
        wanted = plain_gopher.signals(text, False)
        assert row[:15] == pytest.approx([wanted.get(name, math.nan) for name in gopher.SIGNALS[:15]], nan_ok=True)
