"""How many requests to one server are in flight at once, and how long they usually take.

A server has two lanes: small requests wait for its latency, large ones share its bandwidth. A lane is halved when the
server refuses a request because of the load (429, 503), and comes back by one a second.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator

from feedmill.storage.fetching.flights import Flight

SMALL = 256 << 10
"""Requests of fewer bytes are bound by latency."""
_LARGE_AT_ONCE, MOST = 16, 64
_LEAST = 4
_STEP, _STEP_SECONDS, _SETTLED_SECONDS = 8, 0.25, 30.0
_GAIN = 1.05
_KEPT, _LAST, _LONG = 256, 8, 0.25
_OVERDUE, _OVERDUE_TIMES = 1.0, 4.0
_LOOK = 0.25
"""Seconds after which a request that waits for its turn looks whether others hang."""


class Slot:
    """The place of one request among those in flight."""

    __slots__ = ("_lane", "since")

    def __init__(self, lane: Lane) -> None:
        self._lane: Lane | None = lane
        self.since = time.monotonic()

    @property
    def released(self) -> bool:
        return self._lane is None

    def release(self) -> None:
        """Let another request be sent. A second call does nothing."""
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
        at_once: requests in flight at first.
        grows: raise the limit by 8, up to 64, as long as that raises the rate by 5 %.

    Attributes:
        limit: requests in flight at most.
    """

    def __init__(self, at_once: int, *, grows: bool) -> None:
        self.limit = self._usual = at_once
        self._grows = grows
        self._free = threading.Condition()
        self._running = self._waiting = 0
        self._halved = self._recovered = self._settled = 0.0
        self._since, self._bytes, self._count, self._rate = time.monotonic(), 0, 0, 0.0
        self._slots: deque[Slot] = deque()
        self._times: deque[float] = deque(maxlen=_KEPT)

    @contextlib.contextmanager
    def slot(self, flight: Flight | None = None) -> Iterator[Slot]:
        """Wait until a request may be sent. The block has its place, which it may release before its end.

        Args:
            flight: of the request. While it is urgent, it is sent beyond the limit: those that wait are few.
        """
        with self._free:
            self._waiting += 1
            while self._running >= self._recover(time.monotonic()) and not (flight and flight.urgent):
                self._free.wait(_LOOK)
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
        """Release the places of requests that hang: a few of them would hold up all others."""
        now = time.monotonic()
        while self._slots:
            slot = self._slots[0]
            if not slot.released and (now - slot.since < _OVERDUE or now - slot.since < self.patience):
                return
            slot.release()

    @property
    def patience(self) -> float:
        """Return the seconds after which a request hangs: far more than usual."""
        return max(_OVERDUE, _OVERDUE_TIMES * self.usual(0.95))

    def _recover(self, now: float) -> int:
        steps = int(now - self._recovered)
        if self.limit < self._usual and steps > 0:
            self.limit = min(self._usual, self.limit + steps)
            self._recovered += steps
        return self.limit

    def refused(self, begun: float) -> None:
        """Halve the limit, once for all requests that were in flight when the server first refused one."""
        with self._free:
            if begun >= self._halved:
                self.limit = max(_LEAST, self.limit // 2)
                self._halved = self._recovered = time.monotonic()

    def answered(self, size: int, seconds: float) -> None:
        """Note a request of `size` bytes that took `seconds`."""
        with self._free:
            self._times.append(seconds)
            if not self._grows:
                return
            now = time.monotonic()
            self._bytes, self._count = self._bytes + size, self._count + 1
            if self._count < self.limit or now - self._since < _STEP_SECONDS:
                return
            rate = self._bytes / (now - self._since)
            self._since, self._bytes, self._count = now, 0, 0
            # Below the limit, or below the usual limit after a refusal, the rate says nothing about the limit.
            if self._waiting and self.limit == self._usual and now - self._settled > _SETTLED_SECONDS:
                self._adapt(rate, now)
                self._free.notify_all()

    def _adapt(self, rate: float, now: float) -> None:
        if rate > _GAIN * self._rate:
            self._rate = rate
            self.limit = min(MOST, self.limit + _STEP)
        else:
            self._rate, self._settled = 0.0, now
            self.limit = max(_LARGE_AT_ONCE, self.limit - _STEP)
        self._usual = self.limit

    @property
    def all_slow(self) -> bool:
        """Return whether the last requests took twice as long as usual: then one that takes long is no exception.

        Times of less than a quarter of a second vary that much by themselves.
        """
        times = list(self._times)
        return len(times) > 2 * _LAST and _middle(times[-_LAST:]) > max(_LONG, 2 * _middle(times))

    @property
    def known(self) -> bool:
        """Return whether there were enough requests to know how long they take."""
        return len(self._times) >= _LAST

    def usual(self, share: float) -> float:
        """Return the seconds that this share of the last requests took at most; 0 if there were none."""
        times = sorted(self._times)
        return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0


def _middle(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]


class Lanes:
    """The two lanes of one server.

    Args:
        most: requests of each lane in flight at most.
    """

    def __init__(self, most: int = MOST) -> None:
        self.small = Lane(most, grows=False)
        self.large = Lane(min(most, _LARGE_AT_ONCE), grows=most == MOST)

    def of(self, size: int) -> Lane:
        """Return the lane of requests of `size` bytes."""
        return self.small if size < SMALL else self.large
