"""An append-only file of frames ``length, xxh3, body``, for work that a killed run can take up again.

A torn or foreign tail is ignored, and cut off by the next frame that is added. Nothing is synced: a frame that the
machine loses with its power is work done twice, never work done wrong.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from feedmill.storage.base import Store
from feedmill.storage.cache import cache_folder
from feedmill.storage.local import storage_error

_HEAD = struct.Struct("<QQ")


def frames_path(store: Store, name: str) -> Path:
    """The file `name` of a local data set; of a remote one, a file of its own in the cache folder."""
    if store.is_local:
        return Path(store.locate(name))
    work = name.rpartition("feedmill.")[2].removesuffix(".journal").replace("/", "-")
    return cache_folder() / f"{work}-{xxhash.xxh3_64_hexdigest(store.url.encode())}.journal"


class FrameFile:
    """Frames on this machine's disk; read once, then appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self._whole = 0

    def read(self) -> Iterator[bytes]:
        """The whole frames' bodies, in the order in which they were added."""
        try:
            data = self.path.read_bytes()
        except OSError:
            return
        at = 0
        while at + _HEAD.size <= len(data):
            length, digest = _HEAD.unpack_from(data, at)
            body = data[at + _HEAD.size : at + _HEAD.size + length]
            if len(body) < length or xxhash.xxh3_64_intdigest(body) != digest:
                break
            at = self._whole = at + _HEAD.size + length
            yield body

    def add(self, body: bytes) -> None:
        """Append one frame. Raises `StorageError`."""
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
        """Close the file; remove it once what it was kept for is written."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if remove:
            self.path.unlink(missing_ok=True)
