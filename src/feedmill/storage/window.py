"""A range of a stored file as a file object, for libraries that seek in files too large to load."""

from __future__ import annotations

import io
from typing import Any

from feedmill.storage.base import Store


class Window(io.RawIOBase):
    """The bytes ``[offset, offset + length)`` of a file as a read-only, seekable file. Bytes are read on demand.

    Wrap it in `io.BufferedReader` for small reads. It can be pickled, without its data. It is not thread-safe.

    Args:
        store: store of the file.
        path: path of the file there.
        offset: first byte.
        length: number of bytes.
    """

    def __init__(self, store: Store, path: str, offset: int, length: int) -> None:
        self.store, self.path, self.offset, self.length = store, path, offset, length
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position, counted from the beginning of the window."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position; return the new one. Raises `ValueError` if it would be negative."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.length}[whence]
        if base + offset < 0:
            raise ValueError(f"negative position in a file: {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer; return their number, 0 at the end. Raises as `Store.read`."""
        view = memoryview(buffer).cast("B")
        count = min(len(view), max(self.length - self._at, 0))
        if count:
            view[:count] = self.store.read(self.path, self.offset + self._at, count)
            self._at += count
        return count

    def __reduce__(self) -> Any:
        return Window, (self.store, self.path, self.offset, self.length)
