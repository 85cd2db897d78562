"""Log batches that take too long: the sample, the stage and the code location of each stalled worker.

A `Loader` starts a watchdog unless ``stall=None``. It logs a warning while the batch is stalled, so that a hung run can
be diagnosed from its log. Each process watches its own threads, so worker processes are covered like threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger("feedmill")


@dataclass(slots=True)
class Activity:
    """The current work of a thread on a batch.

    Attributes:
        step: number of the batch.
        first, stop: the first position of the batch, and the one after its last.
        since: monotonic time at which the batch was begun.
        stage: current stage, as in `feedmill.loading.failures.Failure`.
        position: current position; None if the stage covers the whole batch.
        reports: number of warnings that were logged for this batch.
    """

    step: int
    first: int
    stop: int
    since: float = field(default_factory=time.monotonic)
    stage: str = "read"
    position: int | None = None
    reports: int = 0


class Watchdog:
    """Watches the batches in progress, and logs a warning each time one of them takes another `seconds`.

    Args:
        seconds: time after which a batch counts as stalled.
        rank: rank for the message.
        describe: returns the description of a position for the message: source and sample.
    """

    def __init__(self, seconds: float, rank: int, describe: Callable[[int], str]) -> None:
        self.seconds, self.rank, self._describe = seconds, rank, describe
        self._begin()

    def _begin(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()
        self._active: dict[int, Activity] = {}
        self._thread: threading.Thread | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "rank": self.rank, "_describe": self._describe}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @contextlib.contextmanager
    def watch(self, activity: Activity) -> Iterator[None]:
        """Watch this thread while the ``with`` block makes a batch."""
        thread = threading.get_ident()
        if self._process != os.getpid():
            self._begin()  # a fork has no watching thread, and its copy of the lock may stay locked
        with self._lock:
            self._active[thread] = activity
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="feedmill-watchdog", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._active.pop(thread, None)

    def _run(self) -> None:
        """Check the active threads periodically; end after three checks without any."""
        idle = 0
        while True:
            # Not more often than 100 times a second: many watchdogs would leave the interpreter no time.
            time.sleep(min(max(self.seconds / 4, 0.01), 1.0))
            now = time.monotonic()
            with self._lock:
                idle = 0 if self._active else idle + 1
                if idle > 2:
                    self._thread = None
                    return
                late = [
                    (thread, activity)
                    for thread, activity in self._active.items()
                    if now - activity.since > self.seconds * (activity.reports + 1)
                ]
            for thread, activity in late:
                activity.reports += 1
                logger.warning("%s", self.message(thread, activity, now))

    def message(self, thread: int, activity: Activity, now: float) -> str:
        """Return the warning about a stalled thread, with its stack."""
        names = {other.ident: other.name for other in threading.enumerate()}
        at = f"positions {activity.first} to {activity.stop - 1}"
        if activity.position is not None:
            at = f"position {activity.position}"
            with contextlib.suppress(Exception):  # the warning must not fail because a plan does
                at = self._describe(activity.position)
        frame = sys._current_frames().get(thread)
        import traceback

        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        return (
            f"rank {self.rank}, worker {names.get(thread, thread)} of process {os.getpid()}: batch {activity.step} has"
            f" taken {now - activity.since:.0f} s, now in {activity.stage} of {at}\n{stack}"
        )
