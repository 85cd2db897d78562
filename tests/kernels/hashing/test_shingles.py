"""Words, shingles and their signatures beside their references."""

import unicodedata
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.hashing import shingles
from helpers.durations import examples
from oracles import shingles as plain

TEXT = st.text(alphabet="abAB é́ÉİßΣ\u00ad\u200d,.-'\n\t\x00 \u3000漢字カタาไ😀🇩1Ⅷǅ\U0001e900", max_size=30)
TABLES = [shingles.characters(*rules) for rules in product((True, False), repeat=3)]


def sketch(texts, width, table, bands, rows):
    offsets = np.cumsum([0, *(len(text.encode()) for text in texts)])
    data = np.frombuffer("".join(texts).encode() + bytes(8), np.uint8)
    n = len(texts)
    keys, digests = np.empty((bands, n), np.uint64), np.empty(n, np.uint64)
    ends, lengths = np.empty((2, n), np.int64)
    sets = np.empty(len(data), np.uint64)
    functions = shingles.permutations(bands * rows)
    shingles.sketch(data, offsets, width, *table, *functions, keys, sets, ends, digests, lengths)
    return keys, np.split(sets[: ends[-1]], ends[:-1]), digests, lengths


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=5), st.integers(1, 6), st.sampled_from(TABLES))
def test_sketches(texts, width, table):
    keys, sets, digests, lengths = sketch(texts, width, table, 3, 2)
    for i, text in enumerate(texts):
        wanted = plain.shingles(text, width, table)
        assert sets[i].tolist() == wanted
        assert keys[:, i].tolist() == plain.band_keys(wanted, 3, 2)
        assert digests[i] == plain.digest(wanted)
        assert lengths[i] == len(text)


@given(TEXT, st.integers(1, 4))
def test_shingles_are_runs_of_words(text, width):
    table = shingles.characters()
    words = plain.words(text, table)
    runs = [tuple(words[i : i + width]) for i in range(max(1, len(words) - width + 1))] if words else []
    assert len(plain.shingles(text, width, table)) == len(set(runs))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \t!?—…", []),
        ("One, two;three", ["one", "two", "three"]),
        ("ÄRGER Straße", ["ärger", "straße"]),
        ("so\u00adft \ufeffzero\u200dwidth", ["soft", "zerowidth"]),
        ("漢字とかな", ["漢", "字", "と", "か", "な"]),
        ("ab漢cd", ["ab", "漢", "cd"]),
        ("3.14 x_y", ["3", "14", "x", "y"]),
        ("हिन्दी", ["हिन्दी"]),
    ],
)
def test_words(text, words):
    assert plain.words(text, shingles.characters()) == words


def test_words_as_they_are():
    table = shingles.characters(lower=False, punctuation=False)
    assert plain.words("Don't stop,  NOW", table) == ["Don't", "stop,", "NOW"]


@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="another version of the database")
def test_the_table_is_that_of_unicode():
    table = shingles.characters()
    for code in range(0x110000):
        kind, to = plain.of(table, code)
        character, category = chr(code), unicodedata.category(chr(code))
        if category[0] in "PSZ" or category in ("Cc", "Cs"):
            assert kind == shingles.SEPARATOR
        elif category == "Cf" or 0xFE00 <= code <= 0xFE0F:
            assert kind == shingles.IGNORED
        else:
            assert kind in (shingles.LETTER, shingles.WORD)
            assert chr(to) == (character.lower() if len(character.lower()) == 1 else "i")


def test_splitmix_is_the_published_one():
    assert shingles.splitmix(3, 1234567) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_agreement_of_signatures_is_jaccard():
    """With one row, the share of bands in which two sets agree is their similarity, within the noise of sampling."""
    rng = np.random.default_rng(3)
    for similarity in (0.3, 0.6, 0.8, 0.9):
        errors = []
        for _ in range(15):
            size = 300
            shared = round(2 * size * similarity / (1 + similarity))
            values = rng.integers(1, 2**64 - 1, 2 * size - shared, np.uint64).tolist()
            one, other = values[:size], values[size - shared :]
            a, b = (np.array(plain.band_keys(v, 256, 1)) for v in (one, other))
            errors.append(float(np.mean(a == b)) - plain.jaccard(one, other))
        spread = (similarity * (1 - similarity) / 256) ** 0.5
        assert abs(np.mean(errors)) < 4 * spread / 15**0.5
        assert 0.6 * spread < np.std(errors) < 1.5 * spread
