"""Best-fit decreasing in plain Python, see `feedmill.kernels.order.binpack`."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.order.binpack import Int32s


def best_fit_decreasing(sizes: Int32s, capacity: int) -> tuple[Int32s, int]:
    """Return the bin of every item, and the number of bins."""
    stacks: list[list[int]] = [[] for _ in range(capacity + 1)]
    bins = np.empty(len(sizes), np.int32)
    opened = 0
    for item in sorted(range(len(sizes)), key=lambda i: (-int(sizes[i]), i)):
        size = int(sizes[item])
        room = next((room for room in range(size, capacity + 1) if stacks[room]), None)
        if room is None:
            bins[item], room = opened, capacity
            opened += 1
        else:
            bins[item] = stacks[room].pop()
        stacks[room - size].append(int(bins[item]))
    return bins, opened
