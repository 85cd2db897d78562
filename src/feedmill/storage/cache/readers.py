"""The readers of a page cache: the ranks of runs that read ahead through it. So those of a machine know each other.

Each has a row of the file ``readers``, with the number of its run and its rank, and a lock on the row's byte: that of a
dead process is gone. The rows are hints; whatever they say, each rank reads its own samples. They are not in the file
of counters (``usage.py``), whose layout processes of other versions of Feedmill share.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np
import numpy.typing as npt

from feedmill.storage.cache.page_locks import RangeLock, is_locked

READERS = 256
"""Maximum number of readers that know each other."""
_ROW = np.dtype([("run", "<u8"), ("rank", "<i8")])


class Readers:
    """The table of readers of a cache."""

    def __init__(self, fd: int) -> None:
        """Open the table.

        Args:
            fd: descriptor of the file, which this object closes; it may be empty.

        Raises:
            OSError: the file cannot be used.
        """
        self._fd = fd
        os.posix_fallocate(fd, 0, READERS * _ROW.itemsize)
        self._rows: npt.NDArray[np.void] = np.frombuffer(mmap.mmap(fd, READERS * _ROW.itemsize), _ROW)

    def join(self, run: int, rank: int) -> RangeLock | None:
        """Add a reader to the table; return the lock whose release removes it, or None if the table is full.

        Args:
            run: the same number for all ranks of a run, and not 0.
            rank: its rank.

        Raises:
            OSError: as `RangeLock`.
        """
        lock = RangeLock(self._fd)
        for row in range(READERS):
            if lock.take(fcntl.F_WRLCK, row, 1):
                self._rows[row] = run, rank
                return lock
        lock.release()
        return None

    def ranks(self, run: int) -> list[int]:
        """Return the ranks of a run whose readers are alive on this machine, ascending and each once."""
        rows = np.flatnonzero(self._rows["run"].copy() == run).tolist()
        return sorted({int(self._rows["rank"][row]) for row in rows if is_locked(self._fd, row, 1)})

    def close(self) -> None:
        """Close the file. The readers of this process stay until their locks are released."""
        os.close(self._fd)
