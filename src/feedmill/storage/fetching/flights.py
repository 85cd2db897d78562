"""Requests that are in flight, and the answer of the first of several for the same bytes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Protocol, TypeVar

T = TypeVar("T")


class Releasable(Protocol):
    """What a request holds while it is in flight; see `Slot`."""

    def release(self) -> None:
        """Give it back. A second call does nothing."""


class Flight:
    """One request: since when it is in flight, and whether its answer is still needed.

    Attributes:
        since: monotonic time in seconds at which the last try was sent, or from which the same bytes are awaited from
            another request; None while none is in flight.
        dropped: whether the answer is no longer needed.
        urgent: whether somebody waits for the answer; then it does not wait for its turn.
    """

    __slots__ = ("_slot", "dropped", "since", "urgent")

    def __init__(self, *, urgent: bool = False) -> None:
        self.urgent = urgent
        self.since: float | None = None
        self.dropped = False
        self._slot: Releasable | None = None

    def begin(self, slot: Releasable) -> None:
        """Note that a try is sent, and what it holds meanwhile."""
        self._slot, self.since = slot, time.monotonic()
        if self.dropped:
            slot.release()

    def end(self) -> None:
        """Note that the try ended."""
        self._slot = self.since = None

    def drop(self) -> None:
        """Let others use the place of a request that nobody waits for: a try in flight cannot be ended."""
        self.dropped = True
        slot = self._slot
        if slot is not None:
            slot.release()


class Answer(Future[T]):
    """The result of the first request that succeeds; the error of the last one if none does.

    Attributes:
        flights: of its requests.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flights: list[Flight] = []
        self._requests: list[Future[T]] = []
        self._left = 0
        self._guard = threading.Lock()

    def add(self, flight: Flight, request: Future[T]) -> None:
        """Add a request that has been submitted."""
        with self._guard:
            self.flights.append(flight)
            self._left += 1
            if self.done():
                flight.drop()
            else:
                self._requests.append(request)
        request.add_done_callback(self._ended)

    def _ended(self, request: Future[T]) -> None:
        error = CancelledError() if request.cancelled() else request.exception()
        with self._guard:
            self._left -= 1
            if self.done() or (error is not None and self._left):
                return
            try:
                if error is None:
                    self.set_result(request.result())
                else:
                    self.set_exception(error)
            except InvalidStateError:  # cancelled meanwhile
                return
        self._drop()

    def cancel(self) -> bool:
        """Cancel the requests that have not begun, and drop the others."""
        cancelled = super().cancel()
        self._drop()
        return cancelled

    def _drop(self) -> None:
        with self._guard:
            # A request refers to its answer: kept here, their bytes would live until garbage is collected.
            requests, self._requests = self._requests, []
        for flight, request in zip(list(self.flights), requests, strict=False):
            if not request.done():
                flight.drop()
                request.cancel()
