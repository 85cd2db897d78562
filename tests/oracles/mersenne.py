"""The shuffle of torch in plain Python, see `feedmill.kernels.order.mersenne`."""

from __future__ import annotations

import numpy as np

from feedmill.kernels.order import mersenne


def randperm(n: int, seed: int) -> list[int]:
    """Return the permutation of ``[0, n)``."""
    order = list(range(n))
    generator = np.random.RandomState(seed & 0xFFFFFFFF)
    if n < mersenne.LARGE:
        for step, word in enumerate(generator.randint(0, 2**32, n, dtype=np.uint32).tolist()):
            other = step + word % (n - step)
            order[step], order[other] = order[other], order[step]
        return order
    words = generator.randint(0, 2**32, 2 * n, dtype=np.uint32).reshape(n, 2)
    for step, (high, low) in enumerate(words.tolist()):
        other = (high << 32 | low) % (step + 1)
        order[step] = order[other]
        order[other] = step
    return order
