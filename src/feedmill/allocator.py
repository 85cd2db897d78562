"""The limit of freed memory that the allocator of this process keeps."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's parameters; see mallopt(3)."""
READING = 256 << 20
"""Freed memory that a process keeps which reads samples: without it, half of the time of reading bytes of local files,
and an eighth of that of a bucket, goes into clearing the pages of new memory."""
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory(limit: int = READING) -> None:
    """Make glibc keep up to `limit` bytes of freed memory, in this process and those it forks.

    By default it returns blocks of some megabytes to the system, which clears every page of the next one. The limit for
    blocks of their own is the one that glibc reaches by itself (32 MiB). Does nothing with other allocators, or if the
    environment has settings of its own for glibc's.
    """
    if sys.platform == "linux" and not any(name in os.environ for name in _VARIABLES):
        with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_MMAP_THRESHOLD, 32 << 20)
            mallopt(_TRIM_THRESHOLD, limit)
