"""When the pages of cached objects are read next, by the plan of one reader (`PlannedUses`): what evictions go by."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from feedmill.storage.cache.page_eviction import soonest_uses
from feedmill.storage.cache.pages import PAGE, Pages
from feedmill.storage.fetching.needed import objects

Int64s = npt.NDArray[np.int64]


class PlannedUses:
    """Records the uses of pages for `ReadAhead`: that of now, and once its step is done, the next one. Thread-safe.

    Args:
        shared: whether other readers use the same pages at about the same time: a page is then kept for them until the
            steps of the following call are done, too.
    """

    def __init__(self, shared: bool = False) -> None:
        self._lock, self._shared = threading.Lock(), shared
        self._later: deque[tuple[int, list[tuple[Pages, Int64s, Int64s]], int]] = deque()

    def plan(
        self,
        pages: Sequence[Pages | None],
        low: Int64s,
        high: Int64s,
        now: Int64s,
        later: Int64s,
        current: npt.NDArray[np.bool_],
        last: int,
    ) -> None:
        """Record when ranges are read: now, and by `done` of the step `last`, when they are read next.

        Args:
            pages, low: as for `objects`; `high` has the ends.
            now, later: int64[n], positions of the plan.
            current: bool[n], ranges of steps up to `last`.
        """
        known = list(objects(pages, low))
        limit = np.zeros(len(low), np.int64)
        for cached, base, start, stop in known:
            limit[start:stop] = base + cached.size
        high = np.minimum(high, limit)
        for cached, numbers, uses in _by_object(known, *soonest_uses(low, high, now)):
            cached.plan_uses(numbers, uses)
        if current.any():
            found = list(_by_object(known, *soonest_uses(low[current], high[current], later[current])))
            with self._lock:
                self._later.append((last, found, int(now[current].max())))

    def done(self, step: int, *, closed: bool = False) -> None:
        """Record the next uses of pages whose step is done; with `closed`, no step follows."""
        following = int(self._shared and not closed)
        while True:
            with self._lock:
                if len(self._later) <= following or self._later[following][0] > step:
                    return
                _, found, until = self._later.popleft()
            for cached, numbers, uses in found:
                cached.plan_uses(numbers, uses, until=until)


def _by_object(
    known: Sequence[tuple[Pages, int, int, int]], pages: Int64s, uses: Int64s
) -> Iterator[tuple[Pages, Int64s, Int64s]]:
    """Yield each object of `objects` with the numbers of its pages and their uses, from those of all objects."""
    bases = np.asarray([base for _, base, _, _ in known], np.int64) // PAGE
    cuts = [*np.searchsorted(pages, bases).tolist(), len(pages)]
    for (cached, *_), base, a, b in zip(known, bases.tolist(), cuts[:-1], cuts[1:], strict=True):
        yield cached, pages[a:b] - base, uses[a:b]
