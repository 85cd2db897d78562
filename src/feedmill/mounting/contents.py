"""Read the bytes of a mounted dataset's files by offset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from feedmill.errors import DataError
from feedmill.formats.base import Dataset
from feedmill.formats.offsets import Int64s
from feedmill.formats.tar.tables import ShardTable
from feedmill.kernels.files import tar
from feedmill.mounting.catalog import File
from feedmill.storage import Store
from feedmill.storage.limits import max_unpacked, too_large


class Content(ABC):
    """Interface of an open file."""

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer at the end of the file."""


class Stored(Content):
    """Part that is stored contiguously in a shard."""

    def __init__(self, store: Store, shard: str, begin: int, size: int) -> None:
        self.store, self.shard, self.begin, self.size = store, shard, begin, size

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        return self.store.read(self.shard, self.begin + offset, length) if length > 0 else b""


class Held(Content):
    """Part assembled in memory (a sparse file), or a record."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


class Contents(ABC):
    """Interface that opens a catalog's files."""

    @abstractmethod
    def open(self, file: File) -> Content:
        """Open a file. Raises `DataError` if the bytes do not match the index."""


class TarContents(Contents):
    """Opener of parts in tars. It compares headers with the index, so that a stale index never yields wrong bytes.

    Args:
        store: Store of the shards.
        shards: Paths of the shards, in the catalog's numbering.
        table: Offsets of the shards' samples, in the same numbering.
    """

    def __init__(self, store: Store, shards: Sequence[str], table: ShardTable) -> None:
        self.store, self.shards, self.table = store, shards, table

    def open(self, file: File) -> Content:
        if not (0 <= file.shard < len(self.shards) and 0 <= file.sample < len(self.table.offsets(file.shard)) - 1):
            raise self._stale(file, None)
        path = self.shards[file.shard]
        header = self.store.read(path, file.offset - tar.BLOCK, tar.BLOCK) if file.offset >= tar.BLOCK else b""
        name = file.name.encode("utf-8", "surrogateescape") + b"\0"
        plain = header.startswith(name) and header[124:135] == b"%011o" % file.size and header[156] == 0x30
        if plain and not header[345] and not self._extended(file):
            return Stored(self.store, path, file.offset, file.size)
        offsets = self.table.offsets(file.shard)
        begin, end = int(offsets[file.sample]), int(offsets[file.sample + 1])
        for member in tar.walk(_Window(self.store, path, begin, end), 0, end - begin):  # type: ignore[arg-type]
            if member.name == file.name and member.size == file.size:
                if member.sparse is None:
                    return Stored(self.store, path, begin + member.data, member.size)
                limit = max_unpacked(end - begin)
                if member.size > limit:
                    raise too_large(limit, file=self.store.locate(path), record=member.name, offset=begin)
                return Held(tar.expand(_Window(self.store, path, begin, end), member))  # type: ignore[arg-type]
        raise self._stale(file, path)

    def _stale(self, file: File, path: str | None) -> DataError:
        return DataError(
            "the file is not at the location given by the index",
            file=self.store.url if path is None else self.store.locate(path),
            record=file.name,
            offset=file.offset,
            kind="stale-index",
            fix="The shard changed after it was indexed: run 'feedmill prepare' again.",
        )

    def _extended(self, file: File) -> bool:
        """Return whether the first header of the sample is an extended header, which the fast path cannot read."""
        offsets: Int64s = self.table.offsets(file.shard)
        begin = int(offsets[file.sample])
        if file.offset - tar.BLOCK == begin:
            return False
        before = self.store.read(self.shards[file.shard], begin, tar.BLOCK)
        return before[156:157] in (b"x", b"g", b"L")


class RecordContents(Contents):
    """Opener of whole records of a dataset."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def open(self, file: File) -> Content:
        return Held(self.dataset.read_raw([file.sample])[0].raw("json"))


class _Window:
    """Range of a file, read on access, with the buffer operations that `tar.walk` needs."""

    def __init__(self, store: Store, path: str, begin: int, end: int) -> None:
        self.store, self.path, self.begin, self.end = store, path, begin, end

    def __len__(self) -> int:
        return self.end - self.begin

    def __getitem__(self, piece: slice) -> bytes:
        start, stop, _ = piece.indices(len(self))
        return self.store.read(self.path, self.begin + start, stop - start) if stop > start else b""
