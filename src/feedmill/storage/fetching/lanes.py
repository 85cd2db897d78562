"""Limit the number of requests to one server that are in flight, and measure how long they take.

A server has two lanes: small requests wait for its latency, large ones share its bandwidth. The limit of a lane is
halved when the server rejects a request because of the load (429, 503), and rises again by one per second.

A request in flight is a `Flight`; an `Answer` is the first one to several requests for the same bytes. `fetch.py` sends
a second request if the first takes far longer than usual; the slower one is dropped.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
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


SMALL = 256 << 10
"""Requests of fewer bytes are bound by latency."""
MAX_AT_ONCE = 64
"""Maximum number of requests of a lane in flight."""
_LARGE_AT_ONCE, _MIN_LIMIT = 16, 4
"""First limit of the lane for large requests, and the lowest limit of any lane."""
_STEP, _STEP_SECONDS, _SETTLED_SECONDS, _GAIN = 8, 0.25, 30.0, 1.05
"""How the limit grows: its step, the time over which a rate is measured, the pause after a step that did not raise the
rate, and the ratio by which a step must raise it."""
_TIMES_KEPT, _RECENT, _SLOW_SECONDS = 256, 8, 0.25
"""Number of times kept, number of them that are recent, and the time below which a request is never slow."""
_OVERDUE, _OVERDUE_TIMES = 1.0, 4.0
"""A request hangs after this time in seconds, or this many times the usual time if that is longer."""
_RECHECK_SECONDS = 0.25
"""Time after which a request that waits for a slot checks whether others hang."""


class Slot:
    """The right of one request to be in flight.

    Attributes:
        since: monotonic time in seconds at which it was taken.
    """

    __slots__ = ("_lane", "since")

    def __init__(self, lane: Lane) -> None:
        self._lane: Lane | None = lane
        self.since = lane._clock()

    @property
    def released(self) -> bool:
        """Return whether the slot was released."""
        return self._lane is None

    def release(self) -> None:
        """Release the slot, so that another request is sent. A second call does nothing."""
        lane = self._lane
        if lane is None:
            return
        with lane._free:
            if self._lane is not None:
                self._lane = None
                lane._running -= 1
                lane._free.notify()
            while lane._slots and lane._slots[0].released:
                lane._slots.popleft()


class Lane:
    """The requests of one kind to one server.

    Args:
        at_once: limit at the beginning.
        grows: raise the limit by 8, up to 64, as long as that raises the rate by 5 %.
        clock: monotonic time in seconds.

    Attributes:
        limit: maximum number of requests in flight.
    """

    def __init__(self, at_once: int, *, grows: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.limit = self._usual = at_once
        self._grows = grows
        self._free = threading.Condition()
        self._running = self._waiting = 0
        self._halved = self._recovered = self._settled = 0.0
        self._since, self._bytes, self._count, self._rate = clock(), 0, 0, 0.0
        self._slots: deque[Slot] = deque()
        self._times: deque[float] = deque(maxlen=_TIMES_KEPT)

    @contextlib.contextmanager
    def slot(self, flight: Flight | None = None) -> Iterator[Slot]:
        """Wait until a request may be sent. The block holds its slot, which it may release earlier.

        Args:
            flight: the request. An urgent one is sent beyond the limit: few requests have a waiting reader.
        """
        with self._free:
            self._waiting += 1
            while self._running >= self._recover(self._clock()) and not (flight and flight.urgent):
                self._free.wait(_RECHECK_SECONDS)
                self._release_overdue()
            self._waiting -= 1
            self._running += 1
            slot = Slot(self)
            self._slots.append(slot)
        try:
            yield slot
        finally:
            slot.release()

    def _release_overdue(self) -> None:
        """Release the slots of requests that hang: a few of them would delay all others."""
        now = self._clock()
        while self._slots:
            slot = self._slots[0]
            if not slot.released and (now - slot.since < _OVERDUE or now - slot.since < self.patience):
                return
            slot.release()

    @property
    def patience(self) -> float:
        """Return the time in seconds after which a request counts as hanging: several times the usual time."""
        return max(_OVERDUE, _OVERDUE_TIMES * self.quantile(0.95))

    def _recover(self, now: float) -> int:
        """Raise a limit that was halved, by one per second; return the limit."""
        steps = int(now - self._recovered)
        if self.limit < self._usual and steps > 0:
            self.limit = min(self._usual, self.limit + steps)
            self._recovered += steps
        return self.limit

    def refused(self, begun: float) -> None:
        """Halve the limit because the server rejected a request.

        Requests that were in flight when it was last halved do not halve it again.

        Args:
            begun: monotonic time in seconds at which the request was sent.
        """
        with self._free:
            if begun >= self._halved:
                self.limit = max(_MIN_LIMIT, self.limit // 2)
                self._halved = self._recovered = self._clock()

    def answered(self, size: int, seconds: float) -> None:
        """Record a request of `size` bytes that took `seconds`."""
        with self._free:
            self._times.append(seconds)
            if not self._grows:
                return
            now = self._clock()
            self._bytes, self._count = self._bytes + size, self._count + 1
            if self._count < self.limit or now - self._since < _STEP_SECONDS:
                return
            rate = self._bytes / (now - self._since)
            self._since, self._bytes, self._count = now, 0, 0
            # The rate depends on the limit only if the limit is reached, and was not halved.
            if self._waiting and self.limit == self._usual and now - self._settled > _SETTLED_SECONDS:
                self._adapt(rate, now)
                self._free.notify_all()

    def _adapt(self, rate: float, now: float) -> None:
        """Raise the limit if the last step raised the rate, else take that step back and stop for some time."""
        if rate > _GAIN * self._rate:
            self._rate = rate
            self.limit = min(MAX_AT_ONCE, self.limit + _STEP)
        else:
            self._rate, self._settled = 0.0, now
            self.limit = max(_LARGE_AT_ONCE, self.limit - _STEP)
        self._usual = self.limit

    @property
    def all_slow(self) -> bool:
        """Return whether the last requests took twice as long as usual, so that a slow one is not an exception.

        Times below a quarter of a second vary that much by chance.
        """
        times = list(self._times)
        return len(times) > 2 * _RECENT and _median(times[-_RECENT:]) > max(_SLOW_SECONDS, 2 * _median(times))

    @property
    def is_measured(self) -> bool:
        """Return whether there were enough requests to estimate how long they take."""
        return len(self._times) >= _RECENT

    def quantile(self, share: float) -> float:
        """Return the time in seconds within which this share of the last requests ended; 0 if there were none."""
        times = sorted(self._times)
        return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0


def _median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]


class Lanes:
    """The two lanes of one server.

    Args:
        most: maximum number of requests of each lane in flight.
        clock: monotonic time in seconds.
    """

    def __init__(self, most: int = MAX_AT_ONCE, clock: Callable[[], float] = time.monotonic) -> None:
        self.small = Lane(most, grows=False, clock=clock)
        self.large = Lane(min(most, _LARGE_AT_ONCE), grows=most == MAX_AT_ONCE, clock=clock)

    def of(self, size: int) -> Lane:
        """Return the lane of requests of `size` bytes."""
        return self.small if size < SMALL else self.large
