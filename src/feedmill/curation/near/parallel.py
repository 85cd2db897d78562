"""Work on all cores: on threads where there are few, on processes where there are many.

Most of the work is in compiled loops, decompression and the disk, which leave the interpreter to others: up to four
threads keep as many cores busy, and need not load the kernels again as processes do. The rest, about a fifth, is the
interpreter's own; beyond four it is what everyone would wait for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from feedmill.jobs.cores import available_cores
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.jobs.threads import THREAD_NAME

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = 4
KERNELS = (
    "feedmill.curation.near.sketch",
    "feedmill.curation.near.join",
    "feedmill.kernels.hashing.shingles_compiled",
    "feedmill.kernels.hashing.near_pairs_compiled",
)
_here = threading.local()


class Stopped(Exception):
    """The run is over; what this thread does is of no use any more."""


def go_on() -> None:
    """Called now and then by long work: raises `Stopped` where an error or Ctrl-C has ended the run."""
    stop: threading.Event | None = getattr(_here, "stop", None)
    if stop is not None and stop.is_set():
        raise Stopped


def spread(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int | None, progress: Progress
) -> Iterator[Result]:
    """``function(item)`` for each item, in order. Of exceptions the first in that order comes out."""
    count = available_cores() if workers is None else workers
    if count > THREADS:
        yield from run(function, items, workers=count, progress=progress, preload=KERNELS)
        return
    for result in map(function, items) if count <= 1 else _threads(function, items, count):
        progress.advance()
        yield result


def _threads(function: Callable[[Item], Result], items: Sequence[Item], count: int) -> Iterator[Result]:
    stop = threading.Event()
    pool = ThreadPoolExecutor(count, THREAD_NAME, initializer=lambda: setattr(_here, "stop", stop))
    try:
        pending: deque[Future[Result]] = deque(pool.submit(function, item) for item in items)
        while pending:
            yield pending.popleft().result()
    finally:
        stop.set()  # threads cannot be ended from outside, and a file may be long
        pool.shutdown(cancel_futures=True)
