"""Count samples read in stored order, for Feedmill and its peers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

BATCH = 64
WARM = 5


def measured(batches: Iterable[list[Any]], count: int) -> dict[str, float]:
    """Return samples per second after the first batches; reads the bytes of every part."""
    taken = size = 0
    begin = time.perf_counter()
    for number, batch in enumerate(batches):
        if number == WARM:
            taken, begin = 0, time.perf_counter()
        taken += len(batch)
        size += sum(used(sample) for sample in batch)
    seconds = time.perf_counter() - begin
    return {"per_s": taken / seconds, "samples": count, "bytes": size}


def used(sample: Any) -> int:
    """Return the bytes of all parts of a sample."""
    return sum(len(sample[part]) for part in sample if not part.startswith("__"))


def order_of(count: int, order: str) -> list[int]:
    """Return the numbers of samples in the order in which Feedmill and the peer read them."""
    import numpy as np

    return list(range(count)) if order == "in-order" else np.random.default_rng(0).permutation(count).tolist()


def values(batches: Iterable[list[Any]], count: int) -> dict[str, float]:
    """Return the rate as `measured`, for samples with decoded values."""
    begin, total = time.perf_counter(), 0
    for batch in batches:
        total += sum(sample["n"] + len(sample["text"]) + sample["ids"].size for sample in batch)
    return {"per_s": count / (time.perf_counter() - begin), "samples": count, "bytes": total}
