"""Arrays in the cache folder, so that not every process of every run makes them again.

``$FEEDMILL_CACHE_DIR/<kind>/<hash>`` is an array file (see `feedmill.formats.arrays`), whose name is a hash of all that
decides the arrays, such as the source file with its version and size. It has one array more, `digest`: uint8[16], the
xxh3-128 of the others and their names. It may be deleted at any time, and counts into the size of the cache folder
(`DiskCache`); a corrupt one is made again, and one that cannot be read or written is only logged.

    costs/         costs      int64[samples]
                   type       uint8[3], of values that are no costs: ``<f8`` or ``<u8``, of which `costs` are the bits
    recordings/    facts      uint8[...], JSON, as the reader of the recording made it
                   NAME       int64[...], arrays, as the reader made them
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.errors import FeedmillError
from feedmill.formats.arrays import Arrays, read_arrays, write_arrays
from feedmill.formats.content import content_hash
from feedmill.formats.offsets import Int64s, hash_words
from feedmill.storage import Entry, LocalStore, Store

logger = logging.getLogger("feedmill")

KEPT_FROM = 100_000
"""Number of samples from which costs are cached; computing fewer takes only tenths of a second."""
_COSTS, _RECORDINGS = 2, 1
"""Versions of the layouts."""
_TYPES = ("<i8", "<f8", "<u8")
_DIGEST = "digest"

Numbers = npt.NDArray[Any]


class KeptArrays:
    """The file of some arrays in the cache folder.

    Args:
        name: its path there, such as ``costs/<hash>``.
        corrupt, lost: what is logged of a file that cannot be read, or written; nothing if empty.
    """

    def __init__(self, name: str, corrupt: str, lost: str) -> None:
        # Most datasets are small and need no cache.
        from feedmill.storage.cache.chunks import disk_cache
        from feedmill.storage.folders import cache_folder

        folder = cache_folder()
        self._store, self._cache = LocalStore(folder), disk_cache(folder)
        self._name, self._corrupt, self._lost = name, corrupt, lost

    def read(self) -> Arrays | None:
        """Return the arrays as read-only memory maps; None if they are not there, or corrupt."""
        try:
            if not self._store.exists(self._name):
                return None
            self._cache.hold_derived(self._name)
            arrays = read_arrays(self._store, self._name)
            if arrays.pop(_DIGEST).tobytes() != _digest(arrays):
                raise ValueError("its hash differs")
            return arrays
        except (FeedmillError, KeyError, ValueError, OSError) as error:
            logger.warning("%s: %s: %s", self._corrupt, self._store.locate(self._name), error)
            return None

    def write(self, arrays: Mapping[str, Numbers]) -> None:
        """Write the arrays, of the types of `feedmill.formats.arrays`."""
        try:
            write_arrays(self._store, self._name, {**arrays, _DIGEST: np.frombuffer(_digest(arrays), np.uint8)})
        except (FeedmillError, OSError) as error:
            if self._lost:
                logger.warning("%s: %s", self._lost, error)
        else:
            self._cache.hold_derived(self._name, written=self._name)


def hashed_name(*words: str) -> str:
    """Return the name of a file by what decides its content."""
    return hashlib.sha256("\n".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:32]


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
        FeedmillError: whatever `find` raises.
    """
    if count < KEPT_FROM and not keep:
        return find()
    state = store.stat(path)
    name = hashed_name(store.locate(path), f"{state.version} {state.size}", what, str(_COSTS))
    kept = KeptArrays(
        f"costs/{name}",
        "the cached costs of samples cannot be read and are computed again",
        "the costs of samples cannot be cached, so each start computes them again",
    )
    arrays = kept.read()
    if arrays is not None and "costs" in arrays and arrays["costs"].shape == (count,):
        kind = arrays["type"].tobytes().decode() if "type" in arrays else "<i8"
        return arrays["costs"].view(kind if kind in _TYPES else "<i8")
    costs = find()
    if costs is not None:
        kinds = {} if costs.dtype == np.int64 else {"type": np.frombuffer(costs.dtype.str.encode(), np.uint8)}
        kept.write({"costs": np.ascontiguousarray(costs).view(np.int64), **kinds})
    return costs


def digest_of(*arrays: Int64s) -> str:
    """Return a hash of arrays of sample locations, int64[n] each, which identifies the state of an open dataset."""
    return hash_words([xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array, "<i8").data) for array in arrays])


class Index(NamedTuple):
    """What a reader knows about a recording before it reads steps: plain data, and arrays of int64."""

    facts: dict[str, Any]
    arrays: dict[str, Int64s]


def kept_index(store: Store, entry: Entry, reader: str, find: Callable[[], Index]) -> Index:
    """Return the index of a recording from the cache folder, or find and keep it: finding costs much more than using.

    Args:
        reader: name of the reader, with the version of what it finds.

    Raises:
        FeedmillError: whatever `find` raises.
    """
    content = content_hash(store, entry.path, entry.size) if store.is_local else ""
    where = store.locate(entry.path)
    name = hashed_name(where, str(entry.size), entry.version, content, reader, str(_RECORDINGS))
    kept = KeptArrays(
        f"recordings/{name}",
        "the cached index of a recording is corrupt and is made again",
        f"the index of {where} cannot be cached, so each process finds it again",
    )
    arrays = kept.read()
    if arrays is not None and "facts" in arrays:
        return Index(orjson.loads(arrays.pop("facts").tobytes()), arrays)
    found = find()
    values = {key: np.ascontiguousarray(each, "<i8") for key, each in found.arrays.items()}
    kept.write({"facts": np.frombuffer(orjson.dumps(found.facts), np.uint8), **values})
    return found


def _digest(arrays: Mapping[str, Numbers]) -> bytes:
    hasher = xxhash.xxh3_128()
    for name in sorted(arrays):
        hasher.update(name.encode())
        hasher.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return hasher.digest()
