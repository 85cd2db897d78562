"""Feedmill's own index of a list of tars: where each sample begins, and which sample has a key.

One file::

    8 bytes     FMTARS1\\n
    u64         length of the facts
    facts       JSON: version, and for each shard [path, bytes, version word, samples]; padded with spaces to 8
    i64[n + s]  for each shard its samples' first headers, then the end of the last sample
    u64[n]      xxh3-64 of every key, ascending
    i64[n]      the samples that have these keys, counted over all shards

Opening reads the facts and maps the rest, so it does not depend on the number of samples. The version word is the
store's for the state of a file: a shard of which it differs is an error when the data set is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import xxhash

from feedmill.errors import DataError
from feedmill.formats.base import no_such_key
from feedmill.formats.offsets import Int64s, hash_words
from feedmill.formats.webdataset import ScannedShards, ShardTable, in_file, scan_shard
from feedmill.jobs.cores import available_cores
from feedmill.jobs.threads import ordered_map
from feedmill.kernels import tar
from feedmill.kernels.tar import ShardScan
from feedmill.storage import Entry, Store
from feedmill.storage.cache import cached_copy

MAGIC = b"FMTARS1\n"
VERSION = 1
_COMPILED_FROM = 48 << 20


class _Facts(msgspec.Struct):
    version: int
    shards: list[tuple[str, int, str, int]]


def key_hash(key: str) -> int:
    """The hash of a key in the index."""
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))


def scan_shards(
    store: Store, entries: Sequence[Entry], *, advance: Callable[[int], None] = lambda _: None
) -> list[ShardScan]:
    """The samples of every shard, on all cores. Raises `DataError` for the first that is damaged."""
    compiled = sum(entry.size for entry in entries) >= _COMPILED_FROM

    def work(entry: Entry) -> ShardScan:
        found = scan_shard(store, entry.path, compiled=compiled)
        if found.problem is not None:
            raise in_file(found.problem, store.locate(entry.path))
        return found

    threads = 2 * available_cores()
    scans = []
    for entry, found in zip(entries, ordered_map(work, entries, workers=threads, in_flight=2 * threads), strict=True):
        scans.append(found)
        advance(entry.size)
    return scans


def encode_index(entries: Sequence[Entry], scans: Sequence[ShardScan]) -> bytes:
    """The bytes of the index file."""
    rows = [(e.path, e.size, e.version, len(scan.keys)) for e, scan in zip(entries, scans, strict=True)]
    facts = msgspec.json.encode(_Facts(VERSION, rows))
    facts += b" " * (-len(facts) % 8)
    hashes = np.fromiter((key_hash(key) for scan in scans for key in scan.keys), np.uint64)
    order = np.argsort(hashes, kind="stable")
    starts = [np.asarray(scan.starts, "<i8") for scan in scans]
    return b"".join(
        [
            MAGIC,
            len(facts).to_bytes(8, "little"),
            facts,
            *(one.tobytes() for one in starts),
            hashes[order].astype("<u8").tobytes(),
            order.astype("<i8").tobytes(),
        ]
    )


class IndexedTars(ShardTable):
    """The table of shards that an index file describes.

    Args:
        store: where the shards lie.
        index, path: where the index lies.
    """

    def __init__(self, store: Store, index: Store, path: str) -> None:
        self.store, self.path = store, index.locate(path)
        local = cached_copy(index, path)
        size = local.stat().st_size
        data = np.memmap(local, np.uint8, "r") if size else np.zeros(0, np.uint8)
        head = bytes(data[:16])
        length = int.from_bytes(head[8:], "little")
        try:
            if head[:8] != MAGIC or 16 + length > size:
                raise ValueError
            facts = msgspec.json.decode(bytes(data[16 : 16 + length]), type=_Facts)
            counts = np.asarray([row[3] for row in facts.shards], np.int64)
            total, shards = int(counts.sum()), len(counts)
            if facts.version != VERSION or (counts < 0).any() or 16 + length + 8 * (3 * total + shards) != size:
                raise ValueError
        except (ValueError, msgspec.MsgspecError, OverflowError):
            raise DataError(
                "this is not an index of tars, or it is damaged",
                file=self.path,
                kind="bad-index",
                fix="Delete it; it is made again with 'feedmill vla index'.",
            ) from None
        words = data[16 + length :]
        self.shards = [row[0] for row in facts.shards]
        self.states = [(row[1], row[2]) for row in facts.shards]
        self.counts = counts
        self._ends = np.cumsum(counts)
        self._starts = words[: 8 * (total + shards)].view("<i8")
        self._hashes = words[8 * (total + shards) : 8 * (2 * total + shards)].view("<u8")
        self._numbers = words[8 * (2 * total + shards) :].view("<i8")

    def offsets(self, shard: int) -> Int64s:
        first = int(self._ends[shard] - self.counts[shard]) + shard
        return np.asarray(self._starts[first : first + int(self.counts[shard]) + 1])

    def find(self, key: str) -> tuple[int, int]:
        hashed = np.uint64(key_hash(key))
        at = int(np.searchsorted(self._hashes, hashed))
        while at < len(self._hashes) and self._hashes[at] == hashed:
            number = int(self._numbers[at])
            shard = int(np.searchsorted(self._ends, number, side="right"))
            local = number - int(self._ends[shard] - self.counts[shard])
            if self._key(shard, local) == key:
                return shard, local
            at += 1
        raise no_such_key(self.store.url, key)

    def _key(self, shard: int, local: int) -> str | None:
        begin, end = self.offsets(shard)[local : local + 2].tolist()
        for member in tar.walk(self.store.read(self.shards[shard], begin, end - begin)):
            found = tar.sample_name(member.name) if member.regular else None
            if found is not None:
                return found[0]
        return None

    def fingerprint(self, first: int | None = None) -> str:
        upto = len(self.shards) if first is None else first
        words = [f"{s} {n}" for s, n in zip(self.shards[:upto], self.counts[:upto].tolist(), strict=True)]
        end = int(self._ends[upto - 1]) + upto if upto else 0
        starts = self._starts[:end]
        some = np.asarray(starts[:: max(1, end // 1000)])
        return hash_words([*words, some.tobytes().hex(), str(int(starts[-1])) if end else ""])


class ScannedTars(ScannedShards):
    """The same table without an index file, from scans."""

    def __init__(self, store: Store, shards: Sequence[str], scans: Sequence[ShardScan]) -> None:
        self.store, self.shards = store, list(shards)
        self._scans = list(scans)
        self.counts = np.asarray([len(scan.keys) for scan in scans], np.int64)
        self._keys: dict[str, tuple[int, int]] | None = None
