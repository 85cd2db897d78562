"""Measure Feedmill's first batch in a new process: ``first URL BEGAN``. Imports are timed, so there are no others.

BEGAN is the time when the parent started this process, by `time.perf_counter`.
"""

from __future__ import annotations

import time

from benchmarks.lib.side import answer

BATCH = 64


def first(url: str, began: str) -> dict[str, float]:
    """Return the seconds to the first batch of 64, from the start of the process and from `open`."""
    import feedmill as fm

    Loader, Plan, open_dataset = fm.Loader, fm.Plan, fm.open
    opening = time.perf_counter()
    dataset = open_dataset(url, raw=True, decode=None)
    loader = Loader(Plan.over(dataset), BATCH, rank=0, world_size=1, output="samples")
    batch = next(iter(loader))
    assert sum(len(sample.raw("bin")) for sample in batch) == 15_000 * BATCH
    now = time.perf_counter()
    loader.close()
    return {"whole": now - float(began), "opened": now - opening, "samples": len(dataset)}


if __name__ == "__main__":
    answer(globals())
