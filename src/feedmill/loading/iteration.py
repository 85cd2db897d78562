"""One pass of a loader: yield the prefetched batches in order, and advance the loader's position with them.

`iter(loader)` returns an `Iteration`. Batches that were prefetched but not yielded do not count: they are made again
after a resume.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any, Self

from feedmill.errors import ConfigError, shortened
from feedmill.loading.pipeline import Delivery, Pipeline
from feedmill.loading.progress import Progress
from feedmill.storage.fetching.fetch import Interrupted, interruptible

logger = logging.getLogger("feedmill")
REWIND = (
    "To begin each pass at the start, use Loader(..., rewind=True); for more passes in one plan, raise its 'epochs' or"
    " 'samples'."
)


class Iteration(Iterator[Any]):
    """One pass of a loader. Its threads or processes end when it is exhausted, closed, or no longer referred to.

    Args:
        progress: the position at which the pass begins; it advances with each batch.
        pipeline: makes the batches.
        delivery: converts them for the training loop and counts them.
        again: what to do if the pass begins at the end of the plan.

    A pass without a batch is reported in the log: a loop over it does nothing.
    """

    def __init__(self, progress: Progress, pipeline: Pipeline, delivery: Delivery, again: str = REWIND) -> None:
        self._progress, self._delivery, self._again = progress, delivery, again
        self._began_at_end, self._is_empty = progress.ended, True
        self._stop = threading.Event()
        self._given = pipeline.batches(progress)
        self._closed = self._forked = False
        self._in_next = threading.Lock()
        _running.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise _ended()
        if self._forked:
            raise ConfigError(
                "this iteration cannot continue in a forked process: its threads were not inherited",
                kind="forked",
                fix="Iterate the loader again in this process: it continues from its position.",
            )
        if not self._in_next.acquire(blocking=False):
            raise ConfigError(
                "another thread is taking a batch from this iteration: it cannot be shared by threads",
                kind="shared-iteration",
                fix="Take batches in one thread and hand them on, or give each thread a loader with a rank of its own.",
            )
        try:
            return self._next()
        except Exception as error:  # its own cause stays
            raise shortened(error)  # noqa: B904
        finally:
            self._in_next.release()

    def _next(self) -> Any:
        requested_at = time.perf_counter()
        try:
            with interruptible(self._stop):
                given = next(self._given, None)
            if self._closed:  # by another thread or a signal handler during the wait
                raise _ended()
            if given is not None:
                self._is_empty = False
                return self._delivery.deliver(given, self._progress, requested_at)
        except BaseException as error:
            interrupted = isinstance(error, Interrupted) and self._stop.is_set()
            self.close()
            if interrupted:
                raise _ended() from None
            if isinstance(error, StopIteration):  # raised by a handler: the loop would end early without an error
                raise RuntimeError("the handler of failures raised StopIteration") from error
            raise
        self._delivery.metrics.pause()
        if self._is_empty:
            self._report_empty()
        self._progress.finish()
        raise StopIteration

    def _report_empty(self) -> None:
        progress = self._progress
        # Of several processes, the first reports it; that a whole plan gives no batch was reported when it was made.
        if self._began_at_end and progress.skip == 0 and progress.position:
            logger.warning(
                "this pass of the loader gave no batch: position %s is the end of its plan. %s",
                f"{progress.position:,}",
                self._again,
            )
        elif progress.cursor is not None and not self._began_at_end:
            logger.warning(
                "this pass of the loader gave no batch: its task encoder made none of the samples from position %s on."
                " Check its hooks of packing and grouping.",
                f"{progress.position:,}",
            )

    def close(self) -> None:
        """End the iteration. If another thread waits for a batch, that thread ends it, and its wait for remote data."""
        self._closed = True
        self._stop.set()
        self._delivery.metrics.pause()
        if self._forked:
            return
        try:
            self._given.close()
        except ValueError:
            if getgeneratorstate(self._given) != GEN_RUNNING:
                raise


def _ended() -> ConfigError:
    return ConfigError(
        "this iteration was ended by an error, close(), load_state_dict() or a newer iteration of its loader",
        fix="Iterate the loader again: it continues from its position.",
    )


_running: weakref.WeakSet[Iteration] = weakref.WeakSet()
_of_parent: list[Any] = []


def _leave_to_parent() -> None:
    """Disable running iterations in a forked process: a fork has no threads, and their locks may stay locked.

    The iterations can therefore neither continue nor be closed here. Their generators are kept alive, because
    collecting them would close them.
    """
    for iteration in list(_running):
        iteration._forked = True
        _of_parent.append(iteration._given)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
