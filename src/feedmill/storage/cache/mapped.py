"""Read a whole file as one array: a local file is mapped, a remote one is fetched to this machine first.

With a cache of remote data (`DataCache`), a remote file is fetched into its pages and mapped there, so that the loader
does not fetch it again. Otherwise it is a copy that is deleted afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import mmap
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
import numpy.typing as npt

from feedmill.errors import FeedmillError
from feedmill.storage.base import Store
from feedmill.storage.cache.settings import data_cache

logger = logging.getLogger("feedmill")

UInt8s = npt.NDArray[np.uint8]

_AT_ONCE = 64 << 20
"""Bytes of one file that are requested at once; several files may be read in parallel."""
_SHARE = 8
"""A file may take one of this number of parts of the cache: those that are read in parallel are pinned."""


@contextlib.contextmanager
def mapped(store: Store, path: str) -> Iterator[UInt8s]:
    """Yield the bytes of a file, uint8[size], which are valid until the block ends.

    Raises:
        NotFound: there is no such file.
        StorageError: a request failed, or this machine has no space.
    """
    with ExitStack() as stack:
        found = None if store.is_local else _in_cache(store, path, stack)
        if found is None:
            local = stack.enter_context(store.local_copy(path))
            found = np.asarray(np.memmap(local, np.uint8, "r")) if local.stat().st_size else np.zeros(0, np.uint8)
        yield found


def read_cached(store: Store, path: str) -> bytes:
    """Read a whole file; with a cache of remote data, once for all processes of this machine. Raises as `mapped`."""
    with ExitStack() as stack:
        found = None if store.is_local else _in_cache(store, path, stack, copied=False)
        return store.read(path) if found is None else found.tobytes()


@contextlib.contextmanager
def through_cache(store: Store, path: str, begin: int, end: int) -> Iterator[None]:
    """In a block, read a range of a remote file from the cache of remote data, if there is one.

    Its pages are fetched into the cache for that, so that they are not fetched again. It raises nothing of its own.
    """
    from feedmill.storage.cache.paged import Paging
    from feedmill.storage.fetching.read_ahead import ReadAhead
    from feedmill.storage.remote.range_store import RangeStore

    paging = data_cache().paging() if isinstance(store, RangeStore) else None
    if paging is None or not isinstance(store, RangeStore):
        yield
        return
    with closing(ReadAhead(_AT_ONCE, Paging(paging.cache, "block"))) as reader:
        try:
            begins, ends = np.asarray([begin], np.int64), np.asarray([end], np.int64)
            none = np.zeros(1, np.int64)
            reader.want(store, [path], none, begins, ends, none, threading.Event())
        except (FeedmillError, OSError) as error:  # the read raises what concerns the file
            logger.debug("%s is not read through the cache: %s", path, error)
        yield


@functools.cache
def _say_too_large(url: str, capacity: int) -> None:
    """Log, once for each folder, that its files are not read through the cache."""
    logger.warning(
        "%s: some files are larger than an eighth of the cache (%s bytes): they are copied to be indexed, and fetched"
        " again when their samples are read. Set a larger cache.",
        url,
        f"{capacity:,}",
    )


def _in_cache(store: Store, path: str, stack: ExitStack, *, copied: bool = True) -> UInt8s | None:
    """Return the bytes of a remote file, pinned in the page cache; None without a cache, or if it cannot take them.

    Args:
        copied: whether the caller copies a file that the cache cannot take, which is logged if it is too large.
    """
    from feedmill.storage.fetching.ranges import TARGET
    from feedmill.storage.fetching.read_ahead import ReadAhead
    from feedmill.storage.remote.range_store import RangeStore

    paging = data_cache().paging()
    if paging is None or paging.cache.disabled or not isinstance(store, RangeStore):
        return None
    try:
        (pages,) = paging.open(store, [store.key(path)], 1)
        if pages is None or not pages.size:
            return None
        if pages.size > paging.cache.capacity() // _SHARE:
            if copied:
                _say_too_large(store.url, paging.cache.size)
            return None
        stack.enter_context(pages.pinned(np.asarray([0]), np.asarray([pages.size])))
        with closing(ReadAhead(2 * _AT_ONCE, paging)) as reader:
            for step, first in enumerate(range(0, pages.size, _AT_ONCE)):
                begins = np.arange(first, min(first + _AT_ONCE, pages.size), TARGET, dtype=np.int64)
                ends = np.minimum(begins + TARGET, pages.size)
                file, steps = np.zeros(len(begins), np.int64), np.full(len(begins), step)
                reader.want(store, [path], file, begins, ends, steps, threading.Event())
                reader.finish()
                reader.done(step)
                if paging.refused:
                    return None
        if not pages.verify(0, pages.size):
            return None
        # The mapping ends with the array: a caller may keep parts of it.
        return np.frombuffer(mmap.mmap(pages.fd, pages.size, access=mmap.ACCESS_READ), np.uint8)
    except (FeedmillError, OSError) as error:  # the copy is fetched instead, which raises what concerns the file
        logger.debug("%s is not read through the cache: %s", path, error)
        return None
