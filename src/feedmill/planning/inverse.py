"""Find the positions at which a plan yields given samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.planning import bounds
from feedmill.planning.nodes import Located, Node

IntArray = npt.NDArray[np.int64]

_MOST_TIMES = 10**7
_TOGETHER = 1 << 18
"""Occurrences that are looked up per call: few calls, and a few MB of memory."""


def positions_of(root: Node, leaf: int, name: str, indices: Sequence[int], end: int) -> IntArray:
    """Return all positions before `end` at which a plan yields given samples of one leaf: int64[n], ascending.

    Args:
        root: the plan's root.
        leaf: the leaf's number.
        name: its display name.
        indices: sample numbers in the leaf, without duplicates.
        end: search positions before this one.

    Raises:
        ConfigError: a sample occurs millions of times.
    """
    again = bounds.reach(root, leaf, end)
    if again > _MOST_TIMES and len(indices):
        raise ConfigError(
            f"{end:,} positions contain sample {indices[0]} of {name} up to {again:,} times",
            kind="too-many",
            fix=f"Search fewer positions: at most {_MOST_TIMES:,} occurrences of a sample can be listed.",
        )
    epochs = np.arange(again)
    step = max(1, _TOGETHER // max(again, 1))
    found = [np.zeros(0, np.int64)]
    for begin in range(0, len(indices), step):
        part = np.array(indices[begin : begin + step], np.int64)
        source = np.full(len(part) * again, leaf, np.int32)
        positions, rounds = root.positions(Located(source, np.repeat(part, again), np.tile(epochs, len(part))))
        found.append(positions[(positions >= 0) & (positions < end) & (rounds == 0)])
    return np.sort(np.concatenate(found))
