"""Energon's classes of file stores and its cache pool: names and arguments of Feedmill's own.

A subclass of Energon's `FileStore` has only ``__getitem__`` and ``get_path``; Feedmill's base class takes that.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

from feedmill.loading import cachepool
from feedmill.samples import stores
from feedmill.samples.decode import SampleDecoder
from feedmill.samples.open import open as open_dataset

__all__ = [
    "DecodeFileStore",
    "FileStoreCachePool",
    "FileStoreDecoder",
    "JsonlFileStore",
    "SystemFileStore",
    "WebdatasetFileStore",
]


class FileStoreDecoder(ABC):
    """Base class of your own decoders for `DecodeFileStore`. `SampleDecoder` counts as one."""

    @abstractmethod
    def decode(self, fname: str, data: bytes) -> Any:
        """Return the value of a file."""


FileStoreDecoder.register(SampleDecoder)


class DecodeFileStore(stores.DecodedFileStore):
    """A store that decodes the files of another one.

    Args:
        inner: the other store.
        decoder: its method `decode` takes the name and bytes of a file.
    """

    def __init__(self, inner: stores.FileStore[Any], *, decoder: FileStoreDecoder | SampleDecoder) -> None:
        super().__init__(inner, decoder.decode)
        self.decoder = decoder


class SystemFileStore(stores.FolderFileStore):
    """The files of a folder by their paths below it.

    Args:
        base_dir: the folder; None for all files of this machine, by absolute paths.
    """

    def __init__(self, base_dir: str | os.PathLike[str] | None = None) -> None:
        super().__init__(stores.folder_store("/" if base_dir is None else os.fspath(base_dir)).store)
        self.base_dir = base_dir

    def _inside(self, name: str) -> str:
        return super()._inside(os.path.abspath(name).lstrip("/") if self.base_dir is None else name)


class WebdatasetFileStore(stores.DatasetFileStore):
    """The parts of a dataset by their names."""

    def __init__(self, dataset_path: str | os.PathLike[str]) -> None:
        super().__init__(open_dataset(dataset_path, raw=True, decode=None))


class JsonlFileStore(stores.JsonlFileStore):
    """The lines of a JSONL file by their numbers."""

    def __init__(self, jsonl_path: str | os.PathLike[str]) -> None:
        super().__init__(open_dataset(jsonl_path, raw=True, decode=None))


class FileStoreCachePool(cachepool.FileStoreCachePool):
    """The pool of Feedmill, with the names of Energon for its folder, sizes and limits."""

    @property
    def cache_dir(self) -> Any:
        """Return the folder of this process."""
        return self.folder

    @property
    def current_cache_count(self) -> int:
        """Return the number of files on the disk."""
        return self.held[0]

    @property
    def current_cache_size(self) -> int:
        """Return the bytes on the disk."""
        return self.held[1]

    @property
    def max_cache_size(self) -> int:
        """Return the maximum of bytes on the disk. It can be set, for this process."""
        return self._process_folder().most_size

    @max_cache_size.setter
    def max_cache_size(self, size: int) -> None:
        self._process_folder().most_size = size

    @property
    def max_cache_count(self) -> int:
        """Return the maximum number of files on the disk. It can be set, for this process."""
        return self._process_folder().most_count

    @max_cache_count.setter
    def max_cache_count(self, count: int) -> None:
        self._process_folder().most_count = count
