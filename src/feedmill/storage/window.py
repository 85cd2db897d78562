"""A range of a stored file as a file object, for libraries that seek in files too large to load."""

from __future__ import annotations

import io
from typing import Any

from feedmill.storage.base import Store


class Window(io.RawIOBase):
    """The bytes ``[offset, offset + length)`` of a file, read-only and seekable; each is read on demand.

    Wrap it in `io.BufferedReader` for small reads. Pickles as its location, without data. Not thread-safe.
    """

    def __init__(self, store: Store, path: str, offset: int, length: int) -> None:
        self.store, self.path, self.offset, self.length = store, path, offset, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.length}[whence]
        if base + offset < 0:
            raise ValueError(f"there is no position {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer. Raises what `Store.read` does."""
        view = memoryview(buffer).cast("B")
        count = min(len(view), max(self.length - self._at, 0))
        if count:
            view[:count] = self.store.read(self.path, self.offset + self._at, count)
            self._at += count
        return count

    def __reduce__(self) -> Any:
        return Window, (self.store, self.path, self.offset, self.length)
