"""Hash files while they are read or written, to avoid a second pass.

`hashed_store` is for writers whose manifest has the hashes of their outputs; `HashedReader` and `HashedWriter` are for
single files. All hashes are 128-bit xxh3, in hex.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import xxhash

from feedmill.storage.base import Store

_STEP = 1 << 22


def hash_file(path: str) -> str:
    """Return the 128-bit xxh3 of a file on this machine, in hex."""
    return _hash_and_close(open(path, "rb", buffering=0))


def _hash_and_close(file: io.FileIO) -> str:
    # One buffer, because fresh memory for each block takes longer than hashing it.
    state, buffer = xxhash.xxh3_128(), memoryview(bytearray(_STEP))
    with file:
        while size := file.readinto(buffer):
            state.update(buffer[:size])
    return state.hexdigest()


class HashedReader:
    """A file that is hashed while it is read sequentially from its beginning."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._state = raw, xxhash.xxh3_128()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, and hash them."""
        data = self._raw.read(size)
        self._state.update(data)
        return data

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer, and hash them."""
        count: int = self._raw.readinto(buffer)  # type: ignore[attr-defined]
        self._state.update(memoryview(buffer)[:count])
        return count

    def hexdigest(self) -> str:
        """Return the hash of the whole file. Reads the rest first, which a decompressor may have left unread."""
        while self.read(_STEP):
            pass
        return self._state.hexdigest()

    def __getattr__(self, name: str) -> Any:
        if name in ("readline", "readall", "seek"):  # each would bypass the hash
            raise AttributeError(name)
        return getattr(self._raw, name)


class HashedWriter:
    """A file that is hashed while it is written sequentially."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._state = raw, xxhash.xxh3_128()

    def write(self, data: bytes) -> int:
        """Write bytes, and hash them."""
        self._state.update(data)
        return self._raw.write(data)

    def tell(self) -> int:
        """Return the position in the file."""
        return self._raw.tell()

    def flush(self) -> None:
        """Flush the file."""
        self._raw.flush()

    def hexdigest(self) -> str:
        """Return the hash of the bytes written so far."""
        return self._state.hexdigest()


class _HashedStore:
    """The view of a store that `hashed_store` returns."""

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
        from concurrent.futures import ThreadPoolExecutor

        # It is hashed while it is synced to the disk. It is opened before it gets its name.
        with ThreadPoolExecutor(1, "feedmill-hash") as pool, self._store.build(path) as file:
            yield file
            digest = pool.submit(_hash_and_close, open(file, "rb", buffering=0))  # noqa: SIM115 - the function closes it
        self.hashes[path] = digest.result()

    def write_bytes(self, path: str, data: bytes) -> None:
        self._store.write_bytes(path, data)
        self.hashes[path] = xxhash.xxh3_128_hexdigest(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def hashed_store(store: Store) -> tuple[Store, dict[str, str]]:
    """Return a view of a store that hashes the files written through it, and the hashes by path.

    A file that is written sequentially is hashed meanwhile; a file that is built in place is read once more.
    """
    view = _HashedStore(store)
    return cast(Store, view), view.hashes


def hash_of(store: Store, path: str) -> str:
    """Return the 128-bit xxh3 of a file of any store, in hex. Reads 4 MiB at a time. Raises as `Store.read`."""
    state, offset = xxhash.xxh3_128(), 0
    size = store.stat(path).size
    while offset < size:
        block = store.read(path, offset, min(_STEP, size - offset))
        state.update(block)
        offset += len(block)
    return state.hexdigest()
