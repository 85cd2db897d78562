"""Decide which byte ranges of objects are requested together, and when each request is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill.storage.cache.pages import Pages
from feedmill.storage.fetching.ranges import OFFSET_BITS, TARGET, Requests

Int64s = npt.NDArray[np.int64]


class Needed(NamedTuple):
    """Requests, and when they are needed.

    Attributes:
        begins, ends: int64[n], as in `Requests`.
        soonest, latest: int64[n], the first and the last step that needs each.
    """

    begins: Int64s
    ends: Int64s
    soonest: Int64s
    latest: Int64s

    @property
    def size(self) -> int:
        """Return the bytes of all requests."""
        return int((self.ends - self.begins).sum())


def objects(pages: Sequence[Pages | None], low: Int64s) -> Iterator[tuple[Pages, int, int, int]]:
    """Yield the cached pages of each object with bytes, the number of its first byte, and the rows of its ranges.

    Args:
        pages: by the number of the object.
        low: int64[n], ascending, begins of ranges with the number of the object in the bits above `OFFSET_BITS`.
    """
    numbers, firsts = np.unique(low >> OFFSET_BITS, return_index=True)
    for number, start, stop in zip(numbers.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(low)], strict=True):
        cached = pages[number]
        if cached is not None and cached.size:
            yield cached, number << OFFSET_BITS, start, stop


def needed(requests: Requests, steps: Int64s, last: int) -> Needed:
    """Return the requests that a step up to `last` needs.

    Args:
        steps: int64[n], the steps of the ranges from which the requests were made.
    """
    soonest, latest = (extreme.reduceat(steps, requests.first) for extreme in (np.minimum, np.maximum))
    now = soonest <= last
    return Needed(requests.begins[now], requests.ends[now], soonest[now], latest[now])


Chunk = tuple[int, int, int, int]
"""A request for a part of an object: begin, end, and the first and the last step that needs it."""


def chunks(begins: Int64s, ends: Int64s, steps: Int64s, size: int) -> list[Chunk]:
    """Cut an object into chunks of `TARGET` bytes. A chunk is longer if a range that begins in it ends later.

    Args:
        begins, ends, steps: int64[n], ranges of the object, ascending by begin, and the step that needs each.
        size: bytes of the object.
    """
    last = int(steps.max())
    found = {begin: (begin, min(begin + TARGET, size), last, last) for begin in range(0, size, TARGET)}
    numbers, first = np.unique(begins // TARGET, return_index=True)
    columns = [
        extreme.reduceat(values, first).tolist()
        for extreme, values in ((np.maximum, ends), (np.minimum, steps), (np.maximum, steps))
    ]
    for number, reached, soonest, latest in zip(numbers.tolist(), *columns, strict=True):
        begin = number * TARGET
        if begin < size:
            found[begin] = (begin, min(max(found[begin][1], reached), size), soonest, latest)
    return list(found.values())
