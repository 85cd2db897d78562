"""Requests for byte ranges of objects: many at once, tried again where that helps, asked twice where one hangs.

Threads, not asyncio: an answer that arrives at asyncio while the interpreter exits can abort the process. The store
makes each try; this module decides about further ones, because it has to know when a server refuses requests because
of the load.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

from feedmill.errors import DataError, FeedmillError
from feedmill.storage.answers import Reaction
from feedmill.storage.lanes import SMALL, Lane, Lanes

if TYPE_CHECKING:
    from feedmill.storage.range_store import Answer, RangeStore

_FAR = 1 << 20
_THREADS = 64
_SMOOTHING = 0.1
_WRONG_RANGES = 3
"""Requests that are made until an answer has the range that was asked for."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_HEDGE_AFTER, _HEDGE_TIMES, _HEDGE_SHARE = 1.0, 4.0, 0.05

WHOLE = -1
"""End of a range that is a whole object, whatever its size."""

T = TypeVar("T")

Request = tuple[str, int, int]
"""Key of an object, begin, end."""


class Failed(Exception):
    """A request failed: its number, and the error."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__(str(error))
        self.number, self.error = number, error


class Fetcher:
    """Fetches ranges of objects with threads. One for each process, see `fetcher`.

    Attributes:
        requests, bytes: answered so far.
        retries: requests that were made again after an error.
        throttled: answers 429 and 503.
        hedges: requests that were made a second time because the first took far longer than usual.
        cached: bytes that the cache on disk had when they were to be requested.
    """

    def __init__(self) -> None:
        self.requests = self.bytes = self.retries = self.throttled = self.hedges = self.cached = 0
        self._latency, self._rate = 0.0, 0.0
        self._small = ThreadPoolExecutor(_THREADS, "feedmill-fetch")
        self._large = ThreadPoolExecutor(_THREADS, "feedmill-fetch-large")
        self._lanes: dict[str, Lanes] = {}
        self._hedging = os.environ.get("FEEDMILL_HEDGE", "").lower() not in ("0", "off", "no")

    def gap(self) -> int:
        """Return the largest gap worth bridging: what the network delivers while a request waits for its turn."""
        return int(min(_FAR, SMALL + self._rate * self._latency / _THREADS))

    def lane(self, store: RangeStore, size: int) -> Lane:
        """Return the lane of requests of `size` bytes to the server of a store."""
        lanes = self._lanes.get(store.host) or self._lanes.setdefault(store.host, Lanes(store.at_once))
        return lanes.of(size)

    def fetch(self, store: RangeStore, requests: Sequence[Request]) -> list[Answer]:
        """Return ranges of objects, in order. If one request fails, those that have not begun are cancelled.

        Raises:
            Failed: the first error, with the number of its request.
        """
        futures = [self.submit(store, *request) for request in requests]
        found = []
        try:
            for number, (future, request) in enumerate(zip(futures, requests, strict=True)):
                try:
                    found.append(self.answer(future, store, *request))
                except Exception as error:
                    raise Failed(number, error) from error
        finally:
            for future in futures:
                future.cancel()
        return found

    def submit(
        self, store: RangeStore, key: str, begin: int, end: int, wanted: Callable[[], bool] | None = None
    ) -> Future[Answer]:
        """Return the future bytes of a range of an object; `wanted` as for `request`."""
        return self.run(end - begin, self.request, store, key, begin, end, wanted)

    def run(self, size: int, task: Callable[..., T], *arguments: Any) -> Future[T]:
        """Run a task that requests `size` bytes in a thread of the fetcher."""
        return (self._small if size < SMALL else self._large).submit(task, *arguments)

    def answer(
        self,
        future: Future[T],
        store: RangeStore,
        key: str,
        begin: int,
        end: int,
        sent: Callable[[], bool] = lambda: True,
    ) -> T | Answer:
        """Wait for the answer to a request, and make it a second time if it takes far longer than usual.

        Args:
            sent: whether a request of this process is in flight for it.
        """
        lane = self.lane(store, end - begin)
        while self._hedging and not future.done():
            patience = max(_HEDGE_AFTER, _HEDGE_TIMES * lane.usual(0.95))
            if not wait([future], patience).not_done:
                break
            # While everything takes long, a second request would make it worse; one that is queued has not been slow.
            allowed = self.hedges + 1 <= max(1.0, _HEDGE_SHARE * self.requests) and not lane.all_slow
            if future.running() and sent() and allowed:
                self.hedges += 1
                second: Future[Any] = self.submit(store, key, begin, end)
                done, other = wait([future, second], return_when=FIRST_COMPLETED)
                first = done.pop()
                for each in other:
                    each.cancel()
                best: Future[Any] = first if not first.exception() or not other else other.pop()
                answer: T | Answer = best.result()
                return answer
        return future.result()

    def request(
        self, store: RangeStore, key: str, begin: int, end: int, wanted: Callable[[], bool] | None = None
    ) -> Answer:
        """Request a range, or a whole object, until it is answered, or until trying again is of no use.

        Args:
            wanted: whether the answer is still wanted, asked before each further try; always if None.

        Raises:
            DataError: the object was replaced since the store first read it.
            Exception: the last error of the store's client.
        """
        lane, began = self.lane(store, end - begin), time.monotonic()
        tries = wrong = 0
        renewed = False
        while True:
            try:
                with lane.slot() as sent:
                    data = store.request_once(key, begin, end)
                self._measure(lane, len(data), time.monotonic() - sent, whole=end == WHOLE)
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
                    renewed = True  # a token may have expired: the provider is asked for another
                    store.renew()
                elif reaction in (Reaction.THROTTLED, Reaction.AGAIN):
                    self._pause(store, tries, time.monotonic() - began, error)
                else:
                    raise
                if ending() or not (wanted is None or wanted()):
                    raise
                self.retries += 1

    @staticmethod
    def _pause(store: RangeStore, tries: int, seconds: float, error: Exception) -> None:
        """Wait before the next try, or raise the error if there were enough."""
        patience = store.patience()
        if tries > patience.tries or seconds > patience.seconds:
            raise error
        longest = min(patience.longest_pause, patience.first_pause * 2 ** min(tries, 16))
        time.sleep(random.uniform(0, longest))

    def _measure(self, lane: Lane, size: int, seconds: float, *, whole: bool = False) -> None:
        self.requests += 1
        self.bytes += size
        if whole:  # of any size: says nothing about others
            return
        lane.answered(size, seconds)
        if size < SMALL:
            self._latency += _SMOOTHING * (seconds - self._latency)
        elif seconds > self._latency:
            self._rate += _SMOOTHING * (size / (seconds - self._latency) - self._rate)


def ending() -> bool:
    """Return whether the interpreter is about to exit: it waits for threads, which should end then."""
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
    """Return the counters of this process: requests for ranges and what became of them; all 0 without requests."""
    names = ("requests", "bytes", "cached", "retries", "throttled", "hedges")
    return {f"fetch_{name}": getattr(_fetchers[0], name) if _fetchers else 0 for name in names}


def fetcher() -> Fetcher:
    """Return the fetcher of this process; its threads start when they are needed."""
    with _lock:
        if not _fetchers:
            _fetchers.append(Fetcher())
        return _fetchers[0]
