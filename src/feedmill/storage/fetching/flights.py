"""Requests in flight (`Flight`), and the first answer to several requests for the same bytes (`Answer`).

`fetch.py` sends a second request if the first takes far longer than usual; the slower one is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Protocol, TypeVar

T = TypeVar("T")


class Releasable(Protocol):
    """What a request holds while it is in flight: a `Slot` of its lane."""

    def release(self) -> None:
        """Release it. A second call does nothing."""


class Flight:
    """The state of one request.

    Args:
        clock: monotonic time in seconds.

    Attributes:
        since: monotonic time in seconds at which the last try was sent, or at which the request began to wait for the
            same bytes from another request; None while it does neither.
        dropped: whether the answer is no longer needed.
        urgent: whether a reader waits for the answer; an urgent request ignores the limit of its lane.
    """

    __slots__ = ("_clock", "_slot", "dropped", "since", "urgent")

    def __init__(self, *, urgent: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.urgent = urgent
        self._clock = clock
        self.since: float | None = None
        self.dropped = False
        self._slot: Releasable | None = None

    def begin(self, slot: Releasable) -> None:
        """Record that a try is sent.

        Args:
            slot: released when the request is dropped.
        """
        self._slot, self.since = slot, self._clock()
        if self.dropped:
            slot.release()

    def end(self) -> None:
        """Record that the try ended."""
        self._slot = self.since = None

    def drop(self) -> None:
        """Release the slot of a request that nobody waits for: a try in flight cannot be interrupted."""
        self.dropped = True
        slot = self._slot
        if slot is not None:
            slot.release()


class Answer(Future[T]):
    """The result of the first request that succeeds, or the error of the last one if none does.

    Attributes:
        flights: states of its requests.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flights: list[Flight] = []
        self._requests: list[Future[T]] = []
        self._pending = 0
        self._guard = threading.Lock()

    def add(self, flight: Flight, request: Future[T]) -> None:
        """Add a request that has been submitted."""
        with self._guard:
            self.flights.append(flight)
            self._pending += 1
            if self.done():
                flight.drop()
            else:
                self._requests.append(request)
        request.add_done_callback(self._ended)

    def _ended(self, request: Future[T]) -> None:
        error = CancelledError() if request.cancelled() else request.exception()
        with self._guard:
            self._pending -= 1
            if self.done() or (error is not None and self._pending):
                return
            try:
                if error is None:
                    self.set_result(request.result())
                else:
                    self.set_exception(error)
            except InvalidStateError:  # canceled by another thread
                return
        self._drop()

    def cancel(self) -> bool:
        """Cancel the requests that have not begun, and drop the others."""
        cancelled = super().cancel()
        self._drop()
        return cancelled

    def _drop(self) -> None:
        with self._guard:
            # A request refers to its answer. Without this, the cycle would keep the bytes until garbage collection.
            requests, self._requests = self._requests, []
        for flight, request in zip(list(self.flights), requests, strict=False):
            if not request.done():
                flight.drop()
                request.cancel()
