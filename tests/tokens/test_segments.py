from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.tokens.encode import joined, paragraphs
from feedmill.tokens.template import adds_space

TEXTS = st.lists(st.text(st.sampled_from("ab \n")), max_size=6)


@given(TEXTS, st.booleans())
def test_paragraphs_are_the_text(texts: list[str], prefix: bool) -> None:
    pieces, counts = paragraphs(texts, prefix)
    begin = 0
    for text, count in zip(texts, counts.tolist(), strict=True):
        own = pieces[begin : begin + count]
        assert "".join([*own[:1], *(piece[prefix:] for piece in own[1:])]) == text
        assert all("\n" not in piece[prefix:].lstrip("\n") for piece in own[1:])
        begin += count


@given(TEXTS, st.booleans())
def test_joined_is_a_loop_over_paragraphs(texts: list[str], prefix: bool) -> None:
    pieces, counts = paragraphs(texts, prefix)
    encoded = [[ord(c) for c in piece] for piece in pieces]
    want, at = [], 0
    for count in counts.tolist():
        own = encoded[at : at + count]
        want.append([i for number, ids in enumerate(own) for i in (ids[1:] if prefix and number else ids)])
        at += count
    flat = np.array([i for ids in encoded for i in ids], np.uint32)
    ids, lengths = joined(flat, np.array([len(e) for e in encoded], np.int64), counts, prefix)
    assert ids.tolist() == [i for one in want for i in one]
    assert lengths.tolist() == [len(one) for one in want]


BYTES = {"type": "ByteLevel", "add_prefix_space": True}


@pytest.mark.parametrize(
    ("document", "adds"),
    [
        ({}, False),
        ({"pre_tokenizer": BYTES}, True),
        ({"pre_tokenizer": {**BYTES, "add_prefix_space": False}}, False),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, BYTES]}}, True),
        ({"pre_tokenizer": {"type": "Metaspace", "add_prefix_space": True}}, False),
        ({"normalizer": {"type": "Prepend", "prepend": "_"}}, True),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}, False),
    ],
)
def test_adds_space(document: dict[str, Any], adds: bool, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert adds_space(tmp_path / "tokenizer.json") is adds
