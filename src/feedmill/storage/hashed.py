"""Files that are hashed while they are read or written, to avoid a second pass."""

from __future__ import annotations

from typing import Any, BinaryIO

import xxhash

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

    def flush(self) -> None:
        self._raw.flush()

    def hexdigest(self) -> str:
        """Return the hash of what was written."""
        return self._state.hexdigest()
