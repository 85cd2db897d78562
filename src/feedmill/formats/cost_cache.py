"""Costs of large datasets in the cache folder, so that not every process of every run finds them again.

``$FEEDMILL_CACHE_DIR/costs/<hash>`` is an array file (see `feedmill.formats.signatures`), named after the file that the
costs were found in, that file's version and size, and which costs these are:

    costs    int64[samples]
    digest   uint8[16]       xxh3-128 of them

It may be deleted at any time; one that is damaged is made again. A file that changed has another version, so its costs
have another name.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

import numpy as np
import xxhash

from feedmill.errors import FeedmillError
from feedmill.formats.offsets import Int64s, hash_words
from feedmill.formats.signatures import read_arrays, write_arrays
from feedmill.storage import LocalStore, Store
from feedmill.storage.cache import cache_folder

logger = logging.getLogger("feedmill")

KEPT_FROM = 100_000
"""Samples from which costs are kept: those of fewer are found in some tenths of a second."""
_VERSION = 1


def kept_costs(
    store: Store, path: str, what: str, count: int, find: Callable[[], Int64s | None], *, keep: bool = False
) -> Int64s | None:
    """Return costs from the cache folder, or find them and keep them there.

    Args:
        store, path: the file that they are found in.
        what: which costs of it, and of which samples: with where they lie, so that a dataset that was opened before
            the file changed keeps nothing under the new version's name.
        count: samples.
        find: gives int64[count], or None if the file does not know them.
        keep: whatever `count` is; else from `KEPT_FROM` samples on.

    Raises:
        FeedmillError: whatever `find` raises. A cache that cannot be read or written is only logged.
    """
    if count < KEPT_FROM and not keep:
        return find()
    state = store.stat(path)
    words = f"{store.locate(path)}\n{state.version} {state.size}\n{what}\n{_VERSION}"
    name = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    cache = LocalStore(cache_folder() / "costs")
    costs = _read(cache, name, count)
    if costs is None:
        costs = find()
        if costs is not None:
            _write(cache, name, costs)
    return costs


def digest_of(*arrays: Int64s) -> str:
    """Return a hash of arrays, int64[n] each: of where samples lie, to tell what an open dataset took them for."""
    return hash_words([xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array, "<i8").data) for array in arrays])


def _read(cache: Store, name: str, count: int) -> Int64s | None:
    """int64[count]; None if they do not exist, or damaged."""
    try:
        if not cache.exists(name):
            return None
        arrays = read_arrays(cache, name)
        costs, digest = arrays["costs"], arrays["digest"].tobytes()
    except (FeedmillError, KeyError, OSError) as error:
        logger.warning("the costs of samples are found again: %s", error)
        return None
    if costs.shape != (count,) or digest != xxhash.xxh3_128_digest(costs.data):
        logger.warning("the costs of samples are found again: %s is damaged", cache.locate(name))
        return None
    return costs


def _write(cache: Store, name: str, costs: Int64s) -> None:
    digest = np.frombuffer(xxhash.xxh3_128_digest(costs.data), np.uint8)
    try:
        write_arrays(cache, name, {"costs": costs, "digest": digest})
    except (FeedmillError, OSError) as error:
        logger.warning("the costs of samples cannot be kept, so each start finds them again: %s", error)
