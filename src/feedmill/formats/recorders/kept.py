"""Indices of recordings, kept in the cache folder: finding the places of chunks costs much more than using them.

``$FEEDMILL_CACHE_DIR/recordings/<hash>`` is an array file (see `feedmill.formats.arrays`). Its name is a hash of the
path, size and version of the recording, and of the version of this layout:

    facts     uint8[...]     JSON, as its reader made it
    NAME      int64[...]     arrays, as its reader made them
    digest    uint8[16]      xxh3-128 of all of them

It may be deleted at any time, and counts into the size of the cache folder; a corrupt one is made again.
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
from feedmill.formats.arrays import unpack_arrays, write_arrays
from feedmill.formats.content import content_hash
from feedmill.formats.offsets import Int64s
from feedmill.storage import Entry, LocalStore, Store
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.folders import cache_folder

logger = logging.getLogger("feedmill")

FOLDER = "recordings"
_VERSION = 1
_DIGEST, _FACTS = "digest", "facts"


class Index(NamedTuple):
    """What a reader knows about a recording before it reads steps: plain data, and arrays of int64."""

    facts: dict[str, Any]
    arrays: dict[str, Int64s]


def kept_index(store: Store, entry: Entry, reader: str, find: Callable[[], Index]) -> Index:
    """Return the index of a file from the cache folder, or find and keep it.

    Args:
        reader: name of the reader, with the version of what it finds.

    Raises:
        FeedmillError: whatever `find` raises. A cache that cannot be read or written is only logged.
    """
    content = content_hash(store, entry.path, entry.size) if store.is_local else ""
    words = "\n".join([store.locate(entry.path), str(entry.size), entry.version, content, reader, str(_VERSION)])
    name = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    cache, files = LocalStore(cache_folder() / FOLDER), disk_cache(cache_folder())
    found = _read(cache, name)
    if found is not None:
        files.hold_derived(f"{FOLDER}/{name}")
        return found
    found = find()
    try:
        _write(cache, name, found)
        files.hold_derived(f"{FOLDER}/{name}", written=f"{FOLDER}/{name}")
    except (FeedmillError, OSError) as error:
        where = store.locate(entry.path)
        logger.warning("the index of %s cannot be cached, so each process finds it again: %s", where, error)
    return found


def _read(cache: LocalStore, name: str) -> Index | None:
    try:
        if not cache.exists(name):
            return None
        arrays = unpack_arrays(cache.read(name))
        if not np.array_equal(arrays.pop(_DIGEST), _digest(arrays)):
            raise ValueError("its hash differs")
        return Index(orjson.loads(arrays.pop(_FACTS).tobytes()), arrays)
    except (FeedmillError, KeyError, ValueError, OSError) as error:
        where = cache.locate(name)
        logger.warning("the cached index of a recording is corrupt and is made again: %s: %s", where, error)
        return None


def _write(cache: LocalStore, name: str, index: Index) -> None:
    facts = np.frombuffer(orjson.dumps(index.facts), np.uint8)
    arrays = {_FACTS: facts, **{key: np.ascontiguousarray(values, "<i8") for key, values in index.arrays.items()}}
    write_arrays(cache, name, {**arrays, _DIGEST: _digest(arrays)})


def _digest(arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    hasher = xxhash.xxh3_128()
    for name in sorted(arrays):
        hasher.update(name.encode())
        hasher.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return np.frombuffer(hasher.digest(), np.uint8)
