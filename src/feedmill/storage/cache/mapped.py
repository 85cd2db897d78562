"""Read a whole file as one array: a local file is mapped (small ones are read), a remote one is fetched here first.

With a cache of remote data (`DataCache`), a remote file is fetched into its chunks and mapped there, so that the loader
does not fetch it again. Otherwise it is a copy that is deleted afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import numpy as np
import numpy.typing as npt

from feedmill.errors import FeedmillError
from feedmill.storage.base import Store
from feedmill.storage.cache.settings import data_cache
from feedmill.storage.local import read_regular

logger = logging.getLogger("feedmill")

UInt8s = npt.NDArray[np.uint8]

_AT_ONCE = 64 << 20
"""Bytes of one file that are requested at once; several files may be read in parallel."""
_SMALL = 128 << 10
"""Size in bytes up to which a file is read: to map it takes 20 system calls, most of them of `numpy.memmap`."""
_SHARE = 8
"""A file may take one of this number of parts of the cache: those that are read in parallel cannot be evicted."""


@contextlib.contextmanager
def mapped(store: Store, path: str) -> Iterator[UInt8s]:
    """Yield the bytes of a file, uint8[size], which are valid until the block ends.

    Raises:
        NotFound: there is no such file.
        StorageError: a request failed, or this machine has no space.
    """
    with ExitStack() as stack:
        found = None if store.is_local else _in_cache(store, path)
        if found is None:
            local = stack.enter_context(store.local_copy(path))
            if local.stat().st_size > _SMALL:
                found = np.asarray(np.memmap(local, np.uint8, "r"))
            else:
                found = np.frombuffer(read_regular(os.fspath(local)), np.uint8)
        yield found


def read_cached(store: Store, path: str) -> bytes:
    """Read a whole file; with a cache of remote data, once for all processes of this machine. Raises as `mapped`."""
    found = None if store.is_local else _in_cache(store, path, copied=False)
    return store.read(path) if found is None else found.tobytes()


@contextlib.contextmanager
def through_cache(store: Store, path: str, begin: int, end: int) -> Iterator[None]:
    """In a block, read a range of a remote file from the cache of remote data, if there is one.

    Its chunks are fetched into the cache for that, so that they are not fetched again. It raises nothing of its own.
    """
    from feedmill.storage.cache.reading import CacheUse
    from feedmill.storage.fetching.read_ahead import ReadAhead, Starving
    from feedmill.storage.remote.range_store import RangeStore

    use = data_cache().use() if isinstance(store, RangeStore) else None
    if use is None or not isinstance(store, RangeStore):
        yield
        return
    with closing(ReadAhead(_AT_ONCE, CacheUse(use.cache, "block"))) as reader:
        try:
            begins, ends = np.asarray([begin], np.int64), np.asarray([end], np.int64)
            none = np.zeros(1, np.int64)
            reader.want(store, [path], none, begins, ends, none, Starving())
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


def _in_cache(store: Store, path: str, *, copied: bool = True) -> UInt8s | None:
    """Return the bytes of a remote file, mapped in the cache; None without a cache, or if it cannot take them.

    Args:
        copied: whether the caller copies a file that the cache cannot take, which is logged if it is too large.
    """
    from feedmill.storage.fetching.ranges import TARGET
    from feedmill.storage.fetching.read_ahead import ReadAhead, Starving
    from feedmill.storage.remote.range_store import RangeStore

    use = data_cache().use()
    if use is None or use.cache.disabled or not isinstance(store, RangeStore):
        return None
    try:
        (cached,) = use.open(store, [store.key(path)], 1)
        if cached is None or not cached.size:
            return None
        if cached.size > use.cache.capacity() // _SHARE:
            if copied:
                _say_too_large(store.url, use.cache.size)
            return None
        memory = _Mapping(cached.size)
        with closing(ReadAhead(2 * _AT_ONCE, use)) as reader:
            for step, first in enumerate(range(0, cached.size, _AT_ONCE)):
                begins = np.arange(first, min(first + _AT_ONCE, cached.size), TARGET, dtype=np.int64)
                ends = np.minimum(begins + TARGET, cached.size)
                file, steps = np.zeros(len(begins), np.int64), np.full(len(begins), step)
                reader.want(store, [path], file, begins, ends, steps, Starving())
                reader.finish()
                for number in cached.numbers(first, int(ends[-1])):
                    chunk = cached.open(number)
                    if chunk is None or chunk.fd < 0:
                        return None
                    memory.add(chunk.fd, number * cached.chunk, chunk.size)
                reader.done(step)
        return memory.bytes
    except (FeedmillError, OSError) as error:  # the copy is fetched instead, which raises what concerns the file
        logger.debug("%s is not read through the cache: %s", path, error)
        return None


class _Mapping:
    """Files that are mapped one behind the other; a mapping keeps the lock of its file, so that it is not evicted.

    Attributes:
        bytes: uint8[size]. The mapping ends with this array.
    """

    def __init__(self, size: int) -> None:
        reserved = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
        self.bytes: UInt8s = np.frombuffer(reserved, np.uint8)
        self._address = int(self.bytes.__array_interface__["data"][0])

    def add(self, fd: int, offset: int, size: int) -> None:
        """Map the first bytes of a file at an offset, a multiple of the page size. Raises `OSError`."""
        function = _mmap()
        if function(self._address + offset, size, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, fd, 0) in (None, _FAILED):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


_FIXED = 0x10
"""``MAP_FIXED`` of Linux: replace what is mapped at the address, which here is reserved for it."""
_FAILED = ctypes.c_void_p(-1).value


@functools.cache
def _mmap() -> Callable[..., int | None]:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    function.restype = ctypes.c_void_p
    return function
