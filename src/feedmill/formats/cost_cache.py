"""Cache the costs of large datasets, so that not every process of every run computes them again.

``$FEEDMILL_CACHE_DIR/costs/<hash>`` is an array file (see `feedmill.formats.signatures`). Its name is a hash of the
source file, that file's version and size, and the kind of costs:

    costs    int64[samples]
    digest   uint8[16]       xxh3-128 of them

It may be deleted at any time, and counts into the size of the cache folder (`DiskCache`); a corrupt file is computed
again. A changed source file has another version, so its costs
get another name.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

import numpy as np
import xxhash

from feedmill.errors import FeedmillError
from feedmill.formats.arrays import read_arrays, write_arrays
from feedmill.formats.offsets import Int64s, hash_words
from feedmill.storage import LocalStore, Store
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.folders import cache_folder

logger = logging.getLogger("feedmill")

KEPT_FROM = 100_000
"""Number of samples from which costs are cached; computing fewer takes only tenths of a second."""
_VERSION = 1


def kept_costs(
    store: Store, path: str, what: str, count: int, find: Callable[[], Int64s | None], *, keep: bool = False
) -> Int64s | None:
    """Return costs from the cache folder, or compute and cache them.

    Args:
        store, path: the file that the costs are read from.
        what: kind of costs and samples, with their locations, so that a dataset opened before the file changed does
            not cache its costs under the name of the new version.
        count: number of samples.
        find: computes int64[count], or None if the file does not have them.
        keep: cache the costs even if there are fewer than `KEPT_FROM` samples.

    Raises:
        FeedmillError: whatever `find` raises. A cache that cannot be read or written is only logged.
    """
    if count < KEPT_FROM and not keep:
        return find()
    state = store.stat(path)
    words = f"{store.locate(path)}\n{state.version} {state.size}\n{what}\n{_VERSION}"
    name = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    cache, files = LocalStore(cache_folder() / "costs"), disk_cache(cache_folder())
    if cache.exists(name):
        files.hold_derived(f"costs/{name}")
    costs = _read(cache, name, count)
    if costs is None:
        costs = find()
        if costs is not None:
            _write(cache, name, costs)
            files.hold_derived(f"costs/{name}", written=f"costs/{name}")
    return costs


def digest_of(*arrays: Int64s) -> str:
    """Return a hash of arrays of sample locations, int64[n] each, which identifies the state of an open dataset."""
    return hash_words([xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array, "<i8").data) for array in arrays])


def _read(cache: Store, name: str, count: int) -> Int64s | None:
    """Return cached costs, int64[count]; None if they do not exist or are corrupt."""
    try:
        if not cache.exists(name):
            return None
        arrays = read_arrays(cache, name)
        costs, digest = arrays["costs"], arrays["digest"].tobytes()
    except (FeedmillError, KeyError, ValueError, OSError) as error:
        logger.warning("the cached costs of samples cannot be read and are computed again: %s", error)
        return None
    if costs.shape != (count,) or digest != xxhash.xxh3_128_digest(costs.data):
        logger.warning("the cached costs of samples are corrupt and are computed again: %s", cache.locate(name))
        return None
    return costs


def _write(cache: Store, name: str, costs: Int64s) -> None:
    digest = np.frombuffer(xxhash.xxh3_128_digest(costs.data), np.uint8)
    try:
        write_arrays(cache, name, {"costs": costs, "digest": digest})
    except (FeedmillError, OSError) as error:
        logger.warning("the costs of samples cannot be cached, so each start computes them again: %s", error)
