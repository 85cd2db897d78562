"""Send requests for byte ranges of objects: many at once, with retries, and a second request if one hangs (a hedge).

All reads of remote stores go through the `fetcher` of the process. It uses threads, not asyncio: an answer that
arrives at asyncio while the interpreter exits can abort the process. A store makes each single try
(`RangeClient.request_once`). Retries are decided here, and not by the client of the store, because a request that the
server rejects for the load must lower the limit of its lane.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from feedmill.allocator import keep_freed_memory
from feedmill.errors import DataError, FeedmillError
from feedmill.storage.base import Store
from feedmill.storage.fetching.lanes import MAX_AT_ONCE, SMALL, Answer, Flight, Lane, Lanes

if TYPE_CHECKING:
    from concurrent.futures import Future

    from obstore import Bytes

    from feedmill.storage.remote.errors import Reaction
    from feedmill.storage.remote.options import Patience

    Body: TypeAlias = "Bytes | bytes | memoryview"

_LARGEST_GAP = 1 << 20
_AT_ONCE = 64
_THREADS = 2 * _AT_ONCE
"""More threads than slots: a request that hangs keeps its thread, although its slot is released."""
_SMOOTHING = 0.1
"""Weight of a new measurement in the averages of latency and rate."""
_WRONG_RANGES = 3
"""Maximum number of answers with another range than the requested one before the error is raised."""
_HEDGE_SHARE, _HEDGE_FIRST = 0.05, 4
"""Hedges may be this share of all requests; this number of them is always allowed."""
_BRISK_TIMES = 4.0
"""Requests have the short time limit `BRISK` if it is this many times the usual time."""
_MAX_FLIGHTS = 4
"""Maximum number of requests for the same bytes."""
_RECHECK_SECONDS = 0.1
"""Time after which a thread that must not hedge now checks again."""

WHOLE = -1
"""End of a range that is a whole object of unknown size."""

T = TypeVar("T")

Task = Callable[[Flight], T]

Request = tuple[str, int, int]
"""Key of an object, begin, end."""


class Failed(Exception):
    """One of several requests failed.

    Attributes:
        number: its number.
        error: why it failed.
    """

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__(str(error))
        self.number, self.error = number, error


class Interrupted(BaseException):
    """A reader was closed while it waited for remote data.

    It is no `Exception`: no policy for samples that cannot be read applies to it.
    """


_stop: ContextVar[threading.Event | None] = ContextVar("stop of the reader", default=None)


@contextlib.contextmanager
def interruptible(stop: threading.Event) -> Iterator[None]:
    """Raise `Interrupted` from waits for remote data in a block, and threads with its context, once `stop` is set."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def current_stop() -> threading.Event:
    """Return the event that interrupts this context; a new one if there is none."""
    return _stop.get() or threading.Event()


def is_stopped() -> bool:
    """Return whether the reader of this context was closed."""
    stop = _stop.get()
    return stop is not None and stop.is_set()


def check_stop() -> None:
    """Raise `Interrupted` if the reader of this context was closed."""
    if is_stopped():
        raise Interrupted


def result_of(future: Future[T]) -> T:
    """Wait for a task of the fetcher; return its result, or raise its error."""
    from concurrent.futures import wait

    while not future.done():
        check_stop()
        wait([future], _RECHECK_SECONDS)
    return future.result()


class RangeClient(Store):
    """A store that the `Fetcher` requests ranges of files from. Base class of `RangeStore`.

    Attributes:
        host: scheme and server, or scheme and bucket: requests to the same host share the limits on requests in flight.
        max_in_flight: maximum number of requests to the host in flight.
        connection: number of times that the store connected again.
    """

    host: str
    max_in_flight = MAX_AT_ONCE
    connection: int

    @abstractmethod
    def request_once(self, key: str, begin: int, end: int, *, brisk: bool = False) -> Body:
        """Request a range of a file, or with the end `WHOLE` all of it, without retries. Any error may be raised.

        Args:
            brisk: use a shorter time limit, if the store can.
        """

    @abstractmethod
    def reaction_to(self, error: BaseException) -> Reaction:
        """Return what to do after an error of `request_once`."""

    @abstractmethod
    def translate(self, error: BaseException, url: str) -> FeedmillError | None:
        """Convert an error of a request to one with a fix; None if it is not about storage."""

    @abstractmethod
    def renew(self, connection: int) -> None:
        """Connect again, unless that was done since the denied request was sent: many are denied at once.

        Args:
            connection: `connection` when the request was sent.
        """

    @abstractmethod
    def patience(self) -> Patience:
        """Return how often and how long a failed request for a range is retried."""


class Fetcher:
    """Fetches ranges of objects with threads. There is one for each process; see `fetcher`.

    Args:
        clock: monotonic time in seconds, by which a request takes longer than usual.

    Attributes:
        requests, bytes: number of answers, and their bytes.
        retries: requests that were sent again after an error.
        throttled: answers 429 and 503.
        hedges: second requests that were sent because the first took far longer than usual.
        cached: bytes that did not have to be requested because the cache on disk had them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        keep_freed_memory()
        self.requests = self.bytes = self.retries = self.throttled = self.hedges = self.cached = 0
        self._latency, self._rate = 0.0, 0.0
        from concurrent.futures import ThreadPoolExecutor

        self._small = ThreadPoolExecutor(_THREADS, "feedmill-fetch")
        self._large = ThreadPoolExecutor(_THREADS, "feedmill-fetch-large")
        self._lanes: dict[str, Lanes] = {}
        self._hedging = os.environ.get("FEEDMILL_HEDGE", "").lower() not in ("0", "off", "no")

    def gap(self) -> int:
        """Return the largest gap worth bridging in bytes: what the network delivers in the time of a request."""
        return int(min(_LARGEST_GAP, SMALL + self._rate * self._latency / _AT_ONCE))

    def lane(self, store: RangeClient, size: int) -> Lane:
        """Return the lane of requests of `size` bytes to the server of a store."""
        lanes = self._lanes.get(store.host) or self._lanes.setdefault(
            store.host, Lanes(store.max_in_flight, self._clock)
        )
        return lanes.of(size)

    def fetch(self, store: RangeClient, requests: Sequence[Request]) -> list[Body]:
        """Return ranges of objects, in order. If one request fails, requests that have not begun are canceled.

        Raises:
            Failed: the first error, with the number of its request.
        """
        tasks = [self._task(store, *request) for request in requests]
        sizes = [end - begin for _, begin, end in requests]
        answers = [self.start(size, task) for size, task in zip(sizes, tasks, strict=True)]
        results = []
        try:
            for number, (answer, size, task) in enumerate(zip(answers, sizes, tasks, strict=True)):
                try:
                    results.append(self.wait(answer, self.lane(store, size), size, task))
                except Exception as error:
                    raise Failed(number, error) from error
        finally:
            for answer in answers:
                answer.cancel()
        return results

    def _task(self, store: RangeClient, key: str, begin: int, end: int) -> Task[Body]:
        return lambda flight: self.request(store, key, begin, end, flight)

    def submit(self, store: RangeClient, key: str, begin: int, end: int) -> Answer[Body]:
        """Return the future bytes of a range of an object."""
        return self.start(end - begin, self._task(store, key, begin, end))

    def start(self, size: int, task: Task[T]) -> Answer[T]:
        """Start a task that requests `size` bytes, and return its future result.

        Args:
            task: called with the `Flight` of its request.
        """
        answer: Answer[T] = Answer()
        self._send(answer, size, task)
        return answer

    def _send(self, answer: Answer[T], size: int, task: Task[T], *, urgent: bool = False) -> None:
        flight = Flight(urgent=urgent, clock=self._clock)
        answer.add(flight, self.run(size, task, flight))

    def run(self, size: int, task: Callable[..., T], *arguments: Any) -> Future[T]:
        """Run a task that requests `size` bytes in a thread of the fetcher."""
        return (self._small if size < SMALL else self._large).submit(task, *arguments)

    def wait(self, answer: Answer[T], lane: Lane, size: int, again: Task[T]) -> T:
        """Wait for an answer, and send a second request if the last one takes far longer than usual.

        Args:
            lane: lane of its requests.
            size: bytes of its requests.
            again: requests the same bytes.
        """
        if answer.done():
            return answer.result()
        answer.flights[0].urgent = True
        with waiting():
            from concurrent.futures import wait

            while not answer.done():
                if is_stopped():
                    answer.cancel()
                    raise Interrupted
                patience = lane.patience
                since = answer.flights[-1].since  # None: it waits for a slot, so it is not slow itself
                left = patience if since is None else since + patience - self._clock()
                if left <= 0 and self._may_hedge(lane, answer):
                    self.hedges += 1
                    self._send(answer, size, again, urgent=True)
                else:
                    wait([answer], _RECHECK_SECONDS)
            return answer.result()

    def _may_hedge(self, lane: Lane, answer: Answer[T]) -> bool:
        # While everything takes long, a second request would make it worse.
        allowed = self._hedging and self.hedges < max(_HEDGE_FIRST, _HEDGE_SHARE * self.requests)
        return allowed and len(answer.flights) < _MAX_FLIGHTS and not lane.all_slow

    def request(self, store: RangeClient, key: str, begin: int, end: int, flight: Flight | None = None) -> Body:
        """Request a range or a whole object, with retries.

        Args:
            flight: records each try; once it is dropped, there are no further retries.

        Raises:
            DataError: the object was replaced since the store first read it.
            Exception: the last error of the store's client.
        """
        lane, began = self.lane(store, end - begin), self._clock()
        flight = Flight(clock=self._clock) if flight is None else flight
        tries = wrong = 0
        renewed = False
        from feedmill.storage.remote.errors import Reaction

        while True:
            brisk = not tries and self._is_brisk(lane, end - begin)
            connection, sent = store.connection, began
            try:
                with lane.slot(flight) as slot:
                    sent = self._clock()
                    flight.begin(slot)
                    try:
                        data = store.request_once(key, begin, end, brisk=brisk)
                    finally:
                        flight.end()
                ignored = flight.dropped or end == WHOLE  # a whole object has any size, so its time is no measure
                self._measure(lane, len(data), self._clock() - sent, ignored=ignored)
                return data
            except FeedmillError:
                raise
            except Exception as error:
                tries += 1
                reaction = store.reaction_to(error)
                if reaction is Reaction.THROTTLED:
                    self.throttled += 1
                    lane.refused(sent)
                if reaction is Reaction.WRONG_RANGE:
                    wrong += 1
                    if wrong == _WRONG_RANGES:
                        raise
                elif reaction is Reaction.DENIED and not renewed:
                    renewed = True  # a token may have expired
                    store.renew(connection)
                elif reaction in (Reaction.THROTTLED, Reaction.AGAIN):
                    self._pause(store, tries, self._clock() - began, error, flight)
                else:
                    raise
                check_stop()
                if ending() or flight.dropped:
                    raise
                self.retries += 1

    @staticmethod
    def _is_brisk(lane: Lane, size: int) -> bool:
        """Return whether a request gets the short time limit `BRISK`, because others take a small part of it."""
        from feedmill.storage.remote.options import BRISK

        return size >= SMALL and lane.is_measured and _BRISK_TIMES * lane.quantile(0.95) < BRISK

    @staticmethod
    def _pause(store: RangeClient, tries: int, seconds: float, error: Exception, flight: Flight) -> None:
        """Wait before the next try, which `flight` may cancel; raise the error if there is none left."""
        patience = store.patience()
        if tries > patience.tries or seconds > patience.seconds:
            raise error
        longest = min(patience.longest_pause, patience.first_pause * 2 ** min(tries, 16))
        import random

        until = time.monotonic() + random.SystemRandom().uniform(0, longest)
        while (left := until - time.monotonic()) > 0 and not (ending() or flight.dropped or is_stopped()):
            time.sleep(min(left, _RECHECK_SECONDS))

    def _measure(self, lane: Lane, size: int, seconds: float, *, ignored: bool = False) -> None:
        """Count a request, and unless it is `ignored`, update the times of its lane and the averages."""
        self.requests += 1
        self.bytes += size
        if ignored:
            return
        lane.answered(size, seconds)
        if size < SMALL:
            self._latency += _SMOOTHING * (seconds - self._latency)
        elif seconds > self._latency:
            self._rate += _SMOOTHING * (size / (seconds - self._latency) - self._rate)


_waited = threading.local()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Count the time of a block as time spent waiting for remote data; see `waited`."""
    began = time.perf_counter()
    try:
        yield
    finally:
        _waited.seconds = waited() + time.perf_counter() - began


def waited() -> float:
    """Return the seconds that this thread has waited for remote data."""
    return getattr(_waited, "seconds", 0.0)


def ending() -> bool:
    """Return whether the interpreter is about to exit: it waits for all threads, so they must end."""
    return bool(getattr(threading, "_SHUTTING_DOWN", False)) or not threading.main_thread().is_alive()


def replaced(file: str) -> DataError:
    """Return the error for an object that was replaced since it was first read."""
    return DataError(
        "the object was replaced while the dataset was open: its version (ETag) differs",
        file=file,
        kind="changed",
        fix="Open the dataset again once no process writes to it.",
    )


_lock = threading.Lock()
_fetchers: list[Fetcher] = []


def counters() -> dict[str, int]:
    """Return the counters of the `Fetcher` of this process, as ``fetch_<name>``; all 0 without requests."""
    names = ("requests", "bytes", "cached", "retries", "throttled", "hedges")
    return {f"fetch_{name}": getattr(_fetchers[0], name) if _fetchers else 0 for name in names}


def fetcher() -> Fetcher:
    """Return the fetcher of this process. It starts threads on demand."""
    with _lock:
        if not _fetchers:
            _fetchers.append(Fetcher())
        return _fetchers[0]
