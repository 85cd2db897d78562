"""Run near-duplicate tasks on all cores: up to four workers are threads, more are processes.

Most of the time is spent in compiled loops, decompression and disk access, which release the GIL. So up to four threads
keep four cores busy, and unlike processes they do not load the kernels again. The remaining fifth needs the GIL, and
limits more threads than that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from feedmill.jobs.engine import Policy, Where, current
from feedmill.jobs.progress import Progress, read_since_now
from feedmill.jobs.resources import available_cores
from feedmill.jobs.run import run, run_cut
from feedmill.jobs.threads import ordered_map

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = 4
KERNELS = (
    "feedmill.curation.near.graph",
    "feedmill.documents.lines",
    "feedmill.kernels.hashing.shingles",
    "feedmill.kernels.hashing.near_pairs",
)
_here = threading.local()


class Stopped(Exception):
    """Raised in a thread whose run has ended."""


def go_on() -> None:
    """Raise `Stopped` if an error or Ctrl-C has ended the run. Long tasks call this regularly."""
    stop: threading.Event | None = getattr(_here, "stop", None)
    if stop is not None and stop.is_set():
        raise Stopped


def map_units(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int | None,
    progress: Progress,
    where: Where | None = None,
) -> Iterator[Result]:
    """Yield ``function(item)`` for each item, in order. The first exception in that order is raised."""
    if current() is not None:
        yield from run(function, items, workers=workers, progress=progress, preload=KERNELS, where=where)
        return
    count = available_cores() if workers is None else workers
    if count > THREADS:
        yield from run(function, items, workers=count, progress=progress, preload=KERNELS)
        return
    with progress.watching(read_since_now()):
        for result in map(function, items) if count <= 1 else _threads(function, items, count):
            before = progress.done
            progress.advance()
            progress.settle(progress.done - before)  # a file is counted as a whole while it is read
            yield result


def spread_files(
    function: Callable[..., Result],
    items: Sequence[Item],
    sizes: Sequence[int],
    *,
    workers: int | None,
    progress: Progress,
    where: Where,
) -> list[Result]:
    """Return ``function(item)`` for each file, in order; see `feedmill.jobs.run.run_cut` for large ones."""

    def others(function: Callable[..., Result], items: Sequence[Item], sizes: Sequence[int], **_: Any) -> list[Result]:
        return list(map_units(function, items, workers, progress.of_sizes(sizes), where))

    return run_cut(function, items, sizes, workers=workers, others=others, progress=progress)


def spread_blocks(
    function: Callable[[Any, Item], Result], blocks: Iterable[Item], shared: Any, workers: int
) -> Generator[Result, None, None]:
    """Yield ``function(shared, block)`` for each block of a file, in order, computed by this number of workers."""
    if workers > THREADS:
        return run(function, blocks, workers=workers, preload=KERNELS, policy=Policy(shared=shared))
    threads = 0 if workers == 1 else workers
    return ordered_map(partial(function, shared), blocks, workers=threads, in_flight=2 * workers)


def _threads(function: Callable[[Item], Result], items: Sequence[Item], count: int) -> Iterator[Result]:
    stop = threading.Event()

    def work(item: Item) -> Result:
        _here.stop = stop
        return function(item)

    # A thread cannot be stopped from outside, and its file can be long.
    return ordered_map(work, items, workers=count, in_flight=len(items), interrupt=stop.set)
