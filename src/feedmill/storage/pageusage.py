"""What the processes on one page cache share: the bytes in use, and which runs are alive.

The file has a header, a counter of bytes, and a table of tokens. A process that plans its reads takes a slot of the
table, writes a random token into it and keeps its byte locked. The token is in the page records that it plans. Once the
process is dead, its slot is not locked, and its plans no longer count.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import threading

import numpy as np
import numpy.typing as npt

from feedmill.storage.pagelocks import is_locked, locked, set_lock

SLOTS = 1024
_MAGIC = b"FMUSAGE\2"
_LENGTH = 8192
_COUNTER_AT, _EVICTIONS_AT, _TABLE_AT = 16, 24, 4096
_COUNT_LOCK, _SLOT_LOCKS = 1 << 40, 2 << 40


class Usage:
    """The shared counters of a cache.

    Attributes:
        fresh: whether the counter was made by this object, and starts at 0.
    """

    def __init__(self, fd: int) -> None:
        """Use the file of a descriptor, which this object closes; it is made again if damaged. Raises OSError."""
        self._fd = fd
        self._thread_lock = threading.Lock()
        with locked(fd, _COUNT_LOCK):
            self.fresh = os.pread(fd, 8, 0) != _MAGIC or os.fstat(fd).st_size != _LENGTH
            if self.fresh:
                if os.fstat(fd).st_size > _LENGTH:
                    os.ftruncate(fd, _LENGTH)
                os.posix_fallocate(fd, 0, _LENGTH)
                os.pwrite(fd, bytes(_LENGTH), 0)
                os.pwrite(fd, _MAGIC, 0)
        self._mmap = mmap.mmap(fd, _LENGTH)
        self._counter: npt.NDArray[np.int64] = np.frombuffer(self._mmap, np.int64, 1, _COUNTER_AT)
        self._evictions: npt.NDArray[np.int64] = np.frombuffer(self._mmap, np.int64, 1, _EVICTIONS_AT)
        self._tokens: npt.NDArray[np.uint32] = np.frombuffer(self._mmap, np.uint32, SLOTS, _TABLE_AT)
        self._token = 0

    @property
    def bytes(self) -> int:
        """Bytes in use by all objects of the cache."""
        return max(0, int(self._counter[0]))

    def add(self, change: int) -> None:
        """Change the number of bytes in use."""
        if change:
            with locked(self._fd, _COUNT_LOCK):
                self._counter[0] += change

    @property
    def evictions(self) -> int:
        """A number that grows before any page of the cache is evicted.

        As long as it is the same, pages that were present still are, and their bytes may be read from the file.
        """
        return int(self._evictions[0])

    def evicting(self) -> None:
        """Say that pages are about to be evicted."""
        with locked(self._fd, _COUNT_LOCK):
            self._evictions[0] += 1

    def correct(self, value: int, seen: int) -> None:
        """Set the number of bytes in use to a count that began when the number was `seen`."""
        with locked(self._fd, _COUNT_LOCK):
            self._counter[0] += value - seen

    def token(self) -> int:
        """Return the token of this process; 0 if all slots are taken."""
        with self._thread_lock:
            if not self._token:
                for slot in range(SLOTS):
                    if set_lock(self._fd, fcntl.F_WRLCK, _SLOT_LOCKS + slot, 1):
                        self._token = secrets.randbelow((1 << 32) - 1) + 1
                        self._tokens[slot] = self._token
                        break
            return self._token

    def live(self) -> npt.NDArray[np.uint32]:
        """Return the tokens of the processes that are alive."""
        alive = [s for s in np.flatnonzero(self._tokens).tolist() if is_locked(self._fd, _SLOT_LOCKS + s, 1)]
        return np.append(self._tokens[alive], np.uint32(self._token or 0)).astype(np.uint32)

    def close(self) -> None:
        """Close the file; this process no longer has plans."""
        set_lock(self._fd, fcntl.F_UNLCK, 0, 1 << 62)  # the mapping keeps a copy of the descriptor
        os.close(self._fd)
