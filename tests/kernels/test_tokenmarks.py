"""Marks of tokens, against characters counted one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedmill.kernels.tokenmarks import token_marks

PARTS = [b"ab", "é".encode(), "🙂".encode()[:3], "🙂b".encode()[3:], b"abababab", b"bababababa", "é🙂é🙂éa".encode()]
VOCABULARY = [bytes([byte]) for byte in range(256)] + PARTS
STARTS = np.append(0, np.cumsum([len(token) for token in VOCABULARY]))
SPELLED = np.frombuffer(b"".join(VOCABULARY), np.uint8), STARTS
WORDS = st.lists(st.sampled_from(["a", "b", "é", "🙂", "ab" * 6, "é🙂é🙂éa"]), max_size=6).map("".join)
TEXTS = st.lists(st.tuples(WORDS, st.randoms(use_true_random=False), st.booleans()), max_size=6)


@given(TEXTS)
def test_as_one_character_at_a_time(drawn: list[tuple[str, object, bool]]) -> None:
    """Tokens that are whole characters, several, or parts; and tokens that are not the text."""
    texts, ids, lengths, spans, wanted, unknown = [], [], [], [], [], []
    for text, random, every in drawn:
        raw, own, at = text.encode(), [], 0
        while at < len(raw):
            fits = [n for n, token in enumerate(VOCABULARY) if raw.startswith(token, at)]
            own.append(random.choice(fits))  # type: ignore[attr-defined]
            at += len(VOCABULARY[own[-1]])
        wrong = random.random() < 0.2  # type: ignore[attr-defined]
        if wrong:
            own = [*own, 0] if random.random() < 0.5 else [*own[:-1], 1]  # type: ignore[attr-defined]
        cuts = sorted(random.choices(range(len(text) + 1), k=4))  # type: ignore[attr-defined]
        ranges = None if every else [(cuts[0], cuts[1]), (cuts[2], cuts[3])]
        of = [n for n, character in enumerate(text) for _ in character.encode()]
        at, marks = 0, []
        for token in own:
            mine = of[at : at + len(VOCABULARY[token])]
            marks.append(every or any(b <= one < e for one in mine for b, e in ranges or ()))
            at += len(VOCABULARY[token])
        texts.append(text)
        ids += own
        lengths.append(len(own))
        spans.append(ranges)
        wanted.append(marks)
        unknown.append(wrong)
    found, other = token_marks(texts, np.array(ids, np.uint32), np.array(lengths, np.int64), spans, SPELLED)
    assert other.tolist() == unknown
    ends = np.cumsum([0, *lengths])
    for number, marks in enumerate(wanted):
        if not unknown[number]:
            assert found[ends[number] : ends[number + 1]].tolist() == marks
