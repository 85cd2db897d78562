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

SMALL = 1 << 16
"""Bytes below which the allocator's own reuse is good enough."""

KEPT = 128 << 20
"""Maximum number of unused bytes in the pool."""

_ALIGN = 64

_free: dict[int, deque[npt.NDArray[np.uint8]]] = {}  # single operations on it and on a deque are atomic


class _Lease:
    """The owner of an array's memory, kept alive by arrays of numpy, torch and dlpack that use it."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        address = memory.__array_interface__["data"][0]
        begin = -address % _ALIGN
        self._memory = memory
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (address + begin, False),
        }

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # then the names of this module are None
            _give_back(self._memory)


def empty(shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array as `numpy.empty` does; memory of large arrays is reused and aligned to 64 bytes."""
    kind, whole = np.dtype(dtype), tuple(shape)
    size = prod(whole) * kind.itemsize
    if size < SMALL or kind.hasobject or np.dtype(kind.str) != kind:  # a lease exposes only the short name of its dtype
        return np.empty(whole, kind)
    room = _rounded(size + _ALIGN)
    waiting = _free.get(room)
    try:
        memory = waiting.pop() if waiting is not None else np.empty(room, np.uint8)
    except IndexError:
        memory = np.empty(room, np.uint8)
    return np.asarray(_Lease(memory, whole, kind))


def waiting() -> int:
    """Return the number of bytes in the pool."""
    return sum(size * len(each) for size, each in list(_free.items()))


def _give_back(memory: npt.NDArray[np.uint8]) -> None:
    size = len(memory)
    if size > KEPT:
        return
    if waiting() + size > KEPT:  # it may have sizes that are no longer used
        _free.clear()
    _free.setdefault(size, deque()).append(memory)


def _rounded(size: int) -> int:
    """Return `size` rounded up to the next of eight sizes between two powers of two."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step
