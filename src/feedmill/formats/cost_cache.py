"""Cache the costs of large datasets, so that not every process of every run computes them again.

``$FEEDMILL_CACHE_DIR/costs/<hash>`` is an array file (see `feedmill.formats.signatures`). Its name is a hash of the
source file, that file's version and size, and the kind of costs:

    costs    int64[samples]
    digest   uint8[16]       xxh3-128 of them
    type     uint8[3]        of values that are no costs: ``<f8`` or ``<u8``, of which `costs` are the bits

It may be deleted at any time, and counts into the size of the cache folder (`DiskCache`); a corrupt file is computed
again. A changed source file has another version, so its costs
get another name.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import FeedmillError
from feedmill.formats.arrays import read_arrays, write_arrays
from feedmill.formats.offsets import Int64s, hash_words
from feedmill.storage import LocalStore, Store

logger = logging.getLogger("feedmill")

KEPT_FROM = 100_000
"""Number of samples from which costs are cached; computing fewer takes only tenths of a second."""
_VERSION = 1
_TYPES = ("<i8", "<f8", "<u8")

Numbers = npt.NDArray[Any]


def kept_costs(
    store: Store, path: str, what: str, count: int, find: Callable[[], Numbers | None], *, keep: bool = False
) -> Numbers | None:
    """Return costs or other values of samples from the cache folder, or compute and cache them.

    Args:
        store, path: the file that the costs are read from.
        what: kind of costs and samples, with their locations, so that a dataset opened before the file changed does
            not cache its costs under the name of the new version.
        count: number of samples.
        find: computes int64, float64 or uint64, [count], or None if the file does not have them.
        keep: cache the costs even if there are fewer than `KEPT_FROM` samples.

    Raises:
        FeedmillError: whatever `find` raises. A cache that cannot be read or written is only logged.
    """
    if count < KEPT_FROM and not keep:
        return find()
    state = store.stat(path)
    words = f"{store.locate(path)}\n{state.version} {state.size}\n{what}\n{_VERSION}"
    name = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    # Most datasets are small and need no cache.
    from feedmill.storage.cache.chunks import disk_cache
    from feedmill.storage.folders import cache_folder

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


def _read(cache: Store, name: str, count: int) -> Numbers | None:
    """Return cached costs or values, [count]; None if they do not exist or are corrupt."""
    try:
        if not cache.exists(name):
            return None
        arrays = read_arrays(cache, name)
        costs, digest = arrays["costs"], arrays["digest"].tobytes()
        kind = arrays["type"].tobytes().decode() if "type" in arrays else "<i8"
    except (FeedmillError, KeyError, ValueError, OSError) as error:
        logger.warning("the cached costs of samples cannot be read and are computed again: %s", error)
        return None
    if costs.shape != (count,) or digest != xxhash.xxh3_128_digest(costs.data):
        logger.warning("the cached costs of samples are corrupt and are computed again: %s", cache.locate(name))
        return None
    return costs.view(kind if kind in _TYPES else "<i8")


def _write(cache: Store, name: str, costs: Numbers) -> None:
    bits = np.ascontiguousarray(costs).view(np.int64)
    digest = np.frombuffer(xxhash.xxh3_128_digest(bits.data), np.uint8)
    kind = {} if costs.dtype == np.int64 else {"type": np.frombuffer(costs.dtype.str.encode(), np.uint8)}
    try:
        write_arrays(cache, name, {"costs": bits, "digest": digest, **kind})
    except (FeedmillError, OSError) as error:
        logger.warning("the costs of samples cannot be cached, so each start computes them again: %s", error)
