"""Finished shards of unfinished work, so that a killed run is continued and not begun anew.

What `prepare` has scanned and what writers have written is kept in an append-only file of frames ``length, xxh3,
msgpack``; a torn or foreign tail is ignored. It lies beside the index of a local data set, or in the cache folder for a
remote one, and is removed when the index is complete.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from feedmill.formats.sidecar import ShardRecord
from feedmill.kernels.tar import ShardScan
from feedmill.storage import Store
from feedmill.storage.local import storage_error

NAME = ".nv-meta/feedmill.prepare.journal"
_HEAD = struct.Struct("<QQ")


class _Frame(msgspec.Struct, array_like=True):
    shard: str
    record: ShardRecord
    keys: list[str]
    parts: list[str]
    starts: bytes
    sample: bytes
    data: bytes
    sizes: bytes
    closed: bool


class Journal:
    """Scans of one data set's shards, on this machine's disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self._whole = 0

    @classmethod
    def of(cls, store: Store, name: str = NAME) -> Journal:
        """The journal of a data set: the file `name` of a local one."""
        if store.is_local:
            return cls(Path(store.locate(name)))
        from feedmill.storage.cache import cache_folder

        work = name.rpartition("feedmill.")[2].removesuffix(".journal").replace("/", "-")
        return cls(cache_folder() / f"{work}-{xxhash.xxh3_64_hexdigest(store.url.encode())}.journal")

    def read(self) -> dict[str, tuple[ShardRecord, ShardScan]]:
        """Whole frames by shard path."""
        found: dict[str, tuple[ShardRecord, ShardScan]] = {}
        try:
            data = self.path.read_bytes()
        except OSError:
            return found
        at = 0
        while at + _HEAD.size <= len(data):
            length, digest = _HEAD.unpack_from(data, at)
            body = data[at + _HEAD.size : at + _HEAD.size + length]
            if len(body) < length or xxhash.xxh3_64_intdigest(body) != digest:
                break
            frame = msgspec.msgpack.decode(body, type=_Frame)
            arrays = [np.frombuffer(raw, np.int64) for raw in (frame.starts, frame.data, frame.sizes)]
            sample = np.frombuffer(frame.sample, np.int32)
            scan = ShardScan(frame.keys, arrays[0], sample, frame.parts, arrays[1], arrays[2], None, frame.closed)
            found[frame.shard] = (frame.record, scan)
            at = self._whole = at + _HEAD.size + length
        return found

    def add(self, shard: str, record: ShardRecord, scan: ShardScan) -> None:
        """Append one finished scan. Names that are not UTF-8 are left out: they fail later, with a message."""
        arrays = [a.tobytes() for a in (scan.starts, scan.sample, scan.data, scan.sizes)]
        frame = _Frame(shard, record, scan.keys, scan.parts, arrays[0], arrays[1], arrays[2], arrays[3], scan.closed)
        try:
            body = msgspec.msgpack.encode(frame)
        except UnicodeEncodeError:
            return
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(self.path, "ab")  # noqa: SIM115 - closed by `close`
                self._file.truncate(self._whole)
            self._file.write(_HEAD.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body)
            self._file.flush()
        except OSError as error:
            raise storage_error(error, os.fspath(self.path)) from None

    def close(self, *, remove: bool) -> None:
        """Close the file; remove it once the index is complete."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if remove:
            self.path.unlink(missing_ok=True)
