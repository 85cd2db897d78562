"""The kernels over characters against their plain forms."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from feedmill.kernels.text import characters, lengths, wordbreak
from feedmill.kernels.text.hints import ADDRESS, EMAIL, PHONE, hints
from feedmill.kernels.text.lengths import encode
from feedmill.kernels.text.repetitions import repetitions
from helpers.awkward_texts import BATCHES
from oracles import texts as plain
from oracles.spans import fragment

TABLE = characters.table()


def test_the_table_of_characters_says_what_python_and_regex_say() -> None:
    import regex

    some = [chr(code) for code in (*range(0x3000), *range(0xA000, 0xD800), *range(0xF900, 0x11000), 0x1D7CE, 0x2F800)]
    for bit, test in (
        (characters.SPACE, str.isspace),
        (characters.ALPHA, str.isalpha),
        (characters.DIGIT, str.isdecimal),
        (characters.ALNUM, str.isalnum),
        (characters.WORD, regex.compile(r"\w").fullmatch),
        (characters.BLANK, regex.compile(r"\s").fullmatch),
    ):
        assert [bool(TABLE[ord(c)] & bit) for c in some] == [bool(test(c)) for c in some]


def test_planes_without_characters_are_left_out_of_the_table_rightly() -> None:
    import regex

    others = np.array([*range(0x40000, 0xE0000, 97), *range(0xE1000, 0x110000, 89)], np.uint32)
    assert not characters._bits(others.astype("<u4"), regex).any()


@settings(deadline=None)
@given(BATCHES)
def test_paragraphs(texts: list[str]) -> None:
    codes, offsets = encode(texts)
    found = lengths.paragraphs(codes, offsets, TABLE)
    wanted = [
        (k, low + offsets[k], high + offsets[k], blank)
        for k, text in enumerate(texts)
        for low, high, blank in plain.paragraphs(text)
    ]
    assert [tuple(column) for column in found.T.tolist()] == wanted


@settings(deadline=None)
@given(BATCHES)
def test_words(texts: list[str]) -> None:
    codes, offsets = encode(texts)
    places, first = lengths.words(codes, offsets, TABLE)
    for k, text in enumerate(texts):
        part = places[:, first[k] : first[k + 1]] - offsets[k]
        assert [text[low:high] for low, high in part.T.tolist()] == text.split()
        assert [tuple(place) for place in part.T.tolist()] == plain.words(text)


@settings(deadline=None)
@given(BATCHES)
def test_counts_and_lengths(texts: list[str]) -> None:
    codes, offsets = encode(texts)
    pieces = lengths.count_pieces(codes, offsets[:-1], offsets[1:], TABLE)
    assert pieces.tolist() == [plain.count_pieces(text) for text in texts]
    assert lengths.stripped_lengths(codes, offsets, TABLE).tolist() == [len(text.strip()) for text in texts]
    sizes = lengths.byte_lengths(codes, offsets).tolist()
    assert sizes == [len(text.encode()) for text in texts]


@settings(deadline=None)
@given(BATCHES)
def test_segments(texts: list[str]) -> None:
    encoded = [text.encode() for text in texts]
    bounds = np.cumsum([0, *map(len, encoded)])
    data = np.frombuffer(b"".join(encoded), np.uint8)
    found = wordbreak.count_segments(data, bounds[:-1], bounds[1:], *wordbreak.tables())
    pieces = [wordbreak.segments(text) for text in texts]
    assert found[0].tolist() == [sum(bool(piece.strip()) for piece in each) for each in pieces]
    assert found[1].tolist() == [len(each) for each in pieces]


@settings(deadline=None)
@given(BATCHES)
def test_hints(texts: list[str]) -> None:
    codes, offsets = encode(texts)
    assert hints(codes, offsets[:-1], offsets[1:], TABLE).tolist() == [plain.hints(text) for text in texts]


@settings(deadline=None)
@given(BATCHES)
def test_hints_let_nothing_pass_that_the_patterns_find(texts: list[str]) -> None:
    from feedmill.curation.taggers.pii import _ADDRESS, _PHONE, emails

    for text in texts:
        has = plain.hints(text)
        found = ((EMAIL, any(emails(text))), (PHONE, _PHONE.search(text)), (ADDRESS, _ADDRESS.search(text)))
        assert all(has & bit for bit, there in found if there)


@settings(deadline=None)
@given(BATCHES)
def test_repetitions(texts: list[str]) -> None:
    codes, offsets = encode(texts)
    found = repetitions(codes, offsets[:-1], offsets[1:], TABLE)
    for k, text in enumerate(texts):
        mine = found[1:, found[0] == k]
        columns = zip((mine[0] - offsets[k]).tolist(), (mine[1] - offsets[k]).tolist(), mine[2].tolist(), strict=True)
        assert list(columns) == plain.repetitions(text), ascii(text)


def test_repetitions_of_long_units_and_of_white_space() -> None:
    unit = "All work and no play. "
    texts = [unit * 9, f"x{unit * 3}", " \t" * 9, "\t \t\t \t \t", "ab" * 7 + "\n" + "ab" * 7, "-" * 5000, "ab " * 3000]
    codes, offsets = encode(texts)
    found = repetitions(codes, offsets[:-1], offsets[1:], TABLE)
    for k, text in enumerate(texts[:5]):
        mine = found[1:, found[0] == k] - np.array([[offsets[k]], [offsets[k]], [0]])
        assert [tuple(column) for column in mine.T.tolist()] == plain.repetitions(text)
    assert [(found[2, i] - found[1, i], found[3, i]) for i in np.flatnonzero(found[0] >= 5)] == [(5000, 1), (8999, 2)]


@settings(deadline=None)
@given(BATCHES)
def test_spans_are_written_as_msgspec_writes_them(texts: list[str]) -> None:
    scores = [0.0, 1.0, -2.0, 0.123456, 1e300, -0.0, 12345678.5]
    spans = [
        [(i % 2, i, i + len(text), scores[(i + len(text)) % len(scores)]) for i in range(len(text) % 7)]
        for text in texts
    ]
    from feedmill.curation.spans import Spans

    found = Spans.of_lists(("a", "b"), spans).fragments(len(texts), "x", "")
    for piece, each in zip(found, spans, strict=True):
        columns = [list(column) for column in zip(*each, strict=True)] or [[], [], [], []]
        assert piece == fragment(["x__a", "x__b"], *columns)  # type: ignore[arg-type]
