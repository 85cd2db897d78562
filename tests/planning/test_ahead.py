"""Locating ahead gives what locating gives, for any small reads in any order."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.planning.ahead import BLOCK, LocateAhead
from feedmill.planning.nodes import Leaf, Located, Repeat, shuffled

NODE = Repeat(shuffled(Leaf(0, 5000), "block", 3, 16, 4), 2)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9_900), st.integers(0, 100)), max_size=12), st.booleans())
def test_the_same_as_locate(reads: list[tuple[int, int]], reverse: bool) -> None:
    calls: list[int] = []

    def locate(positions: np.ndarray) -> Located:
        calls.append(len(positions))
        return NODE.locate(positions)

    ahead = LocateAhead(locate, NODE.length)
    for first, count in reads:
        positions = np.arange(first, first + count)[:: -1 if reverse else 1]
        found, wanted = ahead(positions), NODE.locate(positions)
        for name in ("source", "index", "epoch"):
            assert np.array_equal(getattr(found, name), getattr(wanted, name))
    assert max(calls, default=0) <= BLOCK


def test_neighbours_are_located_once() -> None:
    calls: list[int] = []
    ahead = LocateAhead(lambda p: calls.append(len(p)) or NODE.locate(p), NODE.length)  # type: ignore[func-returns-value]
    for first in range(0, 4096, 8):
        ahead(np.arange(first, first + 8))
    assert calls == [BLOCK]
