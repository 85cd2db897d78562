"""Work on all cores: on threads where there are few, on processes where there are many.

Most of the work is in compiled loops, decompression and the disk, which leave the interpreter to others: up to four
threads keep as many cores busy, and need not load the kernels again as processes do. The rest, about a fifth, is the
interpreter's own; beyond four it is what everyone would wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from feedmill.jobs.cores import available_cores
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.jobs.threads import ordered_map

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = 4
KERNELS = (
    "feedmill.curation.near.sketch",
    "feedmill.curation.near.join",
    "feedmill.kernels.shingles_compiled",
    "feedmill.kernels.near_pairs_compiled",
)


def spread(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int | None, progress: Progress
) -> Iterator[Result]:
    """``function(item)`` for each item, in order. Of exceptions the first in that order comes out."""
    count = available_cores() if workers is None else workers
    if count > THREADS:
        yield from run(function, items, workers=count, progress=progress, preload=KERNELS)
        return
    for result in ordered_map(function, items, workers=count if count > 1 else 0, in_flight=2 * count):
        progress.advance()
        yield result
