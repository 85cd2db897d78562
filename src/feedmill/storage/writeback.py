"""Files that are on their way to the disk while they are being written.

A large file is synced before it gets its name. Left to the system, most of it waits in memory for that moment, and so
does the program: a quarter of a second for a gigabyte on a fast disk, many seconds on a slow one.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
from collections.abc import Callable
from functools import cache
from typing import Any

STEP = 32 << 20
"""Bytes after which the system is asked to begin."""
_WRITE = 2  # SYNC_FILE_RANGE_WRITE: begin, and wait for nothing


class WriteBehind(io.FileIO):
    """A raw file for writing. On Linux the system starts to store its bytes while the file is still being written."""

    _begun = _waiting = 0

    def write(self, data: Any) -> int:
        """As of any raw file."""
        count = super().write(data)
        self._waiting += count
        if self._waiting >= STEP:
            _begin(self.fileno(), self._begun, self._waiting)
            self._begun, self._waiting = self._begun + self._waiting, 0
        return count


def _begin(descriptor: int, offset: int, size: int) -> None:
    call = _sync_file_range()
    if call is not None:
        call(descriptor, offset, size, _WRITE)  # what it cannot do is left to the sync at the end, which tells


@cache
def _sync_file_range() -> Callable[..., int] | None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        found = ctypes.CDLL(None).sync_file_range
        found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
        return found
    return None
