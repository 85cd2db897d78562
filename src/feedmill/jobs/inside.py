"""Bytes that a run has read of the files it works on, so that bars move while one large file is read.

A process counts what it reads with `count_read`. Processes of a pool write their counts into a file that the main
process maps too: reading it costs nothing, and a worker that is killed leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

_SLOTS = 1024
_count = 0
_slot: memoryview | None = None


def count_read(size: int) -> None:
    """Count bytes that this process has read."""
    global _count
    _count += size
    if _slot is not None:
        _slot[0] = _count


def count() -> int:
    """Return the bytes that this process has counted."""
    return _count


def since_now() -> Callable[[], int]:
    """Return a function that returns the bytes that this process has counted since this call."""
    before = _count
    return lambda: _count - before


def join(path: str) -> None:
    """Let this process, a worker, write its count into the file of a `ReadCounts`."""
    global _slot
    import mmap
    import multiprocessing

    with contextlib.suppress(OSError), open(path, "r+b") as file:  # the run has ended
        shared = memoryview(mmap.mmap(file.fileno(), 8 * _SLOTS)).cast("q")
        number = (multiprocessing.current_process()._identity or (0,))[-1] % _SLOTS
        _slot = shared[number : number + 1]
        _slot[0] = _count


class ReadCounts:
    """Counts of the workers of a run, in a temporary file.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self) -> None:
        import mmap
        import tempfile

        handle, self.path = tempfile.mkstemp(prefix="feedmill-progress-")
        try:
            with open(handle, "r+b") as file:
                # A hole in the file would kill the process that counts first if the disk is full then.
                file.write(bytes(8 * _SLOTS))
                file.flush()
                shared = mmap.mmap(file.fileno(), 8 * _SLOTS)
        except BaseException:
            self.close()
            raise
        self._counts = memoryview(shared).cast("q")  # no numpy: its threads forbid forking

    def total(self) -> int:
        """Return the bytes that all workers have counted."""
        return sum(self._counts)

    def close(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
