"""Read files by name: auxiliary data that samples refer to, and a dataset's own parts.

A store is opened once and serves many names. Its data is one of these:

- A dataset in any format, prepared or not: names are member names (``000012.jpg``). With the index of ``feedmill
  prepare``, access by name takes one lookup in a memory-mapped table and one read, and nothing is opened twice.
- A folder (``filesystem://PATH``, relative or absolute; ``filesystem+s3://...``): names are paths below it. A name
  cannot point outside the folder; a symbolic link in it can, since the owner of the folder created it.
- A JSONL file: names are line numbers, ``12`` or ``12.json``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import MutableMapping, Sequence
from typing import Any, Generic, TypeVar

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.base import Dataset
from feedmill.formats.jsonl.dataset import JsonlDataset
from feedmill.formats.sample import Decode, Sample, Source, split_name
from feedmill.samples.mediafacts import MediaFacts, MediaMetadata
from feedmill.samples.open import open as open_dataset
from feedmill.storage import Store, open_store

T = TypeVar("T")

FOLDER = "filesystem"


class FileStore(ABC, Generic[T]):
    """Interface of a store of files by name. Stores are thread-safe.

    A subclass defines `get_path`, and either `raw` and `source`, or ``__getitem__`` as for Energon, which returns a
    value and its location. In the latter case, the value stands for the bytes, too.
    """

    def raw(self, name: str) -> bytes:
        """Return the bytes of one file.

        Raises:
            NotFound: The file does not exist.
            DataError: The data is corrupt.
            ConfigError: The name points outside the store.
        """
        return self._item(name)[0]  # type: ignore[return-value]

    def source(self, name: str) -> Source:
        """Return the location of one file; its `index` is the name. Raises `NotFound`."""
        return self._item(name)[1]

    @abstractmethod
    def get_path(self) -> str:
        """Return the path or URL of the store."""

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Return size, duration and format of one file, as stored by ``prepare-media``. Raises `NotFound`."""
        raise NotFound("the store has no media metadata", file=self.get_path(), record=key, kind="not-prepared")

    def raw_with_source(self, name: str) -> tuple[bytes, Source | None]:
        """Return the bytes of one file, and its location if reading the file has given it. Raises as `raw`."""
        if type(self).raw is FileStore.raw:
            data, source = self._item(name)
            return data, source  # type: ignore[return-value]
        return self.raw(name), None

    def value(self, name: str, data: bytes) -> Any:  # noqa: ARG002
        """Return the value of a file's bytes, as `get` returns it: the bytes, unless the store decodes."""
        return data

    def raw_many(self, names: Sequence[str]) -> list[bytes]:
        """Return the bytes of many files, in the requested order. Raises the errors of `raw`."""
        return [self.raw(name) for name in names]

    def __getitem__(self, key: str) -> tuple[T, Source]:
        """Return a file's value and its location."""
        return self.value(key, self.raw(key)), self.source(key)

    def get(self, key: str, sample: Any = None) -> Any:
        """Return a file's value. If `sample` is given, add the file's location to the sample's sources."""
        data, source = self.raw_with_source(key)
        if sample is not None:
            add_source(sample, source or self.source(key))
        return self.value(key, data)

    def get_many(self, keys: Sequence[str], sample: Any = None) -> list[Any]:
        """Return the values of many files, read together; see `get`."""
        blocks = self.raw_many(keys)
        if sample is not None:
            for key in keys:
                add_source(sample, self.source(key))
        return [self.value(key, data) for key, data in zip(keys, blocks, strict=True)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.get_path()!r})"

    def _item(self, name: str) -> tuple[T, Source]:
        """Return the result of a subclass's ``__getitem__``."""
        if type(self).__getitem__ is FileStore.__getitem__:
            raise NotImplementedError(f"{type(self).__name__} defines neither raw and source nor __getitem__")
        return self[name]


class DatasetFileStore(FileStore[bytes]):
    """Store of a dataset's parts by file name."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._facts = MediaFacts(open_store(dataset.url), dataset.url)

    def raw(self, name: str) -> bytes:
        return self.dataset.get(name)

    def raw_many(self, names: Sequence[str]) -> list[bytes]:
        return self.dataset.get_many(names)

    def source(self, name: str) -> Source:
        return self.dataset.locate_part(name)

    def get_path(self) -> str:
        return self.dataset.url

    def get_media_metadata(self, key: str) -> MediaMetadata:
        return self._facts.find(key)


class JsonlFileStore(DatasetFileStore):
    """Store of the lines of a JSONL file by number: ``12`` or ``12.json``."""

    def raw(self, name: str) -> bytes:
        return self.dataset.get(_line(name))

    def raw_many(self, names: Sequence[str]) -> list[bytes]:
        numbers = [self.dataset.find(split_name(_line(name))[0]) for name in names]
        return [sample.raw("json") for sample in self.dataset.read_raw(numbers)]

    def source(self, name: str) -> Source:
        return self.dataset.locate_part(_line(name))

    def value(self, name: str, data: bytes) -> Any:
        return super().value(_line(name), data)

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Raise `NotFound`: lines are not media files."""
        raise NotFound(
            "the lines of a JSONL file have no media metadata",
            file=self.get_path(),
            record=key,
            kind="not-prepared",
        )


class FolderFileStore(FileStore[bytes]):
    """Store of the files of a folder by their paths below it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._facts = MediaFacts(store, store.url)

    def raw(self, name: str) -> bytes:
        return self.store.read(self._inside(name))

    def source(self, name: str) -> Source:
        size = self.store.stat(self._inside(name)).size
        return Source(self.store.url, name, 0, size, name, split_name(name)[0], (name,))

    def get_path(self) -> str:
        return self.store.url

    def get_media_metadata(self, key: str) -> MediaMetadata:
        return self._facts.find(self._inside(key))

    def _inside(self, name: str) -> str:
        if not name:
            raise NotFound("the requested file name is empty", file=self.store.url, fix="Check the sample.")
        path = name.removeprefix("./")
        if path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise ConfigError(
                f"the name {name!r} leaves the folder",
                file=self.store.url,
                record=name,
                kind="unsafe-name",
                fix="Use paths below the folder, without '..'. If the files lie elsewhere, set a parent folder in"
                " 'aux'.",
            )
        return path


class DecodedFileStore(FileStore[Any]):
    """Store that decodes the values of another store by their names' suffixes."""

    def __init__(self, inner: FileStore[Any], decode: Decode) -> None:
        self.inner, self.decode = inner, decode

    def raw(self, name: str) -> bytes:
        return self.inner.raw(name)

    def raw_with_source(self, name: str) -> tuple[bytes, Source | None]:
        return self.inner.raw_with_source(name)

    def raw_many(self, names: Sequence[str]) -> list[bytes]:
        return self.inner.raw_many(names)

    def source(self, name: str) -> Source:
        return self.inner.source(name)

    def value(self, name: str, data: bytes) -> Any:
        part = split_name(_line(name) if isinstance(self.inner, JsonlFileStore) else name)[1]
        try:
            return self.decode(part or name, data)
        except FeedmillError as error:
            if error.file is None:
                error.file, error.record = self.get_path(), name
            raise

    def get_path(self) -> str:
        return self.inner.get_path()

    def get_media_metadata(self, key: str) -> MediaMetadata:
        return self.inner.get_media_metadata(key)


class PrimaryFileStore(FileStore[Any]):
    """Store of a sample's own dataset; a name that begins with a dot is a part of the sample itself."""

    def __init__(self, inner: FileStore[Any], sample: Sample) -> None:
        self.inner, self._sample = inner, sample

    def raw(self, name: str) -> bytes:
        return self._sample.raw(name[1:]) if name.startswith(".") else self.inner.raw(name)

    def source(self, name: str) -> Source:
        return self.inner.source(self._full(name))

    def value(self, name: str, data: bytes) -> Any:
        return self.inner.value(self._full(name), data)

    def get_path(self) -> str:
        return self.inner.get_path()

    def get_media_metadata(self, key: str) -> MediaMetadata:
        return self.inner.get_media_metadata(self._full(key))

    def _full(self, name: str) -> str:
        return self._sample.key + name if name.startswith(".") else name


def open_file_store(url: str | os.PathLike[str]) -> FileStore[Any]:
    """Return the store at a path or URL, as in `aux` of a metadataset. The module docstring lists the kinds of stores.

    Raises:
        NotFound: The dataset, folder or file does not exist.
        ConfigError: The path is not a dataset or folder with files by name.
    """
    url = os.fspath(url)
    scheme, mark, path = url.partition("://")
    if mark and (scheme == FOLDER or scheme.startswith(f"{FOLDER}+")):
        store = open_store(path if scheme == FOLDER else f"{scheme.removeprefix(FOLDER + '+')}://{path}")
        _check_there(store)
        return FolderFileStore(store)
    try:
        dataset = open_dataset(url, raw=True, decode=None)
    except FeedmillError as error:
        if error.fix is None or "filesystem" not in error.fix:
            error.fix = f"{error.fix or ''} For a folder of plain files, use 'filesystem://PATH'.".strip()
        raise
    return store_of(dataset)


def store_of(dataset: Dataset) -> FileStore[Any]:
    """Return a store of the files of an open dataset."""
    return JsonlFileStore(dataset) if isinstance(dataset, JsonlDataset) else DatasetFileStore(dataset)


def add_source(sample: Any, source: Source) -> None:
    """Add a source to a crude sample, a mapping with ``__sources__``, or a typed sample."""
    if isinstance(sample, Sample):
        sample.add_source(source)
    elif isinstance(sample, MutableMapping):
        sample["__sources__"] = (*(sample.get("__sources__") or ()), source)
    elif hasattr(sample, "__sources__"):
        sample.__sources__ = (*(sample.__sources__ or ()), source)


def _check_there(store: Store) -> None:
    if store.is_local and not os.path.isdir(store.url):
        raise NotFound("there is no such folder", file=store.url, kind="not-found", fix="Check the path.")


def _line(name: str) -> str:
    return name if name.endswith(".json") else f"{name}.json"


def folder_store(base_dir: str | None = None) -> FolderFileStore:
    """Return the store of a folder, by default the current folder. Raises `NotFound`."""
    store = open_store(base_dir or ".")
    _check_there(store)
    return FolderFileStore(store)
