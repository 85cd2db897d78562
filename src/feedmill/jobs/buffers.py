"""A pool of memory for large arrays, reused between batches of one shape.

Fresh memory often costs more than the work on it: the system zeroes each page on its first access. The memory of an
array returns to the pool when the last array over it is released, on any thread. It begins at a multiple of 64 bytes,
so that JAX takes it without a copy.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.kernels.native import address_of

SMALL = 1 << 16
"""Bytes below which the allocator's own reuse is good enough."""

KEPT = 512 << 20
"""Maximum number of unused bytes in the pool."""

_ALIGN = 64

_free: dict[int, deque[_Memory]] = {}  # single operations on it and on a deque are atomic


class _Memory(np.ndarray[Any, Any]):
    """The memory itself, uint8[room]. Its own type keeps numpy from taking it for the base of an array over a lease."""


class _Lease(np.ndarray[Any, Any]):
    """The owner of an array's memory, kept alive by arrays of numpy, torch and dlpack that use it.

    Making one takes a tenth of the time of an object with ``__array_interface__``, which counts for small batches.
    """

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # then the names of this module are None
            _give_back(self)


def empty(shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array as `numpy.empty` does; memory of large arrays is reused and aligned to 64 bytes."""
    kind, whole = np.dtype(dtype), tuple(shape)
    size = prod(whole) * kind.itemsize
    if size < SMALL or kind.hasobject or np.dtype(kind.str) != kind:  # a lease exposes only the short name of its dtype
        return np.empty(whole, kind)
    room = _rounded(size + _ALIGN)
    memory = _taken(room)
    if memory is None:
        memory = _Memory(room, np.uint8)
    lease = _Lease(room, np.uint8, memory)
    return np.ndarray(whole, kind, lease, -address_of(memory) % _ALIGN)


def _taken(room: int) -> _Memory | None:
    """Take memory out of the pool: of this size, else the smallest of at most twice the size, as for a last batch."""
    waiting = _free.get(room)
    if not waiting:
        larger = [size for size, several in list(_free.items()) if room < size <= 2 * room and several]
        waiting = _free.get(min(larger)) if larger else None
    try:
        return waiting.pop() if waiting else None
    except IndexError:  # another thread took the last one
        return None


def waiting() -> int:
    """Return the number of bytes in the pool."""
    return sum(size * len(each) for size, each in list(_free.items()))


def _give_back(lease: _Lease) -> None:
    memory = lease.base
    if type(memory) is not _Memory or memory.size > KEPT:  # a view of a lease has no memory of its own
        return
    if waiting() + memory.size > KEPT:  # it may have sizes that are no longer used
        _free.clear()
    _free.setdefault(memory.size, deque()).append(memory)


def _rounded(size: int) -> int:
    """Return `size` rounded up to the next of eight sizes between two powers of two."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step
