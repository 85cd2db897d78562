"""Texts that are hard on code that walks over characters: for properties of kernels and taggers."""

from __future__ import annotations

from hypothesis import strategies as st

PIECES = (
    *(
        "a",
        "b",
        "the",
        "be ",
        "Word",
        "x1",
        "9",
        "123",
        "0.0",
        "é",
        "İ",
        "K",
        "ß",
        "ﬁ",
        "中",
        "ア",
        "א",
        "ע",
        "🖕",
        "😀",
    ),
    *(" ", "  ", "\t", "\n", "\n\n", "\r\n", "\x0b", "\x1c", "\x85", "\xa0", "\u2028", "\u3000", "\u200b", "\ufeff"),
    *("ע", ".", "!", "?", '"', "'", "…", "#", "*", "-", "{", "}", "(", ")", ",", ";", ":", "@", "_", "//", "/*"),
    *("\u0301", "\u200d", "\ufe0f", "\U0001f1e9", "\U0001f1ea", "\U0001f3fb", "\u06dd", "\x00", "\x7f", "\U0010ffff"),
    *("javascript", "JavaScript", "lorem ipsum", "Lorem Ipsum", "a@b.org ", "(555) 123-4567", "10.0.0.1", "isbn "),
)

TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    st.lists(st.sampled_from("ab \n"), max_size=40).map("".join),
    st.text(max_size=30),
)
BATCHES = st.lists(TEXTS, min_size=1, max_size=5)
