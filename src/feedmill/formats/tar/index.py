"""Index of plain tar shards, created when they are first opened.

Tars of less than `INDEX_FROM` bytes in total are scanned at each opening. Larger ones are scanned once, on all cores.
The index is stored in ``.feedmill/shards`` of their folder or, for read-only folders and object stores, in the cache
folder (``$FEEDMILL_CACHE_DIR``). Folders that begin with a dot are not searched for data. The index may be deleted at
any time.

It is an array file (see `feedmill.formats.signatures`) with the concatenated data of all shards:

    records    uint8[...]       JSON: [[path in hexadecimal, size, version, samples, names of parts], ...]
    starts     int64[n + s]     offset of each sample, and the end of the last one of each shard
    keys       uint8[...]       the keys, concatenated, UTF-8
    key_ends   int64[n]         end of each key
    hashes     uint64[n]        xxh3-64 of each key
    remarks    uint8[...]       JSON: [[number of a shard, ...the fields of `Unread`], ...]

A shard whose size or version (modification time, or the store's version) changed is scanned again; the data of other
shards is kept.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.errors import FeedmillError
from feedmill.formats.arrays import read_arrays, write_arrays
from feedmill.formats.offsets import Int64s
from feedmill.formats.sample import no_such_key
from feedmill.formats.tar.dataset import ScannedShards, ShardTable, with_remarks
from feedmill.formats.tar.scan import Unread, in_file, scan_shard
from feedmill.formats.tar.strays import printable, samples_of
from feedmill.jobs.resources import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.storage import Entry, LocalStore, Store
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.folders import cache_folder

logger = logging.getLogger("feedmill")

INDEX_FROM = 32 << 20
"""Total bytes of tars from which an index is stored."""
PATH = ".feedmill/shards"
_MOST_PARTS = 50


class ShardIndex(NamedTuple):
    """Index data of one shard.

    Its state, int64[n + 1] starts, the keys with int64[n] ends, their hashes, what reading it may miss, and the names
    of its parts, unless there are more than `_MOST_PARTS`.
    """

    size: int
    version: str
    starts: Int64s
    keys: npt.NDArray[np.uint8]
    key_ends: Int64s
    hashes: npt.NDArray[np.uint64]
    unread: Unread = Unread()
    parts: frozenset[str] = frozenset()


class IndexedShards(ShardTable):
    """The table of plain tars from the index."""

    reindex = "The shard changed after it was opened: open the dataset again."

    def __init__(self, store: Store, shards: Sequence[str], known: Sequence[ShardIndex]) -> None:
        super().__init__(store, shards)
        self._known = list(known)
        self.counts = np.asarray([len(shard.key_ends) for shard in known], np.int64)
        self.unread = with_remarks(shard.unread for shard in known)
        self._sorted: tuple[npt.NDArray[np.uint64], Int64s] | None = None

    def offsets(self, shard: int) -> Int64s:
        return self._known[shard].starts

    def find(self, key: str) -> tuple[int, int]:
        if self._sorted is None:
            hashes = np.concatenate([shard.hashes for shard in self._known]) if self._known else np.zeros(0, np.uint64)
            order = np.argsort(hashes, kind="stable")
            self._sorted = hashes[order], order
        encoded = key.encode("utf-8", "surrogateescape")
        hashes, order = self._sorted
        wanted = np.uint64(xxhash.xxh3_64_intdigest(encoded))
        ends = np.cumsum(self.counts)
        for at in range(int(np.searchsorted(hashes, wanted)), int(np.searchsorted(hashes, wanted, side="right"))):
            number = int(order[at])
            shard = int(np.searchsorted(ends, number, side="right"))
            local = number - int(ends[shard] - self.counts[shard])
            if self._key(shard, local) == encoded:
                return shard, local
        raise no_such_key(self.store.url, key)

    def keys(self, shard: int) -> list[str]:
        names = (self._key(shard, local) for local in range(int(self.counts[shard])))
        return [key.decode("utf-8", "surrogateescape") for key in names]

    def part_names(self, shard: int) -> frozenset[str]:
        return self._known[shard].parts

    def _key(self, shard: int, local: int) -> bytes:
        known = self._known[shard]
        begin = int(known.key_ends[local - 1]) if local else 0
        return known.keys[begin : int(known.key_ends[local])].tobytes()

    def fingerprint(self, first: int | None = None) -> str:
        return self._fingerprint_of([shard.starts for shard in self._known[:first]])


def plain_shards(store: Store, shards: Sequence[str]) -> ShardTable:
    """Return the table of plain tars of a store, see `indexed_shards`.

    Raises:
        NotFound: a shard is missing.
        DataError: a shard is damaged; it is named.
    """
    pairs = zip(store.entries(shards), shards, strict=True)
    return indexed_shards(store, [entry or store.stat(shard) for entry, shard in pairs])


def indexed_shards(store: Store, entries: Sequence[Entry], *, workers: int | None = None) -> ShardTable:
    """Return the table of existing tars: scanned, or from their index, which is created or updated as needed.

    Raises:
        DataError: a shard is damaged; it is named.
    """
    shards = [entry.path for entry in entries]
    if sum(entry.size for entry in entries) < INDEX_FROM:
        return ScannedShards(store, shards)
    home = _Home(store)
    known = home.read()
    missing = list({entry.path: entry for entry in entries if not _same(known.get(entry.path), entry)}.values())
    if missing:
        threads = workers or 4 * available_cores()

        def scan(entry: Entry) -> ShardIndex:
            return _scanned(store, entry)

        size = sum(entry.size for entry in missing)
        from feedmill.storage.cache.settings import data_cache, fitting_cache, using_cache

        cache = fitting_cache(size)
        if not store.is_local and data_cache().size and not cache.size:
            logger.warning(
                "%s: tars of %s bytes do not fit into the cache together: they are copied to be indexed, and fetched"
                " again when their samples are read. Set a larger cache, or run 'feedmill prepare' once.",
                store.url,
                f"{size:,}",
            )
        with using_cache(cache):
            scans = ordered_map(scan, missing, workers=threads, in_flight=2 * threads)
            known.update(zip((entry.path for entry in missing), scans, strict=True))
        home.write(known)
    return IndexedShards(store, shards, [known[shard] for shard in shards])


def _same(known: ShardIndex | None, entry: Entry) -> bool:
    return known is not None and (known.size, known.version) == (entry.size, entry.version)


def _scanned(store: Store, entry: Entry) -> ShardIndex:
    scan = scan_shard(store, entry.path)
    if scan.problem is not None:
        raise in_file(scan.problem, store.locate(entry.path))
    scan, strays = samples_of(scan)
    encoded = [key.encode("utf-8", "surrogateescape") for key in scan.keys]
    ends = np.cumsum([len(key) for key in encoded], dtype=np.int64)
    hashes = np.asarray([xxhash.xxh3_64_intdigest(key) for key in encoded], np.uint64)
    joined = np.frombuffer(b"".join(encoded), np.uint8)
    return ShardIndex(
        entry.size, entry.version, scan.starts, joined, ends, hashes, Unread.of(scan, strays), _names(scan.parts)
    )


def _names(parts: Iterable[str]) -> frozenset[str]:
    names = frozenset(map(printable, parts))
    return names if len(names) <= _MOST_PARTS else frozenset()


class _Home:
    """The location of a folder's index: in the folder, or in the cache folder."""

    def __init__(self, store: Store) -> None:
        self._store = store
        digest = hashlib.sha256(store.url.encode()).hexdigest()[:32]
        self._cache = LocalStore(cache_folder() / "shards"), digest

    def read(self) -> dict[str, ShardIndex]:
        for store, path in self._places():
            try:
                if store.exists(path):
                    self._hold(path)
                    return _parsed(read_arrays(store, path))
            except (FeedmillError, ValueError, TypeError, KeyError) as error:
                logger.warning("the index of shards is rebuilt: %s", error)  # it is only a cache
        return {}

    def write(self, known: Mapping[str, ShardIndex]) -> None:
        arrays = _arrays(known)
        for store, path in self._places():
            try:
                write_arrays(store, path, arrays)
                self._hold(path, written=True)
                return
            except (FeedmillError, OSError) as error:
                reason = error
        logger.warning("the index of shards cannot be written, so they are scanned at each opening: %s", reason)

    def _hold(self, path: str, *, written: bool = False) -> None:
        """Keep the file from being evicted if it lies in the cache folder."""
        if path == self._cache[1]:
            name = f"shards/{path}"
            disk_cache(cache_folder()).hold_derived(name, written=name if written else "")

    def _places(self) -> list[tuple[Store, str]]:
        beside: list[tuple[Store, str]] = [(self._store, PATH)] if self._store.is_local else []
        return [*beside, self._cache]


def _arrays(known: Mapping[str, ShardIndex]) -> dict[str, npt.NDArray[Any]]:
    encoded = orjson.dumps(
        [
            [
                path.encode("utf-8", "surrogateescape").hex(),
                shard.size,
                shard.version,
                len(shard.key_ends),
                sorted(shard.parts),
            ]
            for path, shard in known.items()
        ]
    )

    unread = with_remarks(shard.unread for shard in known.values())

    def joined(pick: Callable[[ShardIndex], npt.NDArray[Any]], dtype: str) -> npt.NDArray[Any]:
        return np.concatenate([np.zeros(0, dtype), *(pick(shard) for shard in known.values())])

    return {
        "records": np.frombuffer(encoded, np.uint8),
        "starts": joined(lambda shard: shard.starts, "<i8"),
        "keys": joined(lambda shard: shard.keys, "u1"),
        "key_ends": joined(lambda shard: shard.key_ends, "<i8"),
        "hashes": joined(lambda shard: shard.hashes, "<u8"),
        "remarks": np.frombuffer(
            orjson.dumps([[number, *remark.row()] for number, remark in unread.items()]), np.uint8
        ),
    }


def _parsed(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, ShardIndex]:
    out: dict[str, ShardIndex] = {}
    at = starts = keys = 0
    unread = {number: Unread.stored(row) for number, *row in orjson.loads(arrays["remarks"].tobytes())}
    for number, (name, size, version, samples, names) in enumerate(orjson.loads(arrays["records"].tobytes())):
        ends = arrays["key_ends"][at : at + samples]
        length = int(ends[-1]) if samples else 0
        path = bytes.fromhex(name).decode("utf-8", "surrogateescape")
        out[path] = ShardIndex(
            size,
            version,
            arrays["starts"][starts : starts + samples + 1],
            arrays["keys"][keys : keys + length],
            ends,
            arrays["hashes"][at : at + samples],
            unread.get(number, Unread()),
            frozenset(names),
        )
        at, starts, keys = at + samples, starts + samples + 1, keys + length
    if (at, starts, keys) != (len(arrays["key_ends"]), len(arrays["starts"]), len(arrays["keys"])):
        raise ValueError("its arrays do not fit its records")
    return out
