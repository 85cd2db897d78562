"""Words with their places, n-grams and words in order beside their references."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedmill.kernels.text import questions as kernels
from oracles import questions as plain

PIECES = st.sampled_from(
    ["word", "Wörd", "o\u0308", " ", "\n", ",", "<b>", "</b>", "<", ">", "&amp;", "&", "漢", "字", "ไทย", "Ｆ", "é",
     "-", "\u00ad", "<img src='a'>", "x<y", "&#39;", "&longreference;", "가", "𝐚", "1", "<" + "a" * 120 + ">"]
)  # fmt: skip


def words_of(text: str) -> tuple[list[int], list[tuple[int, int]]]:
    raw = np.frombuffer(text.encode() + bytes(8), np.uint8)
    hashes, places = np.empty(len(raw) + 1, np.uint64), np.empty((2, len(raw) + 1), np.int32)
    count = kernels.words(raw, 0, len(raw) - 8, *kernels.folded(), hashes, places[0], places[1], 0)
    return hashes[:count].tolist(), list(zip(places[0, :count].tolist(), places[1, :count].tolist(), strict=True))


@settings(deadline=None)
@example(["<", "<"]).via("bytes behind the end are not read")
@given(st.lists(PIECES, max_size=12))
def test_words(pieces):
    text = "".join(pieces)
    hashes, places = words_of(text)
    wanted = plain.words(text)
    ends = [len(text[:at].encode()) for at in range(len(text) + 1)]
    assert places == [(ends[begin], ends[end]) for _, begin, end in wanted]
    known = {}
    for value, (word, _, _) in zip(hashes, wanted, strict=True):
        assert known.setdefault(word, value) == value
    assert len(set(known.values())) == len(known)


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(["a", "b", "漢", "<i>", " "]), max_size=10), max_size=5), st.integers(1, 4))
def test_scan_finds_the_n_grams_that_are_set(texts, width):
    raws = ["".join(f"{part} " for part in text).encode() for text in texts]
    words = [words_of(raw.decode())[0] for raw in raws]
    grams = [[tuple(own[at : at + width]) for at in range(len(own) - width + 1)] for own in words]
    values = {}
    for own, of in zip(words, grams, strict=True):
        out = np.empty(len(own) + 1, np.uint64)
        count = kernels.grams(np.array(own, np.uint64), len(own), width, out)
        assert count == len(of)
        values |= dict(zip(of, out[:count].tolist(), strict=True))
    assert len(set(values.values())) == len(values)
    chosen = set(list(values)[::2])
    bits = np.zeros(kernels.room_for(len(chosen)), np.uint64)
    kernels.fill(bits, np.array([values[gram] for gram in chosen], np.uint64))
    offsets = np.cumsum([0, *map(len, raws)])
    data, room = np.frombuffer(b"".join(raws) + bytes(8), np.uint8), int(offsets[-1]) + 1
    hashes, places, found = np.empty(room, np.uint64), np.empty((4, room), np.int32), np.empty(room, np.uint64)
    counts = np.empty(len(raws) + 1, np.int64)
    count = kernels.scan(
        data, offsets, *kernels.folded(), width, bits, hashes, places[0], places[1], counts, places[2], places[3], found
    )
    got = set(zip(places[2, :count].tolist(), places[3, :count].tolist(), found[:count].tolist(), strict=True))
    every = {(n, at, values[gram]) for n, of in enumerate(grams) for at, gram in enumerate(of)}
    assert {one for one in every if one[2] in {values[gram] for gram in chosen}} <= got <= every
    assert np.diff(counts).tolist() == [len(own) for own in words]
    assert hashes[: counts[-1]].tolist() == [value for own in words for value in own]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_words_in_order(a, b):
    left, right = np.array(a, np.uint64), np.array(b, np.uint64)
    assert kernels.in_order(left, right, np.empty(len(b) + 1, np.int32)) == plain.in_order(a, b)


def test_texts_that_look_different_have_the_same_words():
    same = ["Café  RÉSUMÉ no. 5", "cafe\u0301, re\u0301sume\u0301 (no) 5", "ＣＡＦＥ <b>résumé</b>&nbsp;no&#32;5"]
    assert len({tuple(words_of(text)[0]) for text in same}) == 1
    assert words_of("a b")[0] != words_of("ab")[0]
