"""Places of anchors and hashes of windows, beside all windows of a text."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.hashing import windows
from helpers.durations import examples
from oracles import substrings as plain

TEXTS = st.lists(st.text("abé漢😀\n", max_size=60), min_size=1, max_size=4)
LENGTHS = st.sampled_from([1, 2, 3, 4, 5, 8, 13, 50])


def joined(texts):
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded) + bytes(8), np.uint8), np.cumsum([0, *map(len, encoded)]), encoded


@settings(max_examples=examples(200), deadline=None)
@given(TEXTS, LENGTHS)
def test_every_window_is_in_one_place_and_equal_windows_have_equal_anchors(texts, length):
    data, offsets, encoded = joined(texts)
    places, hashes = windows.find_anchors(data, offsets, length)
    anchors, spans, seen = {}, {}, [[] for _ in texts]
    for (text, start, end), (anchor, *span) in zip(places.T.tolist(), hashes.tolist(), strict=True):
        assert spans.setdefault(encoded[text][start:end], span) == span
        for at in range(start, end - length + 1):
            seen[text].append(at)
            assert anchors.setdefault(encoded[text][at : at + length], anchor) == anchor
    assert seen == [list(range(len(text) - length + 1)) for text in encoded]
    assert len({tuple(span) for span in spans.values()}) == len(spans)


@settings(max_examples=examples(200), deadline=None)
@given(TEXTS, LENGTHS, st.integers(0, 1000))
def test_hashes_and_characters_of_windows(texts, length, seed):
    data, offsets, encoded = joined(texts)
    places, _ = windows.find_anchors(data, offsets, length)
    emitted = np.random.default_rng(seed).random(places.shape[1]) < 0.6
    characters, hashes, marks = windows.hash_windows(data, offsets, places, emitted, length)
    begins = [[byte & 0xC0 != 0x80 for byte in text] + [True] for text in encoded]
    known, window = {}, 0
    for (text, start, end), chosen, counts in zip(places.T.tolist(), emitted, characters.tolist(), strict=True):
        own = begins[text]
        assert counts == [sum(own[:start]), sum(own[: start + length]), sum(own[:end]) - (not own[end])]
        for at in range(start, end - length + 1) if chosen else ():
            found = hashes[window].tolist()
            assert known.setdefault(encoded[text][at : at + length], found) == found
            assert marks[window] == own[at] * windows.BEGINS + own[at + length] * windows.ENDS
            window += 1
    assert window == len(hashes) and len({tuple(one) for one in known.values()}) == len(known)


def test_all_windows_of_the_oracle_are_hashed():
    data, offsets, encoded = joined(["abcabcabc" * 9])
    places, _ = windows.find_anchors(data, offsets, 6)
    _, hashes, _ = windows.hash_windows(data, offsets, places, np.ones(places.shape[1], np.bool_), 6)
    assert len(np.unique(hashes, axis=0)) == len(set(plain.windows(encoded[0], 6))) == 3
