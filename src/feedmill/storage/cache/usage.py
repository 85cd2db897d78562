"""What the processes on one page cache share: the bytes in use, and which runs are alive.

The file has a header, a counter of bytes, and a table of processes. A process takes a slot of the table, writes a
random token into it and keeps its byte locked. The token is in the records of the pages that it plans to read; beside
it are the bytes that it has *reserved*: room for what it is writing, and what it evicts until the file system has it
back. Once the process is dead, its slot is not locked, and neither its plans nor what it had reserved counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import threading
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from feedmill.storage.cache.page_locks import is_locked, locked, set_lock

SLOTS = 1024
_MAGIC = b"FMUSAGE\3"
_LENGTH = 16384
_COUNTER_AT, _EVICTIONS_AT, _TABLE_AT, _RESERVED_AT = 16, 24, 4096, 8192
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
        self._reserved: npt.NDArray[np.int64] = np.frombuffer(self._mmap, np.int64, SLOTS, _RESERVED_AT)
        self._slot: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the pages that are present."""
        return max(0, int(self._counter[0]))

    @property
    def taken(self) -> int:
        """Bytes of the pages that are present, and what living processes have reserved."""
        slots = np.flatnonzero(self._reserved.copy()).tolist()  # others change it
        return self.bytes + sum(int(self._reserved[slot]) for slot in slots if self._is_alive(slot))

    def reserve(self, size: int, limit: Callable[[], int]) -> bool:
        """Reserve bytes unless more than `limit` would be in use; return whether they are reserved.

        The limit is asked for under the lock: after it was lowered, a call with 0 bytes finds all that was reserved
        under the old one.
        """
        slot = self._own_slot()
        if slot is None:
            return False
        with locked(self._fd, _COUNT_LOCK):
            fits = self.taken + size <= limit()
            if fits:
                self._reserved[slot] += size
        return fits

    def release(self, size: int) -> None:
        """Give back reserved bytes that were not stored, or that the file system has back."""
        if size and self._slot is not None:
            with locked(self._fd, _COUNT_LOCK):
                self._reserved[self._slot] -= size

    @contextlib.contextmanager
    def storing(self, size: int) -> Iterator[None]:
        """Count reserved bytes as present; the block sets their pages to present.

        A process that is killed in the block leaves a count that is too high, which `counting` corrects; one that is
        too low would let the cache grow.
        """
        with locked(self._fd, _COUNT_LOCK):
            self._counter[0] += size
            yield
            self._reserved[self._slot] -= size

    @contextlib.contextmanager
    def freeing(self) -> Iterator[list[int]]:
        """Count bytes as no longer present, but as reserved until `release`; the block sets their pages to missing.

        The block puts the bytes into the list that it gets.
        """
        sizes: list[int] = []
        slot = self._own_slot()
        with locked(self._fd, _COUNT_LOCK):
            yield sizes
            if slot is not None:
                self._reserved[slot] += sum(sizes)
            self._counter[0] -= sum(sizes)

    @contextlib.contextmanager
    def counting(self) -> Iterator[list[int]]:
        """Keep pages from being set to present or missing in a block, which puts the bytes of all pages that are
        present into the list that it gets."""
        sizes: list[int] = []
        with locked(self._fd, _COUNT_LOCK):
            yield sizes
            self._counter[0] = sum(sizes)

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

    def token(self) -> int:
        """Return the token of this process; 0 if all slots are taken."""
        slot = self._own_slot()
        return 0 if slot is None else int(self._tokens[slot])

    def _own_slot(self) -> int | None:
        if self._slot is not None:
            return self._slot
        with self._thread_lock:
            if self._slot is None:
                for slot in range(SLOTS):
                    if set_lock(self._fd, fcntl.F_WRLCK, _SLOT_LOCKS + slot, 1):
                        self._reserved[slot] = 0  # of a dead process
                        self._tokens[slot] = secrets.randbelow((1 << 32) - 1) + 1
                        self._slot = slot
                        break
            return self._slot

    def live(self) -> npt.NDArray[np.uint32]:
        """Return the tokens of the processes that are alive."""
        return self._tokens[[slot for slot in np.flatnonzero(self._tokens.copy()).tolist() if self._is_alive(slot)]]

    def _is_alive(self, slot: int) -> bool:
        return slot == self._slot or is_locked(self._fd, _SLOT_LOCKS + slot, 1)

    def close(self) -> None:
        """Close the file; this process no longer has plans."""
        set_lock(self._fd, fcntl.F_UNLCK, 0, 1 << 62)  # the mapping keeps a copy of the descriptor
        os.close(self._fd)
