"""Files that are hashed while they are read or written, to avoid a second pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import xxhash

from feedmill.storage.base import Store

_STEP = 1 << 22


def hash_file(path: str) -> str:
    """Return the 128-bit xxh3 of a file on this machine, in hex."""
    state = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as f:
        while block := f.read(_STEP):
            state.update(block)
    return state.hexdigest()


class HashedReader:
    """A file being read from its beginning to its end, in order."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._state = raw, xxhash.xxh3_128()

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        self._state.update(data)
        return data

    def readinto(self, buffer: Any) -> int:
        count: int = self._raw.readinto(buffer)  # type: ignore[attr-defined]
        self._state.update(memoryview(buffer)[:count])
        return count

    def hexdigest(self) -> str:
        """Return the hash of the whole file, including bytes that a decompressor left unread after its last member."""
        while self.read(_STEP):
            pass
        return self._state.hexdigest()

    def __getattr__(self, name: str) -> Any:
        if name in ("readline", "readall", "seek"):  # each would bypass the hash
            raise AttributeError(name)
        return getattr(self._raw, name)


class HashedWriter:
    """A file being written, in order."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._state = raw, xxhash.xxh3_128()

    def write(self, data: bytes) -> int:
        self._state.update(data)
        return self._raw.write(data)

    def tell(self) -> int:
        return self._raw.tell()

    def flush(self) -> None:
        self._raw.flush()

    def hexdigest(self) -> str:
        """Return the hash of what was written."""
        return self._state.hexdigest()


class _HashedStore:
    """See `hashed_store`."""

    def __init__(self, store: Store) -> None:
        self._store, self.hashes = store, dict[str, str]()

    @contextlib.contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        with self._store.write(path) as raw:
            file = HashedWriter(raw)
            yield cast(BinaryIO, file)
        self.hashes[path] = file.hexdigest()

    @contextlib.contextmanager
    def build(self, path: str) -> Iterator[Path]:
        with self._store.build(path) as file:
            yield file
            digest = hash_file(str(file))
        self.hashes[path] = digest

    def write_bytes(self, path: str, data: bytes) -> None:
        self._store.write_bytes(path, data)
        self.hashes[path] = xxhash.xxh3_128_hexdigest(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def hashed_store(store: Store) -> tuple[Store, dict[str, str]]:
    """Return a view of a store that hashes what is written through it, and the hashes by path.

    A file that is written in order is hashed as it passes; one that is built in place is read once more.
    """
    view = _HashedStore(store)
    return cast(Store, view), view.hashes


def hash_of(store: Store, path: str) -> str:
    """Return the 128-bit xxh3 of a file of any store, in hex; read in steps of 4 MiB. Raises `StorageError`."""
    state, at = xxhash.xxh3_128(), 0
    size = store.stat(path).size
    while at < size:
        block = store.read(path, at, min(_STEP, size - at))
        state.update(block)
        at += len(block)
    return state.hexdigest()
