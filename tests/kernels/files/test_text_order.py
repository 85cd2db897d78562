"""Orders of texts and rows, beside Python's own sorting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.files.text_order import compare, sort_groups, sort_rows, sort_texts
from helpers.durations import examples

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
WORDS = st.one_of(st.text(LETTERS, max_size=40), st.text("ab", max_size=20), st.text("é/0", min_size=8, max_size=9))


def packed(words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    text = np.frombuffer(b"".join(word.encode() + b"\0" for word in words), np.uint8)
    return text, np.concatenate(([0], np.cumsum([len(word.encode()) + 1 for word in words]))).astype(np.int64)


def expected(words: list[str]) -> list[int]:
    return sorted(range(len(words)), key=lambda i: (words[i].encode(), i))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(WORDS, max_size=120))
def test_texts_are_sorted_as_python_sorts_their_bytes(words: list[str]) -> None:
    order, distinct = sort_texts(*packed(words))
    assert order.tolist() == expected(words)
    assert distinct == (len(set(words)) == len(words))


@pytest.mark.parametrize("prefix", ["", "train/images/shard-", "x" * 300])
@pytest.mark.parametrize("ascending", [True, False])
def test_many_texts(prefix: str, ascending: bool) -> None:
    words = [f"{prefix}{i:05d}" for i in range(20_000)]
    if not ascending:
        np.random.default_rng(0).shuffle(words)
    order, distinct = sort_texts(*packed(words))
    assert distinct
    assert order.tolist() == expected(words)


def test_one_repeated_text_among_many_is_seen() -> None:
    words = [f"{i * 7919 % 5003:x}-some-longer-name" for i in range(5000)]
    assert sort_texts(*packed(words))[1]
    words[4321] = words[17]
    order, distinct = sort_texts(*packed(words))
    assert not distinct
    assert order.tolist() == expected(words)


@given(st.text(LETTERS, max_size=12), st.text(LETTERS, max_size=12))
@settings(deadline=None)
def test_compare_has_the_sign_of_memcmp(a: str, b: str) -> None:
    text, starts = packed([a, b])
    found = compare(text, starts[0], starts[1])
    assert (found > 0) - (found < 0) == (a.encode() > b.encode()) - (a.encode() < b.encode())


SMALL = st.integers(-2, 2)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(SMALL, SMALL, st.text("ab.", max_size=3), SMALL, SMALL), max_size=200))
def test_rows_and_groups_are_sorted_as_python_sorts_tuples(rows: list[tuple[int, int, str, int, int]]) -> None:
    ints = np.array([[row[k] for row in rows] for k in (0, 1, 3, 4)], np.int64)
    text, starts = packed([row[2] for row in rows])
    by_group = sort_rows(ints[:3])
    assert by_group.tolist() == sorted(range(len(rows)), key=lambda i: (*rows[i][:2], rows[i][3], i))
    found = sort_groups(ints[:2], ints[2:], text, starts, by_group)
    assert found.tolist() == sorted(range(len(rows)), key=lambda i: (*rows[i], i))


def test_one_group_of_many_rows() -> None:
    rng = np.random.default_rng(1)
    words = [f"part-{n}" for n in rng.integers(0, 3000, 30_000)]
    ints = np.zeros((2, len(words)), np.int64)
    text, starts = packed(words)
    found = sort_groups(ints, ints, text, starts, np.arange(len(words)))
    assert found.tolist() == expected(words)
