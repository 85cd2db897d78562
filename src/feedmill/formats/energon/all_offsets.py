"""Feedmill's copy of all offset files of a prepared folder in one file, which takes one request in a remote store.

``.nv-meta/feedmill.offsets``, numbers 64 bits, little endian::

    64 bytes    "FMOFFST1", xxh3-64 of all that follows, 36 bytes of index.uuid, zeros, number of offsets
    n x 8       the content of each shard's ``.tar.idx``, in the order of ``.info.json``

A file whose uuid is not that of the index belongs to another state of it, and is ignored. So are corrupt ones. The
``.tar.idx`` files have the same information.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence

import numpy as np
import xxhash

from feedmill.errors import DataError, NotFound
from feedmill.formats.offsets import Int64s
from feedmill.storage import Store
from feedmill.storage.cache.mapped import read_cached
from feedmill.storage.cache.settings import data_cache, using_cache

logger = logging.getLogger("feedmill")

PATH = ".nv-meta/feedmill.offsets"
_MAGIC = b"FMOFFST1"
_HEADER, _UUID = 64, 36
_WHOLE = 8 << 20
"""A file of up to this number of bytes is read as a whole; of a larger one, the header and the offsets of shards."""
_SMALL = 248 << 10
"""A file of up to this number of bytes is read at opening: a remote store has read it by then (`Store.preload`)."""


def write_all(store: Store, starts: Sequence[Int64s], uuid: str) -> None:
    """Write the file. Call this after writing ``index.uuid`` and ``.info.json``.

    Args:
        starts: for each shard int64[n + 1], sample offsets and the end of the last sample.
        uuid: that of the index.
    """
    offsets = np.concatenate([np.zeros(0, "<i8"), *starts]).astype("<i8", copy=False)
    rest = _encoded(uuid) + len(offsets).to_bytes(8, "little") + offsets.tobytes()
    store.write_bytes(PATH, _MAGIC + xxhash.xxh3_64_intdigest(rest).to_bytes(8, "little") + rest)


def _encoded(uuid: str) -> bytes:
    return uuid.encode("ascii", "replace")[:_UUID].ljust(_HEADER - 24, b"\0")


def fault_of(store: Store, uuid: str) -> str | None:
    """Return what is wrong with the file: "damaged", "stale" for one of another index; None if it is intact or absent.

    Reads the whole file. Raises `StorageError`.
    """
    try:
        data = store.read(PATH)
    except NotFound:
        return None
    rest = data[16:]
    if data[:8] != _MAGIC or int.from_bytes(data[8:16], "little") != xxhash.xxh3_64_intdigest(rest):
        return "damaged"
    return None if rest[:40] == _encoded(uuid) else "stale"


class AllOffsets:
    """The offsets of all shards. Thread-safe.

    Args:
        counts: int64[shards], samples of each shard in the order of ``.info.json``.
        uuid: that of the index.
    """

    def __init__(self, store: Store, counts: Int64s, uuid: str) -> None:
        self._store, self._counts, self._uuid = store, counts, uuid
        self._ends = np.cumsum(counts + 1)
        self._cache = None if store.is_local else data_cache()  # that of the recipe: the file may be read later
        self._lock = threading.Lock()
        self._usable: bool | None = None
        self._all: Int64s | None = None
        if self._sample_count * 8 <= _SMALL:
            self.is_usable()

    @property
    def _sample_count(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def is_usable(self) -> bool:
        """Return whether the file exists and belongs to the index. The first call reads it. Raises `StorageError`."""
        with self._lock:
            if self._usable is None:
                with using_cache(self._cache):
                    self._usable = self._read()
            return self._usable

    def _read(self) -> bool:
        number, uuid = self._sample_count, self._uuid
        whole = 8 * number <= _WHOLE
        try:
            data = read_cached(self._store, PATH) if whole else self._store.read(PATH, 0, _HEADER)
        except NotFound:
            return False
        except DataError:
            data = b""
        rest = data[16:]
        if not uuid or rest[:40] != _encoded(uuid):
            return False
        fits = data[:8] == _MAGIC and rest[40:48] == number.to_bytes(8, "little")
        if whole:
            fits = fits and int.from_bytes(data[8:16], "little") == xxhash.xxh3_64_intdigest(rest)
        if not fits or (whole and len(data) != _HEADER + 8 * number):
            logger.warning("%s: the file is corrupt, the index of each shard is read", self._store.locate(PATH))
            return False
        if whole:
            self._all = np.frombuffer(data, "<i8", offset=_HEADER)
        return True

    def fetch(self) -> None:
        """Fetch the file, if it exists, into the cache of remote data in use. Raises `StorageError`."""
        if 8 * self._sample_count <= _WHOLE:
            with contextlib.suppress(NotFound):
                read_cached(self._store, PATH)

    def get(self, shards: Sequence[int]) -> list[Int64s]:
        """Return the offsets of shards by their number in ``.info.json``: for each int64[n + 1].

        Raises `DataError` and `StorageError`.
        """
        numbers = np.asarray(shards, np.int64)
        ends = self._ends[numbers]
        begins = ends - self._counts[numbers] - 1
        if self._all is not None:
            return [self._all[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        blocks = self._store.read_ranges(PATH, (_HEADER + 8 * begins).tolist(), (8 * (ends - begins)).tolist())
        return [np.frombuffer(block, "<i8") for block in blocks]
