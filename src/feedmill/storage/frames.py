"""An append-only file of frames ``length, xxh3, body``, for work that a killed run can take up again.

A torn or foreign tail is ignored, and cut off by the next frame that is added. Nothing is synced unless `sync` is
called: a frame that the machine loses with its power is work done twice. Who cannot do its work twice has to sync.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import Any

import xxhash

from feedmill.errors import FeedmillError
from feedmill.storage.base import Store
from feedmill.storage.cache import cache_folder
from feedmill.storage.local import LocalStore, storage_error
from feedmill.storage.staging import sync

_HEAD = struct.Struct("<QQ")


def frames_place(store: Store, name: str) -> tuple[LocalStore, str]:
    """The file `name` of a local dataset; of a remote one, a file of its own in the cache folder."""
    if isinstance(store, LocalStore):
        return store, name
    work = name.rpartition("feedmill.")[2].removesuffix(".journal").replace("/", "-")
    return LocalStore(cache_folder()), f"{work}-{xxhash.xxh3_64_hexdigest(store.url.encode())}.journal"


class FrameFile:
    """Frames in the file `name` of a store on this machine's disk; read once, then appended to."""

    def __init__(self, store: LocalStore, name: str) -> None:
        self._store, self._name = store, name
        self._file: Any = None
        self._whole = 0

    def read(self) -> Iterator[bytes]:
        """The whole frames' bodies, in the order in which they were added."""
        try:
            data = self._store.read(self._name)
        except FeedmillError:
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
                self._file = self._store.append(self._name)
                self._file.truncate(self._whole)
            self._file.write(_HEAD.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body)
            self._file.flush()
            self._whole += _HEAD.size + len(body)
        except OSError as error:
            self._abandon()
            raise storage_error(error, self._store.locate(self._name)) from None

    def _abandon(self) -> None:
        """Close the file without the rest of a frame that could not be written, which closing would try again."""
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            if file is not None:
                file.close()

    def sync(self) -> None:
        """Wait until every frame is on the disk. Raises `StorageError`."""
        path = self._store.locate(self._name)
        try:
            if os.path.exists(path):
                sync(path)
                sync(os.path.dirname(path))
        except OSError as error:
            raise storage_error(error, path) from None

    @property
    def exists(self) -> bool:
        """Whether there are any."""
        return self._store.exists(self._name)

    def close(self, *, remove: bool) -> None:
        """Close the file; remove it once what it was kept for is written."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if remove:
            self._store.delete(self._name)
