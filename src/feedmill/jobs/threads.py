"""A function over items on a few threads: results in order, a bounded number at once, no thread left behind."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice, repeat
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

THREAD_NAME = "feedmill-worker"

_here = threading.local()
_END = object()


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int, in_flight: int
) -> Generator[Result, None, None]:
    """``function(item)`` for each item, in order, computed ahead on `workers` threads.

    For work that leaves the interpreter to others (compiled loops, hashing, reading, decoding); `feedmill.jobs.run` is
    for all other work. At most `in_flight` results (at least 1) are begun and not yet handed out. An exception comes
    out where its result would have come, after all results before it. However the iteration ends (exhausted, closed,
    collected, interrupted, failed), the threads have ended when it has; a call that is running then is finished first.
    With 0 workers the caller's thread computes each result when it is asked for.
    """
    if workers == 0:
        for item in items:  # and no `map`, which a StopIteration of the function would end as if nothing were left
            yield function(item)
        return
    todo = iter(items)
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers, THREAD_NAME, initializer=_belong_to, initargs=(pending,))
    try:
        pending.extend(pool.submit(function, item) for item in islice(todo, min(max(in_flight, 1), sys.maxsize)))
        while pending:
            result = pending.popleft().result()
            pending.extend(pool.submit(function, item) for item in islice(todo, 1))
            yield result
            del result  # or a batch would live on, unused, while the next one is waited for
    finally:
        # The garbage collector may close this generator on any thread, its own workers included: they can not be
        # waited for there, but they end by themselves once nothing is left to do.
        pool.shutdown(wait=getattr(_here, "pool", None) is not pending, cancel_futures=True)


def ahead(items: Iterable[Item], depth: int = 2) -> Generator[Item, None, None]:
    """Yield the items, taken from their source on a thread of its own, at most `depth` before they are asked for.

    For sources that leave the interpreter to others, such as a file that is unpacked. An exception comes out in its
    turn. When the iteration has ended, however it did, so has the thread; a generator that was the source is closed.
    """
    source = iter(items)
    results = ordered_map(lambda _: next(source, _END), repeat(None), workers=1, in_flight=depth)
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
