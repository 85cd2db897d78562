"""Candidates, similar pairs and components beside their references."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.hashing import near_pairs
from oracles import near_pairs as plain

DOCUMENT = st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 5), st.integers(0, 3), st.integers(0, 3))


def both(rows, bands):
    keys = np.array([row[0] for row in rows], np.uint64)
    new, digests = np.array([row[1] for row in rows]), np.array([row[2] for row in rows], np.uint64)
    columns = np.array([[row[3 + band] for row in rows] for band in range(bands)], np.uint64).reshape(bands, len(rows))
    pairs, left_out = near_pairs.candidates(keys, new, digests, columns)
    wanted = plain.candidates(keys.tolist(), new.tolist(), digests.tolist(), columns.tolist())
    return ([tuple(pair) for pair in pairs.tolist()], left_out), wanted


@settings(deadline=None)
@given(st.lists(DOCUMENT, min_size=1, max_size=30), st.integers(0, 2))
def test_candidates(rows, bands):
    compiled, wanted = both(sorted(rows, key=lambda row: row[0]), bands)
    assert compiled == wanted


def test_candidates_of_a_large_bucket(monkeypatch):
    rows = [(7, True, number, number % 3) for number in range(700)]
    compiled, wanted = both(rows, 1)
    assert compiled == wanted
    assert compiled[1] == sum(number - 256 for number in range(257, 700))


def test_documents_that_are_equal_take_no_room():
    rows = [(7, True, 1)] * 5000 + [(7, True, 2)]
    compiled, _ = both(rows, 0)
    assert compiled == ([(0, number) for number in range(1, 5001)], 0)


@pytest.mark.parametrize("size", [0, 1, 100, 10**5, 10**7, 10**9])
def test_a_bucket_gives_some_millions_of_pairs(size):
    assert plain.reach(size) == near_pairs.reach(size)
    assert size * 2 * near_pairs.reach(size) <= max(2 * near_pairs.PAIRS, size * 2 * near_pairs.LEAST)


@settings(deadline=None)
@given(
    st.lists(st.sets(st.integers(1, 2**64 - 1) | st.integers(1, 12), min_size=1, max_size=20), min_size=2, max_size=8),
    st.sampled_from([0.1, 0.5, 2 / 3, 0.8, 1.0]),
    st.randoms(),
)
def test_similar(sets, threshold, random):
    pairs = [(i, j) for j in range(len(sets)) for i in range(j)]
    lists = [random.sample(sorted(one), len(one)) for one in sets]
    sizes = np.array([len(one) for one in lists])
    flat = np.array([value for one in lists for value in one], np.uint64)
    array = np.array(pairs)
    arguments = (flat, np.cumsum(sizes) - sizes, sizes, array, array, threshold, np.arange(len(sets)))
    kept = near_pairs.similar(*arguments)
    assert [tuple(pair) for pair in kept.tolist()] == plain.similar(lists, pairs, threshold)


@settings(deadline=None)
@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_components(case):
    count, pairs = case
    found = near_pairs.components(count, np.array(pairs, np.int64).reshape(-1, 2)).tolist()
    assert found == plain.components(count, pairs)
    assert all(found[i] == found[j] for i, j in pairs)
    assert all(found[i] <= i and found[found[i]] == found[i] for i in range(count))


SETS = st.lists(st.sets(st.integers(1, 12), min_size=1, max_size=9), min_size=2, max_size=8)


@settings(deadline=None)
@given(SETS, st.sampled_from([0.1, 0.5, 2 / 3, 1.0]), st.randoms())
def test_covering_and_overlaps(sets, threshold, random):
    pairs = [(i, j) for j in range(len(sets)) for i in range(j)]
    lists = [random.sample(sorted(one), len(one)) for one in sets]
    sizes = np.array([len(one) for one in lists])
    flat, array = np.array([value for one in lists for value in one], np.uint64), np.array(pairs)
    place = (flat, np.cumsum(sizes) - sizes, sizes, array)
    before = [random.randrange(2) for _ in sets]
    covered, kept, table = np.array(before, np.uint8), np.zeros(len(pairs), np.int64), near_pairs.room(sizes)
    count = near_pairs.covering(*place, array, threshold, covered, np.empty(table, np.uint64), kept)
    assert kept[:count].tolist() == plain.covering(lists, pairs, threshold, before)
    assert covered.tolist() == before
    shared = np.zeros(len(pairs), np.int64)
    near_pairs.overlaps(*place, np.empty(table, np.uint64), shared)
    assert shared.tolist() == [len(set(lists[i]) & set(lists[j])) for i, j in pairs]
    assert table >= 2 * sizes.max() and table & (table - 1) == 0


@settings(deadline=None)
@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 8), st.data())
def test_settle(first, before, count, data):
    low = first + before
    later = st.integers(low, low + count - 1)
    pair = later.flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1) if n else st.just(n)))
    pairs = sorted({one for one in data.draw(st.lists(pair, max_size=20)) if one[0] != one[1]})
    copies = {
        one[0] for one in pairs if one[1] >= first and data.draw(st.booleans())
    }  # these have one pair, and are in no other
    equal = {n: next(earlier for later, earlier in pairs if later == n and earlier >= first) for n in copies}
    pairs = [one for one in pairs if not copies & set(one)]
    pairs = sorted([*pairs, *((n, ~of) for n, of in equal.items() if of not in copies)])
    kept = [data.draw(st.integers(0, 1)) for _ in range(before)] + [1] * count
    array, covers = np.array(kept, np.uint8), np.empty(count, np.int64)
    near_pairs.settle(np.array(pairs, np.int64).reshape(-1, 2), first, low, array, covers)
    assert covers.tolist() == plain.settle(pairs, first, low, kept, count)
    assert array.tolist() == kept
