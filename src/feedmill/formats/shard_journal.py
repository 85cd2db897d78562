"""Finished shards of unfinished work, so that a killed run is continued and not begun again.

What `prepare` has scanned and what writers have written is kept beside the index of a local dataset, or in the cache
folder for a remote one (see `feedmill.storage.frames`), and removed when the index is complete.
"""

from __future__ import annotations

import contextlib

import msgspec
import numpy as np

from feedmill.formats.sidecar import ShardRecord
from feedmill.kernels.files.tar import ShardScan
from feedmill.storage import Store
from feedmill.storage.frames import FrameFile, frames_place
from feedmill.storage.local import LocalStore

NAME = ".nv-meta/feedmill.prepare.journal"


def interrupted(store: Store) -> bool:
    """Whether `prepare` was begun on a dataset and has not ended well."""
    place, name = frames_place(store, NAME)
    return place.exists(name)


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
    """Scans of one dataset's shards, in the file `name` of a store on this machine's disk."""

    def __init__(self, store: LocalStore, name: str) -> None:
        self._frames = FrameFile(store, name)

    @classmethod
    def of(cls, store: Store, name: str = NAME) -> Journal:
        """The journal of a dataset: the file `name` of a local one."""
        return cls(*frames_place(store, name))

    def read(self) -> dict[str, tuple[ShardRecord, ShardScan]]:
        """Whole frames by shard path."""
        found: dict[str, tuple[ShardRecord, ShardScan]] = {}
        for body in self._frames.read():
            with contextlib.suppress(msgspec.MsgspecError, ValueError):  # of something else: the shard is read again
                frame = msgspec.msgpack.decode(body, type=_Frame)
                found[frame.shard] = (frame.record, _scan(frame))
        return found

    def add(self, shard: str, record: ShardRecord, scan: ShardScan) -> None:
        """Append one finished scan. Names that are not UTF-8 are left out: they fail later, with a message."""
        arrays = [a.tobytes() for a in (scan.starts, scan.sample, scan.data, scan.sizes)]
        frame = _Frame(shard, record, scan.keys, scan.parts, arrays[0], arrays[1], arrays[2], arrays[3], scan.closed)
        try:
            body = msgspec.msgpack.encode(frame)
        except UnicodeEncodeError:
            return
        self._frames.add(body)

    def sync(self) -> None:
        """Wait until all that was added is on the disk. Raises `StorageError`."""
        self._frames.sync()

    @property
    def exists(self) -> bool:
        """Whether anything was added, now or by a run before."""
        return self._frames.exists

    def close(self, *, remove: bool) -> None:
        """Close the file; remove it once the index is complete."""
        self._frames.close(remove=remove)


def _scan(frame: _Frame) -> ShardScan:
    starts, data, sizes = (np.frombuffer(raw, np.int64) for raw in (frame.starts, frame.data, frame.sizes))
    sample = np.frombuffer(frame.sample, np.int32)
    if len(starts) != len(frame.keys) + 1 or {len(sample), len(data), len(sizes)} != {len(frame.parts)}:
        raise ValueError("a frame whose columns are of different lengths")
    return ShardScan(frame.keys, starts, sample, frame.parts, data, sizes, None, frame.closed)
