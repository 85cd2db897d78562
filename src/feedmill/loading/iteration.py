"""One pass of a loader: prefetched batches are yielded in order, and the loader's position advances with them.

Batches that were prefetched but not yielded do not count: they are made again after a resume.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any, Self

from feedmill.errors import ConfigError
from feedmill.loading.pipeline import Delivery, Pipeline
from feedmill.loading.progress import Progress


class Iteration(Iterator[Any]):
    """One pass of a loader. Its threads or processes end when it is exhausted, closed, or no longer referred to.

    Args:
        progress: where it begins, and what it moves.
        pipeline: makes the batches.
        delivery: hands them over.
    """

    def __init__(self, progress: Progress, pipeline: Pipeline, delivery: Delivery) -> None:
        self._progress, self._delivery = progress, delivery
        self._given = pipeline.batches(progress)
        self._closed = self._forked = False
        _running.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise _ended()
        if self._forked:
            raise ConfigError(
                "this iteration began in the process that this one was forked from, and its threads have stayed there",
                kind="forked",
                fix="Iterate the loader in the process that uses it; here it would continue from its position.",
            )
        asked = time.perf_counter()
        try:
            given = next(self._given, None)
            if self._closed:  # by another thread, or a handler of signals, while the batch was waited for
                raise _ended()
            if given is not None:
                return self._delivery.deliver(given, self._progress, asked)
        except BaseException as error:
            self.close()
            if isinstance(error, StopIteration):  # of a handler: the loop would end as if nothing were left
                raise RuntimeError("the handler of failures raised StopIteration") from error
            raise
        self._delivery.metrics.pause()
        self._progress.finish()
        raise StopIteration

    def close(self) -> None:
        """End the iteration. If another thread is waiting for a batch, that thread ends it afterwards."""
        self._closed = True
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
_elsewhere: list[Any] = []


def _leave_to_parent() -> None:
    """Disable running iterations in a forked process: threads are not inherited, and their locks may stay locked.

    The iterations can therefore be neither continued nor closed here. They belong to the parent.
    """
    for iteration in list(_running):
        iteration._forked = True
        _elsewhere.append(iteration._given)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
