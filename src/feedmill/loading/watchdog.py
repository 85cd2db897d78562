"""Says which sample a stalled worker is at, and where in the code, before anybody else loses patience.

Each process watches its own threads, so a stalled worker process is named just as a thread is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger("feedmill")


@dataclass(slots=True)
class Activity:
    """What a thread does for a batch: which step, since when, in which stage, at which position."""

    step: int
    first: int
    stop: int
    since: float = field(default_factory=time.monotonic)
    stage: str = "read"
    position: int | None = None
    told: int = 0


class Watchdog:
    """Watches batches that are being made; logs a warning each time one takes another `seconds`.

    Args:
        seconds: how long a batch may take unremarked.
        rank: for the message.
        describe: a position in words: source, sample, file.
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
        """While the block runs, this thread makes a batch."""
        me = threading.get_ident()
        if self._process != os.getpid():
            self._begin()  # forked: its thread is not here, and its lock may be held for ever
        with self._lock:
            self._active[me] = activity
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="feedmill-watchdog", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._active.pop(me, None)

    def _look(self) -> None:
        """Look around until nothing has been going on for a while."""
        idle = 0
        while True:
            time.sleep(min(self.seconds / 4, 1.0))
            now = time.monotonic()
            with self._lock:
                idle = 0 if self._active else idle + 1
                if idle > 2:
                    self._thread = None
                    return
                late = [
                    (thread, activity)
                    for thread, activity in self._active.items()
                    if now - activity.since > self.seconds * (activity.told + 1)
                ]
            for thread, activity in late:
                activity.told += 1
                logger.warning("%s", self.message(thread, activity, now))

    def message(self, thread: int, activity: Activity, now: float) -> str:
        """Return the facts about a stalled thread."""
        names = {other.ident: other.name for other in threading.enumerate()}
        at = f"positions {activity.first} to {activity.stop - 1}"
        if activity.position is not None:
            at = f"position {activity.position}"
            with contextlib.suppress(Exception):  # a message must not fail for what it says
                at = self._describe(activity.position)
        frame = sys._current_frames().get(thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        return (
            f"rank {self.rank}, worker {names.get(thread, thread)} of process {os.getpid()}: batch {activity.step} has"
            f" taken {now - activity.since:.0f} s, now in {activity.stage} of {at}\n{stack}"
        )
