"""Best-fit decreasing in plain Python, see `feedmill.kernels.order.binpack`."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.order.binpack import Int32s, Int64s


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


def best_fit_within(sizes: Int32s, capacity: int, demands: Int64s, limits: Int64s, probes: int) -> tuple[Int32s, int]:
    """Return the same for items with further demands, int64[kinds, items], of which a bin takes `limits`."""
    bins = np.empty(len(sizes), np.int32)
    rooms: list[int] = []
    left: list[list[int]] = []
    moved: list[int] = []  # when each bin was last put back, for ties between bins of one room
    least = [
        min((int(d) for d in row if d > 0), default=int(most) + 1) for row, most in zip(demands, limits, strict=True)
    ]
    ranks = []
    for item, size in enumerate(sizes.tolist()):
        share = max(-(-capacity * int(d) // int(most)) for d, most in zip(demands[:, item], limits, strict=True))
        level, between = divmod(item * 0x9E3779B97F4A7C15 % 2**64 >> 48, 4096)
        low, high = (round(4096 * 20 ** (n / 16)) for n in (level, level + 1))
        factor = (low * (4096 - between) + high * between) // 4096
        ranks.append(size if share <= size else min(share * factor // 4096, capacity))
    for now, item in enumerate(sorted(range(len(sizes)), key=lambda i: (-ranks[i], i))):
        size, wanted = int(sizes[item]), demands[:, item].tolist()
        able = [b for b in range(len(rooms)) if rooms[b] >= size]
        spent = [b for b in able if any(rest < low for rest, low in zip(left[b], least, strict=True))]
        order = sorted((b for b in able if b not in spent), key=lambda b: (rooms[b], -moved[b]))
        if not any(wanted):
            chosen = min(spent + order, key=lambda b: (rooms[b], b not in spent, -moved[b]), default=None)
        else:
            fits = (b for b in order[:probes] if all(w <= r for w, r in zip(wanted, left[b], strict=True)))
            chosen = next(fits, None)
        if chosen is None:
            chosen = len(rooms)
            rooms.append(capacity)
            left.append(limits.tolist())
            moved.append(now)
        bins[item], moved[chosen] = chosen, now
        rooms[chosen] -= size
        left[chosen] = [rest - want for rest, want in zip(left[chosen], wanted, strict=True)]
    return bins, len(rooms)
