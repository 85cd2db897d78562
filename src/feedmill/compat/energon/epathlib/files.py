"""Files of stores as file objects, as `EPath.open` returns them."""

from __future__ import annotations

import io
from typing import Any

from feedmill.storage import Store
from feedmill.storage.window import Window

_BUFFER = 1 << 20


def open_for_reading(store: Store, name: str, is_text: bool, whole: bool) -> Any:
    """Return a file object that reads a file of a store. Raises `NotFound`.

    Args:
        store: the store.
        name: path of the file in it.
        is_text: return text, decoded as UTF-8, instead of bytes.
        whole: read the whole file at once. By default, ranges of remote files are requested when they are read.
    """
    file: Any
    if store.is_local:
        store.stat(name)
        file = open(store.locate(name), "rb")  # noqa: SIM115 - the caller closes it
    elif whole:
        file = io.BytesIO(store.read(name))
    else:
        file = io.BufferedReader(Window(store, name, 0, store.stat(name).size), _BUFFER)
    return io.TextIOWrapper(file, "utf-8") if is_text else file


def open_for_writing(store: Store, name: str, is_text: bool) -> Any:
    """Return a file object that writes a file of a store, which appears when it is closed.

    Args:
        store: the store.
        name: path of the file in it.
        is_text: take text, which is encoded as UTF-8, instead of bytes.
    """
    file: Any = _Output(store, name)
    return _TextOutput(file, "utf-8") if is_text else file


class _Output(io.BufferedIOBase):
    """A file of a store for writing. Leaving a ``with`` block by an error discards it."""

    def __init__(self, store: Store, name: str) -> None:
        self._writing = store.write(name)
        self._file = self._writing.__enter__()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(data)
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._writing.__exit__(None, None, None)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.discard(kind, error, trace)

    def discard(self, kind: Any, error: Any, trace: Any) -> None:
        """Remove what was written, because of an error."""
        if not self.closed:
            super().close()
            self._writing.__exit__(kind, error, trace)


class _TextOutput(io.TextIOWrapper):
    """Text for an `_Output`."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            output: Any = self.detach()
            output.discard(kind, error, trace)
