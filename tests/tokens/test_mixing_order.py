from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.tokens.dolma_output import Ring, batches, groups

FILES = st.lists(st.integers(0, 12), min_size=0, max_size=9)


def mixed(ring: Ring, counts: list[int], seed: int) -> list[list[tuple[int, int]]]:
    opened = batches(ring, lambda n: ((n, i) for i in range(counts[n])), counts, random.Random(seed))
    return list(opened)


@given(FILES, st.integers(1, 5), st.integers(1, 9), st.booleans(), st.integers(0, 9))
def test_every_document_once(counts: list[int], files: int, batch: int, proportional: bool, seed: int) -> None:
    ring = Ring(files, batch, proportional)
    found = mixed(ring, counts, seed)
    assert sorted(document for part in found for document in part) == [
        (n, i) for n, count in enumerate(counts) for i in range(count)
    ]
    assert all(0 < len(part) <= batch for part in found)
    assert found == mixed(ring, counts, seed)


@given(FILES, st.integers(1, 5))
def test_without_shuffling_files_are_read_in_turn(counts: list[int], files: int) -> None:
    """Batches of one document: the documents of one file come in order, and never more files than the ring has."""
    order = [part[0] for part in mixed(Ring(files, 1), counts, 0)]
    for number in range(len(counts)):
        assert [i for n, i in order if n == number] == list(range(counts[number]))


def test_larger_files_are_taken_more_often() -> None:
    first = mixed(Ring(2, 1000, True), [10_000, 100], 3)[0]
    assert sum(n == 1 for n, _ in first) < 50


@given(st.integers(1, 60), st.integers(1, 12), st.none() | st.integers(1, 20))
def test_groups_are_all_files_once(count: int, processes: int, most: int | None) -> None:
    found = groups(count, processes, most)
    assert [n for part in found for n in range(count)[part]] == list(range(count))
    assert all(part.stop > part.start for part in found)
    if most is None:
        assert len(found) == min(count, processes) or count % processes


@pytest.mark.parametrize(("count", "processes", "sizes"), [(4, 2, [2, 2]), (5, 3, [2, 1, 2]), (2, 4, [1, 1])])
def test_groups_are_dolmas(count: int, processes: int, sizes: list[int]) -> None:
    assert [part.stop - part.start for part in groups(count, processes, None)] == sizes
