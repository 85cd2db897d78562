"""Parallel map over threads: results in order, a bounded number in flight, no thread left running."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextvars import copy_context
from itertools import islice, repeat
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

Item = TypeVar("Item")
Result = TypeVar("Result")

THREAD_NAME = "feedmill-worker"

_here = threading.local()
_END = object()
_RUN = 64  # items


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int,
    in_flight: int,
    interrupt: Callable[[], object] | None = None,
) -> Generator[Result, None, None]:
    """Yield ``function(item)`` for each item, in order, computed ahead on `workers` threads.

    For work that releases the GIL (compiled loops, hashing, reading, decoding); use `feedmill.jobs.run` for all other
    work. At most `in_flight` results (at least 1) are begun and not yet yielded. An exception is raised in place of its
    result, after all results before it. However the iteration ends (exhausted, closed, collected, interrupted, failed),
    its threads end with it, after finishing their current calls. With 0 workers the caller's thread computes each
    result on demand. Calls have the context variables that the iterating thread has when they are begun.

    Args:
        interrupt: called before the wait for the threads, to end their current calls early.
    """
    if workers == 0:
        for item in items:  # not `map`, which a StopIteration of the function would end early
            yield function(item)
        return
    todo = iter(items)
    pending: deque[Future[Result]] = deque()
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(workers, THREAD_NAME, initializer=_belong_to, initargs=(pending,))

    def begin(most: int) -> None:
        pending.extend(pool.submit(copy_context().run, function, item) for item in islice(todo, most))

    try:
        begin(min(max(in_flight, 1), sys.maxsize))
        while pending:
            result = pending.popleft().result()
            begin(1)
            yield result
            del result  # so that a batch is not kept alive while the next one is awaited
    finally:
        if interrupt is not None:
            interrupt()
        # The garbage collector may close this generator on any thread, even on a worker. A worker cannot join itself,
        # but all workers end when the queue is empty.
        pool.shutdown(wait=getattr(_here, "pool", None) is not pending, cancel_futures=True)


def runs_of(items: Sequence[Item], workers: int) -> list[Sequence[Item]]:
    """Divide small items into runs, one for each call of `ordered_map`: to hand one over costs more than to do it.

    Args:
        workers: the number of threads, each of which gets several runs.
    """
    size = max(1, min(_RUN, len(items) // (4 * workers)))
    return [items[first : first + size] for first in range(0, len(items), size)]


def ahead(
    items: Iterable[Item], depth: int = 2, interrupt: Callable[[], object] | None = None
) -> Generator[Item, None, None]:
    """Yield the items, read ahead from their source on a separate thread, at most `depth` at once.

    For sources that release the GIL, such as a compressed file. An exception is raised after the items before it. The
    thread ends with the iteration, however that ends, and a generator as source is closed. `interrupt` is that of
    `ordered_map`.
    """
    source = iter(items)
    results = ordered_map(lambda _: next(source, _END), repeat(None), workers=1, in_flight=depth, interrupt=interrupt)
    try:
        for item in results:
            if item is _END:
                break
            yield item  # type: ignore[misc]
            del item  # as above
    finally:
        results.close()
        if hasattr(source, "close"):
            source.close()


def _belong_to(pool: object) -> None:
    _here.pool = pool
