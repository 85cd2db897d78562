"""Results that pages share: kept for the next visitor, or made in a thread while pages show that this takes time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from feedmill.errors import FeedmillError, defect_of


class RecentResults:
    """The results of functions that were used last, by key.

    Args:
        most: number of results that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, key: Hashable, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of this key, or make it. Two threads may both make it."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        made = make(*arguments)
        with self._lock:
            self._found[key] = made
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        return made


T = TypeVar("T")
PATIENCE = 0.3
"""Seconds that a page waits for the result."""
_starting = threading.Lock()


class Behind(Generic[T]):
    """A result that a thread makes.

    Args:
        make: the function.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: T | None = None
        self._error: FeedmillError | None = None
        self._begin, self._ended = time.monotonic(), threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._made = self._make()
        except FeedmillError as error:
            self._error = error
        except Exception as error:  # a thread has nobody else to tell
            self._error = defect_of(error)
        finally:
            self._ended.set()

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._begin

    def result(self, *, wait: bool = False, share: float = 1.0) -> T | None:
        """Return the result; None if it is not there after this share of `PATIENCE`, unless `wait` is set.

        Raises:
            FeedmillError: the error of the function.
        """
        self._ended.wait(None if wait else share * PATIENCE)
        if self._error is not None:
            raise self._error
        return self._made


def behind(holder: Any, name: str, make: Callable[[], T]) -> Behind[T]:
    """Return the result that an object holds under a name; the first call begins to make it."""
    with _starting:
        known: Behind[T] | None = holder.__dict__.get(name)
        if known is None:
            known = holder.__dict__[name] = Behind(make)
    return known
