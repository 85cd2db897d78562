"""The compiled hashes, words and paragraphs beside their references."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.formats.bloom import BloomFilter
from feedmill.kernels.hashing import ahash, murmur
from feedmill.kernels.text import paragraphs, wordbreak
from helpers.durations import examples
from oracles import ahash as plain_ahash
from oracles import murmur as plain_murmur
from oracles import paragraphs as plain

KEYS = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=4), min_size=1, max_size=5)
TEXT = st.text(
    alphabet="ab1 .,:'\"_\n\r\té\u0301\u200d\u05d0\u05d1カタ😀❤👩🇩🇪\u3000\u00ad漢x9-\u2028\u0600", max_size=14
)


def _flat(keys):
    parts = [part for key in keys for part in key]
    ends = np.cumsum([len(part) for part in parts])
    counts = np.array([len(key) for key in keys])
    data = np.frombuffer(b"".join(parts) + bytes(8), np.uint8)
    return data, ends - [len(part) for part in parts], ends, np.cumsum(counts) - counts, counts


@settings(deadline=None)
@given(KEYS, st.sampled_from([1, 1000, 4096]), st.integers(0, 2**32))
def test_ahash(keys, words, seed):
    seeds = np.random.default_rng(seed).integers(0, 2**64, (3, 4), np.uint64)
    out, first = np.empty((len(keys), 3), np.uint64), np.empty(len(keys), np.uint64)
    compiled = BloomFilter(seeds, np.zeros(1, np.uint32)).keys
    ahash.positions(*_flat(keys), compiled, np.uint64(words), out, first)
    assert (out == plain_ahash.positions(keys, seeds, words)).all()
    assert first.tolist() == [plain_ahash.hash_key(key, seeds[0].tolist()) for key in keys]


@settings(deadline=None)
@given(KEYS)
def test_murmur(keys):
    out = np.empty((len(keys), 2), np.uint64)
    murmur.hash_keys(*_flat(keys), out)
    assert [tuple(row) for row in out.tolist()] == [plain_murmur.hash_key(key) for key in keys]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=40))
def test_first_seen(keys):
    array, table = np.array(keys, np.uint64).reshape(-1, 2), np.zeros((64, 2), np.uint64)
    found = np.empty(len(keys), np.bool_)
    murmur.first_seen(array, table, True, found)
    assert found.tolist() == plain_murmur.first_seen(keys)
    one = np.empty(1, np.bool_)
    for _ in range(2):  # what is not to go in does not
        murmur.first_seen(np.array([[9, 9]], np.uint64), table, False, one)
        assert not one.any()


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_partition(halves):
    keys = np.array([(half, i) for i, half in enumerate(halves)], np.uint64).reshape(-1, 2)
    starts, order = np.empty(4097, np.int64), np.empty(len(keys), np.uint32)
    murmur.partition(keys, 52, starts, order)
    wanted = np.argsort(keys[:, 0] >> np.uint64(52), kind="stable")
    assert (order == wanted).all() and starts[-1] == len(keys)


@settings(max_examples=examples(400), deadline=None)
@given(TEXT)
def test_words(text):
    index, pages = wordbreak.tables()
    data = np.frombuffer(text.encode() + bytes(8), np.uint8)
    size = len(data) - 8
    lows, highs = np.empty((2, size + 1), np.int64)
    count = wordbreak.words(data, 0, size, index, pages, lows, highs, 0)
    found = [data[a:b].tobytes().decode() for a, b in zip(lows[:count], highs[:count], strict=True)]
    assert found == plain.words(text)
    assert "".join(wordbreak.segments(text)) == text
    enough = wordbreak.count_words(data, np.array([0]), np.array([size]), index, pages, 2)
    assert enough[0] == (len(found) >= 2)


@settings(max_examples=examples(300), deadline=None)
@given(TEXT, st.sampled_from(["\n", "ab", "é"]), st.sampled_from([paragraphs.CHARACTERS, paragraphs.DOLMA]))
def test_pieces(text, separator, rule):
    data = np.frombuffer(text.encode() + bytes(8), np.uint8)
    size = len(data) - 8
    rows, starts, ends, lows, highs, lengths = np.empty((6, size + 2), np.int64)
    mark = np.frombuffer(separator.encode(), np.uint8)
    count = paragraphs.pieces(data, np.array([0, size]), mark, rule, rows, starts, ends, lows, highs, lengths)
    found = [(starts[i], ends[i], data[lows[i] : highs[i]].tobytes().decode()) for i in range(count)]
    wanted = plain.pieces(text, separator, rule)
    assert found == wanted
    assert lengths[:count].tolist() == [len(piece.text) for piece in wanted]
    if rule == paragraphs.CHARACTERS:
        assert "".join(text[start:end] for start, end, _ in found) == text


@settings(max_examples=examples(300), deadline=None)
@given(
    TEXT,
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from([paragraphs.CHARACTERS, paragraphs.DOLMA]),
    st.booleans(),
)
def test_ngrams(text, length, stride, rule, keep_short):
    data = np.frombuffer(text.encode() + bytes(8), np.uint8)
    size = len(data) - 8
    index, pages = wordbreak.tables()
    parts, keys = np.empty((2, size + 4), np.int64), np.empty((2, size + 4), np.int64)
    lows, highs, chosen = np.array([0]), np.array([size]), np.array([True])
    _, made, bounds = paragraphs.ngrams(
        data, lows, highs, chosen, length, stride, rule, keep_short, index, pages, parts, keys
    )
    found = [
        [data[parts[0, p] : parts[1, p]].tobytes().decode() for p in range(first, first + count)]
        for first, count in keys[:, :made].T.tolist()
    ]
    wanted = plain.windows(text, length, stride, rule)
    if len(wanted) < 2 and keep_short:
        assert found[bounds[0, 0] : bounds[1, 0]] == [[text]]
        assert found[:-1] == (wanted if rule == paragraphs.DOLMA else [])
    else:
        assert found == wanted and bounds.tolist() == [[0], [len(wanted)]]
