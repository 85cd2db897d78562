"""Energon's watchdog: watch how long the loop waits for each item, and end the process if that is requested."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from feedmill.compat.energon.base import SavableDataset
from feedmill.compat.energon.closed import signed
from feedmill.compat.energon.views import Transparent
from feedmill.compat.energon.worker import WorkerConfig

__all__ = ["WatchdogDataset"]

_log = logging.getLogger("feedmill.energon")


class WatchdogDataset(Transparent):
    """The dataset itself; its loader watches how long each item takes.

    Args:
        timeout_seconds: seconds after which an item is late; None for no limit.
        initial_timeout_seconds: the same for the first item of a loop; None for `timeout_seconds`.
        fail_on_timeout: end this process if an item is late. Without it, the loader logs the batch that is late.
    """

    @signed
    def __init__(
        self,
        dataset: SavableDataset,
        worker_config: WorkerConfig,
        timeout_seconds: float | None = 60,
        initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool = False,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.timeout_seconds, self.fail_on_timeout = timeout_seconds, fail_on_timeout
        self.initial_timeout_seconds = initial_timeout_seconds

    def watch(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items, and call `_watchdog_trigger` in another thread if one of them is late."""
        if self.timeout_seconds is None:
            yield from items
            return
        watch = _Watch(self.timeout_seconds, self._watchdog_trigger)
        seconds = self.timeout_seconds if self.initial_timeout_seconds is None else self.initial_timeout_seconds
        with watch:
            while True:
                watch.due = time.monotonic() + seconds
                item = next(items, watch)
                watch.due = None
                if item is watch:
                    return
                yield item
                seconds = self.timeout_seconds

    def _watchdog_trigger(self) -> None:
        if not self.fail_on_timeout:
            return  # the loader logs the batch, with its sample and the stack
        _log.critical("an item took longer than %s s: this process ends (fail_on_timeout)", self.timeout_seconds)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
        os._exit(1)


class _Watch:
    """A thread that calls a function when `due` (a time of `time.monotonic`) has passed; None for nothing due."""

    def __init__(self, seconds: float, late: Callable[[], None]) -> None:
        self.due: float | None = None
        self._pause, self._late, self._done = min(seconds / 4, 1.0), late, threading.Event()

    def __enter__(self) -> _Watch:
        threading.Thread(target=self._run, name="feedmill-timeout", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def _run(self) -> None:
        while not self._done.wait(self._pause):
            due = self.due
            if due is not None and time.monotonic() > due:
                self.due = None
                self._late()
