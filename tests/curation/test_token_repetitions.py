"""Repetitions of tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.curation.taggers.token_repetitions import find_periods
from helpers.document_datasets import attributes

V1, PARAGRAPHS, V2 = "tokenizer_repetitions_v1", "paragraph_tokenizer_repetitions_v1", "tokenizer_repetitions_v2r2"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {c: k for k, c in enumerate([*pre_tokenizers.ByteLevel.alphabet(), "Ġa"])}
    made = Tokenizer(models.BPE(vocabulary, [("Ġ", "a")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@given(st.lists(st.integers(0, 2), max_size=60))
def test_periods_are_the_longest_runs_that_repeat(ids: list[int]) -> None:
    wanted = []
    for unit in range(1, min(13, len(ids) // 3) + 1):
        low = unit
        while low < len(ids):
            high = low
            while high < len(ids) and ids[high] == ids[high - unit]:
                high += 1
            if high - low >= 2 * unit:
                wanted.append((low - unit, high, (high - low) // unit + 1))
            low = high + 1
    assert [one[:3] for one in find_periods(np.array(ids, np.int64))] == wanted


def test_spans_are_characters_of_the_text(path: Path) -> None:
    text = "é xyxyxy! ab"
    found = attributes([text, "none", ""], f"{V1}={path}")
    assert found[0][f"{V1}__repetition"] == [[2, 8, 3.0]]
    assert found[0][f"{V1}__doc_frac_repetition"] == [[0, 12, 0.5]]
    assert found[1] == {f"{V1}__doc_{name}_repetition": [[0, 4, 0.0]] for name in ("max_score", "max_length", "frac")}
    assert found[2][f"{V1}__doc_frac_repetition"] == [[0, 0, 0.0]]


def test_spans_begin_within_their_paragraphs(path: Path) -> None:
    text = "a a a a\nno\na a a a"
    for exact, first, second in ((False, 0, 11), (True, -1, 10)):
        found = attributes([text], f"{PARAGRAPHS}={path}", exact=exact)[0][f"{PARAGRAPHS}__repetition"]
        assert [span[:2] for span in found] == [[first, 7], [second, 18]]


def test_windows_and_what_lies_within(path: Path) -> None:
    text = "b" * 150_000
    found = attributes([text, "none"], f"{V2}={path}")
    assert [span[:2] for span in found[0][f"{V2}__repetition"]] == [[0, 100_000], [100_000, 150_000]]
    assert found[1] == {}
