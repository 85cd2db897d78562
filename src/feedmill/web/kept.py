"""What was made for an address and is the same for every visitor: kept, up to a number of entries. Thread-safe."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class Kept:
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
