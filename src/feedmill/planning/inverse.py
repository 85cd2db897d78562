"""From samples to the positions at which a plan gives them."""

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
"""Times that are looked up in one call: few calls, and some MB."""


def positions_of(root: Node, leaf: int, name: str, indices: Sequence[int], end: int) -> IntArray:
    """Return all positions before `end` at which a plan gives samples of one of its leaves: int64[n], in order.

    Args:
        root: the plan's root.
        leaf: the leaf's number.
        name: what people call it.
        indices: samples of it, each once.
        end: look at the first N positions.

    Raises:
        ConfigError: a sample comes millions of times.
    """
    again = bounds.reach(root, leaf, end)
    if again > _MOST_TIMES and len(indices):
        raise ConfigError(
            f"{end:,} positions take sample {indices[0]} of {name} up to {again:,} times",
            kind="too-many",
            fix=f"Look at fewer positions: a sample that comes more than {_MOST_TIMES:,} times is not listed.",
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
