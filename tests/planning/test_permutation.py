"""The keyed permutation: a bijection for every size, its inverse, and no visible preference for small ones."""

from collections import Counter
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.planning.permutation import branch, derive, permute, unpermute
from helpers.durations import examples

KEYS = st.integers(0, 2**64 - 1)


def excess(counts: np.ndarray) -> float:
    """Chi-square against a uniform distribution, in standard deviations above what chance gives."""
    expected = counts.sum() / len(counts)
    free = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - free) / np.sqrt(2 * free))


def orders(n: int, count: int) -> np.ndarray:
    """Permutations under `count` successive epoch keys, int64[count, n]."""
    keys = branch(derive(1, "test"), np.arange(count))
    return permute(np.tile(np.arange(n), count), n, np.repeat(keys, n)).reshape(count, n)


@given(st.integers(0, 5000), KEYS)
@settings(max_examples=examples(60), deadline=None)
def test_it_is_a_bijection_with_an_inverse(n: int, key: int) -> None:
    images = permute(np.arange(n), n, key)
    assert np.array_equal(np.sort(images), np.arange(n))
    assert np.array_equal(unpermute(images, n, key), np.arange(n))


@pytest.mark.parametrize("n", range(2, 65))
def test_it_is_a_bijection_for_every_small_size(n: int) -> None:
    assert np.array_equal(np.sort(orders(n, 40), axis=1), np.tile(np.arange(n), (40, 1)))


@given(st.integers(10**6, 2**63), KEYS, st.integers(0, 2**32))
@settings(max_examples=examples(40), deadline=None)
def test_the_inverse_holds_for_huge_ranges(n: int, key: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, n, 500, dtype=np.uint64).view(np.int64)
    values[:2] = [0, n - 1]
    images = permute(values, n, key)
    assert images.min() >= 0 and int(images.max()) < n
    assert len(np.unique(images)) == len(np.unique(values))
    assert np.array_equal(unpermute(images, n, key), values)


@given(st.integers(1, 2**63), KEYS, st.integers(0, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_few_values_go_where_they_go_among_many(n: int, key: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.integers(0, 2**63, 30, dtype=np.uint64) % np.uint64(n)).view(np.int64)
    keys = rng.integers(0, 2**64, 30, dtype=np.uint64)
    for walk in (permute, unpermute):
        for some in (key, keys):
            parts = [
                walk(values[i : i + 3], n, some if isinstance(some, int) else some[i : i + 3]) for i in range(0, 30, 3)
            ]
            assert np.array_equal(np.concatenate(parts), walk(values, n, some))


@given(st.integers(1, 10**7), st.integers(0, 2**32))
@settings(max_examples=examples(30), deadline=None)
def test_a_key_per_element_is_the_same_as_one_key(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, keys = rng.integers(0, n, 200), rng.integers(0, 2**64, 4, dtype=np.uint64)
    which = rng.integers(0, 4, 200)
    mixed = permute(values, n, keys[which])
    for i, key in enumerate(keys):
        assert np.array_equal(mixed[which == i], permute(values[which == i], n, int(key)))
    assert np.array_equal(unpermute(mixed, n, keys[which]), values)


@given(st.integers(0, 2**32))
@settings(max_examples=examples(30), deadline=None)
def test_a_size_per_element_is_the_same_as_one_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    roots = rng.integers(1, 3 * 10**9, 4)
    sizes = [1, 2, 1023, 1024, 2**63 - 1, *(roots**2).tolist(), *(roots**2 + 1).tolist(), *rng.integers(1, 5000, 4)]
    which = rng.integers(0, len(sizes), 300)
    each = np.array(sizes, np.int64)[which]
    values = rng.integers(0, 2**63, 300) % each
    keys = rng.integers(0, 2**64, 300, dtype=np.uint64)
    for key in (seed, keys):
        images = permute(values, each, key)
        for i, size in enumerate(sizes):
            some = key if isinstance(key, int) else key[which == i]
            assert np.array_equal(images[which == i], permute(values[which == i], int(size), some))
        assert np.array_equal(unpermute(images, each, key), values)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 25, 31, 36, 64, 200, 1023, 1024, 4096])
def test_every_element_goes_everywhere_equally_often(n: int) -> None:
    count = max(4000, 40 * n)
    keys = branch(derive(2, "test"), np.arange(count))
    for element in (0, n // 2, n - 1):
        images = permute(np.full(count, element), n, keys)
        assert excess(np.bincount(images, minlength=n)) < 5


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8, 9, 12, 16, 25, 31, 49, 64])
def test_neighbours_part_company(n: int) -> None:
    shuffled = orders(n, 6000)
    steps = (np.diff(shuffled, axis=1) % n).ravel()
    # Differences within one order are not quite independent, hence the wider bound.
    assert excess(np.bincount(steps, minlength=n)[1:]) < 8
    first, second = shuffled[:, 0], shuffled[:, 1]
    pairs = np.bincount(first * n + second, minlength=n * n).reshape(n, n)[~np.eye(n, dtype=bool)]
    assert excess(pairs) < 5


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_every_order_of_a_few_comes_equally_often(n: int) -> None:
    seen = Counter(map(tuple, orders(n, 60 * factorial(n)).tolist()))
    assert len(seen) == factorial(n)
    assert excess(np.array(list(seen.values()))) < 5


@pytest.mark.parametrize("n", [10_000, 1_000_003])
def test_a_large_shuffle_looks_random(n: int) -> None:
    images = permute(np.arange(10_000), n, derive(3, "test"))
    steps = np.diff(images) % n
    assert excess(np.bincount(steps * 100 // n, minlength=100)) < 5
    # The expected number of ascents of a random order is half its length, with variance n / 12.
    ascents = int((np.diff(images) > 0).sum())
    assert abs(ascents - len(images) / 2) < 5 * np.sqrt(len(images) / 12)


@pytest.mark.parametrize("n", [16, 64, 1000, 10**6])
def test_epochs_differ(n: int) -> None:
    key = derive(4, "test")
    epochs = [permute(np.arange(min(n, 1000)), n, branch(key, epoch)) for epoch in range(20)]
    fixed = [float((a == b).mean()) for i, a in enumerate(epochs) for b in epochs[:i]]
    assert max(fixed) < 0.5
    assert np.mean(fixed) < 2 / min(n, 1000)


def test_positions_outside_the_range_are_refused() -> None:
    for bad in ([-1], [10], [0, 11]):
        with pytest.raises(ValueError, match="positions must be in"):
            permute(np.array(bad), 10, 1)
    with pytest.raises(ValueError, match="positions must be in"):
        unpermute(np.array([0]), 0, 1)
    with pytest.raises(ValueError, match="positions must be in"):
        permute(np.array([3, 5]), np.array([4, 5]), 1)


def test_keys_are_the_same_for_ever() -> None:
    assert derive(7, "shuffle", "docs") == 15421517789354140149
    assert branch(0, 0) == 0xE220A8397B1DCDAF  # the published first output of splitmix64 seeded with 0
    assert branch(7, 3) == 10753165928301472203
    assert permute(np.arange(10), 10, 7).tolist() == [4, 6, 3, 0, 8, 5, 2, 9, 1, 7]
    assert permute(np.array([0, 1, 10**9]), 10**12, 7).tolist() == [165150375546, 937196903521, 354258935527]
    keys = branch(7, np.arange(3))
    assert permute(np.array([0, 1, 2**62]), 2**63, keys).tolist() == [
        7136457905169643560,
        7007491355469916502,
        1932691331492059914,
    ]


def test_derived_keys_do_not_run_together() -> None:
    keys = [derive(1, "a", "b"), derive(1, "ab"), derive(1, "a", "b", ""), derive(-1, "a", "b"), derive(1, "a", 5)]
    keys += [derive(1, "a", "5"), derive(1), derive(10**40)]
    assert len(set(keys)) == len(keys)


@given(KEYS, st.integers(0, 2**63 - 1))
def test_branch_of_numbers_and_arrays_agree(key: int, number: int) -> None:
    expected = branch(key, number)
    assert branch(key, np.array([number])).tolist() == [expected]
    assert branch(np.array([key], np.uint64), number).tolist() == [expected]
    assert branch(np.array([key], np.uint64), np.array([number])).tolist() == [expected]
