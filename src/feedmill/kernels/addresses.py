"""Where the data of an array begins in memory, without the price of ``__array_interface__``.

That property builds a dictionary with a description of the type, which takes 2 to 4 us. A kernel call asks once for
each array, so a batch of tokens spent a tenth of its time there. The address is the first field after the head of
numpy's array objects, as its C interface promises. It is compared with the property on import.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

_HEAD = object.__basicsize__
_at = ctypes.c_size_t.from_address


def field(array: npt.NDArray[Any]) -> int:
    """Return the first field."""
    return _at(id(array) + _HEAD).value


def _property(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _chosen() -> Callable[[npt.NDArray[Any]], int]:
    """Return the fast function if its results are right in this interpreter, else the property."""
    if sys.implementation.name != "cpython":  # an id is an address only there
        return _property
    flat = np.zeros(64, np.uint8)
    own: npt.NDArray[Any] = flat.view(type("Own", (np.ndarray,), {}))
    arrays: tuple[npt.NDArray[Any], ...] = (flat, flat[3:], flat.reshape(8, 8)[1:, ::2], np.zeros((2, 3)), own)
    return field if all(field(array) == _property(array) for array in arrays) else _property


of = _chosen()
"""Return the address of the first element of an array. The array must be kept alive while the address is used."""
