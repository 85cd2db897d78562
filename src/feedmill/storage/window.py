"""A piece of a stored file as a file of its own, read by offset: for libraries that seek in what is too large."""

from __future__ import annotations

import io
from typing import Any

from feedmill.storage.base import Store


class Window(io.RawIOBase):
    """The bytes ``[offset, offset + length)`` of a file, read-only and seekable; none is read before it is asked for.

    Wrap it in `io.BufferedReader` where the reader asks for little at a time. Pickles as its place, without data. Not
    for several threads at once.
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
