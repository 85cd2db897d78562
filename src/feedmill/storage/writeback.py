"""Start write-back early: large files go to the disk while they are still being written.

A large file is synced before it gets its final name. Without early write-back most of it is still in memory then, and
the sync takes a quarter of a second for a gigabyte on a fast disk, and many seconds on a slow one.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from feedmill.storage.os_errors import storage_error

if TYPE_CHECKING:
    from pathlib import Path

STEP = 32 << 20
"""Number of bytes after which write-back is started."""
_WRITE = 2  # SYNC_FILE_RANGE_WRITE: start, without waiting


class WriteBehind(io.FileIO):
    """A raw file for writing. On Linux, write-back starts while the file is still being written."""

    _begun = _waiting = 0

    def write(self, data: Any) -> int:
        """Write bytes; return their number. Raises `OSError`."""
        count = super().write(data)
        self._waiting += count
        if self._waiting >= STEP:
            start_writing(self.fileno(), self._begun, self._waiting)
            self._begun, self._waiting = self._begun + self._waiting, 0
        return count


class NamedWriteBehind(WriteBehind):
    """A raw file for writing, whose errors have the final name instead of the temporary one."""

    def __init__(self, temporary: Path, final: str) -> None:
        super().__init__(temporary, "w")
        self._final = final

    def write(self, data: Any) -> int:
        """Write bytes. Raises `StorageError`."""
        try:
            return super().write(data)
        except OSError as error:
            raise storage_error(error, self._final) from None


def start_writing(descriptor: int, offset: int = 0, size: int = 0) -> None:
    """Start write-back of a range of a file, by default of all of it."""
    call = _sync_file_range()
    if call is not None:
        call(descriptor, offset, size, _WRITE)  # errors are ignored: the sync at the end reports them


@cache
def _sync_file_range() -> Callable[..., int] | None:
    """Return ``sync_file_range`` of the C library; None if the system has none."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        function = ctypes.CDLL(None).sync_file_range
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
        return function
    return None
