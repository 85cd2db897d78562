"""Counters that all processes of one page cache share: the bytes in use, and which processes are alive.

The file has a header, counters of bytes (of pages, and of their files besides), and a table of processes. A process
takes a slot of the table, writes a random token into it, and keeps a lock on the slot's byte. The token marks the pages
that the process plans to read. The slot also has the bytes that the process has *reserved*: those that it is about to
write, and those that it evicts until the file system has freed them. The lock of a dead process is gone, so its plans
and reservations do not count.
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

from feedmill.storage.cache.page_locks import SharedLock, is_locked, set_lock

SLOTS = 1024
"""Maximum number of processes with plans and reservations at a time."""
_MAGIC = b"FMUSAGE\3"
_LENGTH = 16384
_COUNTER_AT, _EVICTIONS_AT, _FILES_AT, _TABLE_AT, _RESERVED_AT = 16, 24, 32, 4096, 8192
_COUNT_LOCK, _SLOT_LOCKS = 1 << 40, 2 << 40
"""Bytes of the file that are locked: one for the counters, and the first of one for each slot."""


class Usage:
    """The shared counters of a cache.

    Attributes:
        created: whether this object created the counter, which starts at 0.
    """

    def __init__(self, fd: int) -> None:
        """Open the counters.

        Args:
            fd: descriptor of the file, which this object closes; a corrupt file is created again.

        Raises:
            OSError: the file cannot be used.
        """
        self._fd = fd
        self._thread_lock, self._counters_locked = threading.Lock(), SharedLock(fd, _COUNT_LOCK)
        with self._counters_locked():
            self.created = os.pread(fd, 8, 0) != _MAGIC or os.fstat(fd).st_size != _LENGTH
            if self.created:
                if os.fstat(fd).st_size > _LENGTH:
                    os.ftruncate(fd, _LENGTH)
                os.posix_fallocate(fd, 0, _LENGTH)
                os.pwrite(fd, bytes(_LENGTH), 0)
                os.pwrite(fd, _MAGIC, 0)
        self._mmap = mmap.mmap(fd, _LENGTH)
        self._counter: npt.NDArray[np.int64] = np.frombuffer(self._mmap, np.int64, 1, _COUNTER_AT)
        self._evictions: npt.NDArray[np.int64] = np.frombuffer(self._mmap, np.int64, 1, _EVICTIONS_AT)
        self._files: npt.NDArray[np.int64] = np.frombuffer(self._mmap, np.int64, 1, _FILES_AT)
        self._tokens: npt.NDArray[np.uint32] = np.frombuffer(self._mmap, np.uint32, SLOTS, _TABLE_AT)
        self._reserved: npt.NDArray[np.int64] = np.frombuffer(self._mmap, np.int64, SLOTS, _RESERVED_AT)
        self._slot: int | None = None

    @property
    def bytes(self) -> int:
        """Return the bytes of the present pages."""
        return max(0, int(self._counter[0]))

    @property
    def taken(self) -> int:
        """Return the bytes of the present pages and their files, and the reservations of living processes."""
        slots = np.flatnonzero(self._reserved.copy()).tolist()  # a copy: other processes write to it
        reserved = sum(int(self._reserved[slot]) for slot in slots if self._is_alive(slot))
        return self.bytes + int(self._files[0]) + reserved

    def reserve(self, size: int, limit: Callable[[], int]) -> bool:
        """Reserve bytes unless more than the limit would be in use; return whether they are reserved.

        Args:
            size: number of bytes.
            limit: returns the limit. It is called under the lock, so that a call with 0 bytes after the limit was
                lowered sees all reservations that the old limit allowed.
        """
        slot = self._own_slot()
        if slot is None:
            return False
        with self._counters_locked():
            fits = self.taken + size <= limit()
            if fits:
                self._reserved[slot] += size
        return fits

    def release(self, size: int) -> None:
        """Release reserved bytes that were not stored, or that the file system has freed."""
        if size and self._slot is not None:
            with self._counters_locked():
                self._reserved[self._slot] -= size

    @contextlib.contextmanager
    def storing(self, size: int) -> Iterator[None]:
        """Count reserved bytes as present; the block marks their pages as present.

        The count rises first: a process that is killed in the block leaves it too high, which `counting` corrects. A
        count that is too low would let the cache exceed its size.
        """
        with self._counters_locked():
            self._counter[0] += size
            yield
            self._reserved[self._slot] -= size

    def created_files(self, size: int) -> None:
        """Count reserved bytes as those of new files, until they are counted again (`counting`)."""
        with self._counters_locked():
            self._files[0] += size
            self._reserved[self._slot] -= size

    @contextlib.contextmanager
    def freeing(self) -> Iterator[list[int]]:
        """Count bytes as reserved, until `release`, instead of present; the block marks their pages as missing.

        The block appends the numbers of bytes to the list that it gets.
        """
        sizes: list[int] = []
        slot = self._own_slot()
        with self._counters_locked():
            yield sizes
            if slot is not None:
                self._reserved[slot] += sum(sizes)
            self._counter[0] -= sum(sizes)

    @contextlib.contextmanager
    def counting(self) -> Iterator[tuple[list[int], list[int]]]:
        """Set the counters to the sums of the two lists that the block gets.

        It fills one with the bytes of all present pages, and the other with those of files besides. No process can mark
        pages as present or missing meanwhile.
        """
        sizes: tuple[list[int], list[int]] = [], []
        with self._counters_locked():
            yield sizes
            self._counter[0], self._files[0] = map(sum, sizes)

    @property
    def evictions(self) -> int:
        """Return a number that grows before any page of the cache is evicted.

        While it is the same, pages that were present still are, and their bytes may be read from the file.
        """
        return int(self._evictions[0])

    def announce_eviction(self) -> None:
        """Increase `evictions`, before pages are evicted."""
        with self._counters_locked():
            self._evictions[0] += 1

    def token(self) -> int:
        """Return the token of this process; 0 if all slots are taken."""
        slot = self._own_slot()
        return 0 if slot is None else int(self._tokens[slot])

    def _own_slot(self) -> int | None:
        """Return the slot of this process, taken if needed; None if all slots are taken."""
        if self._slot is not None:
            return self._slot
        with self._thread_lock:
            if self._slot is None:
                for slot in range(SLOTS):
                    if set_lock(self._fd, fcntl.F_WRLCK, _SLOT_LOCKS + slot, 1):
                        self._reserved[slot] = 0  # reservations of the dead process that had the slot
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
        """Close the file, and end the plans and reservations of this process."""
        self._counters_locked.reset()
        set_lock(self._fd, fcntl.F_UNLCK, 0, 1 << 62)  # closing is not enough: the mapping has a copy of the descriptor
        os.close(self._fd)
