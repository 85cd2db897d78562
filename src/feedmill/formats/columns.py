"""Read Parquet and Arrow files block by block, for tables and for documents.

A block is the smallest unit that can be read alone: a row group of a Parquet file, or a record batch of an Arrow file
or stream; Feather files of version 2 are Arrow files. Opening reads footers and message headers, never data. Requires
pyarrow (`feedmill[arrow]`).

Read what pyarrow does not tell of the metadata of Arrow files: where record batches are, and how they are stored.

The metadata are flatbuffers (https://flatbuffers.dev), which pyarrow has verified. A table of one begins with the
distance to its list of fields, which has where each field is in the table, or 0.
"""

from __future__ import annotations

import io
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from feedmill.errors import DataError, MissingExtra
from feedmill.formats.arrowtypes.arrays import validate
from feedmill.formats.offsets import Int64s
from feedmill.formats.tables import footer as parquet_footer
from feedmill.formats.tables.unreadable import MAGIC, Kind, read_footer, unreadable
from feedmill.storage import Store
from feedmill.storage.cache.copies import held_copy
from feedmill.storage.reasons import copy_again
from feedmill.storage.window import Window

_BUFFER, _PIECE = 1 << 20, 8 << 20
_MAPPED = 4096
"""Size in bytes that a mapped block counts in a cache: its pages belong to the operating system."""


def load_pyarrow(what: str = "Parquet and Arrow files") -> Any:
    """Return the pyarrow package. Raises `MissingExtra`, which says what requires it."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise MissingExtra(f"{what} require pyarrow", "arrow") from None
    return pyarrow


def _refused(pyarrow: Any) -> tuple[type[BaseException], ...]:
    """Return what reading a file raises, see `unreadable`."""
    return pyarrow.ArrowException, OSError, EOFError, ValueError, IndexError, OverflowError, MemoryError


def damaged(where: str, error: BaseException, **fields: Any) -> DataError:
    """Return the error for a file of columns that cannot be read."""
    reason = " ".join(str(error).split())[:200]
    return DataError(f"the file cannot be read ({reason})", file=where, fix=copy_again(), **fields)


@contextmanager
def opened(store: Store, path: str, kind: Kind) -> Iterator[tuple[list[str], Any]]:
    """Open a file to be read in order: yield the column names, and a `ParquetFile` or pyarrow's Arrow reader.

    Args:
        kind: ``"parquet"`` or ``"arrow"``.
    """
    pyarrow = load_pyarrow()
    with store.local_copy(path) as local, open(local, "rb") as raw:
        try:
            if kind == "parquet":
                import pyarrow.parquet as pq

                source: Any = pq.ParquetFile(raw)
                names = list(source.schema_arrow.names)
            elif raw.read(6) == MAGIC["arrow"]:
                reader = pyarrow.ipc.open_file(raw)
                source = (reader.get_batch(i) for i in range(reader.num_record_batches))
                names = list(reader.schema.names)
            else:
                raw.seek(0)
                source = pyarrow.ipc.open_stream(raw)
                names = list(source.schema.names)
        except _refused(pyarrow) as error:
            raise unreadable(store, path, kind, error) from None
        yield names, source


class ColumnFile(ABC):
    """One file of columns, open for reading blocks in any order, from any thread.

    Attributes:
        schema: the `pyarrow.Schema` of what is read: that of the file, or of the table that it is in, see `fit`.
        ends: int64[blocks], number of rows up to the end of each block.
        digest: hash of the file's own index, which changes with the content as far as that index shows.
        remarks: messages about bytes of the file that are not read.
    """

    schema: Any
    ends: Int64s
    digest: str
    remarks: Sequence[str] = ()

    def __init__(self, store: Store, path: str) -> None:
        self.store, self.path = store, path
        self._own: set[str] | None = None  # the columns of the file, if it was fitted to a table

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    @abstractmethod
    def extents(self) -> Int64s:
        """Return the offset and length of each block in bytes, int64[blocks, 2]. Raises `DataError`."""

    def fit(self, schema: Any) -> None:
        """Read the columns and types of a table's schema from now on; see `feedmill.formats.tables.schemas`."""
        if not schema.equals(self.schema):
            self._own, self.schema = set(self.schema.names), schema

    def read(self, block: int, columns: Sequence[str] | None = None) -> tuple[Any, int]:
        """Return a block as `pyarrow.Table` or `RecordBatch`, and its size in bytes in memory.

        Args:
            columns: names of the columns; None for all.

        Raises:
            DataError, StorageError: the block cannot be read, or its values do not fit the schema of the table.
        """
        if self._own is None:
            return self._read(block, columns)
        from feedmill.formats.tables.schemas import fitted

        wanted = self.schema.names if columns is None else columns
        table, _ = self._read(block, [name for name in wanted if name in self._own] or None)
        schema = self.schema if columns is None else load_pyarrow().schema(map(self.schema.field, columns))
        table = fitted(table, schema, self.store.locate(self.path))
        return table, table.nbytes

    @abstractmethod
    def _read(self, block: int, columns: Sequence[str] | None) -> tuple[Any, int]:
        """Return a block as it is stored, see `read`."""


class _Group(Window):
    """A stored file of which one range is in memory, fetched as several requests at once; the rest is read on demand.

    Args:
        begin, end: the range.
        length: bytes of the file.
    """

    def __init__(self, store: Store, path: str, begin: int, end: int, length: int) -> None:
        super().__init__(store, path, 0, length)
        starts = range(begin, end, _PIECE)
        self._begin = begin
        self._pieces = store.read_ranges(path, starts, [min(_PIECE, end - start) for start in starts])

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, or as much of it as is in one piece. Raises what `Store.read` does."""
        number, at = divmod(self._at - self._begin, _PIECE)
        if not 0 <= number < len(self._pieces) or at >= len(self._pieces[number]):
            return super().readinto(buffer)
        view = memoryview(buffer).cast("B")
        found = memoryview(self._pieces[number])[at : at + len(view)]
        view[: len(found)] = found
        self._at += len(found)
        return len(found)


class ParquetFile(ColumnFile):
    """A Parquet file. Remote files are read by ranges; a row group is always read as a whole."""

    def __init__(self, store: Store, path: str) -> None:
        super().__init__(store, path)
        self._extents: Int64s | None = None
        pyarrow = load_pyarrow()
        try:
            with self._source() as source:
                import pyarrow.parquet as pq

                opened_file = pq.ParquetFile(source)
                self._metadata, self.schema = opened_file.metadata, opened_file.schema_arrow
                _ = self.schema.names  # raises if they are not text
            footer = read_footer(store, path)
            of = self._metadata
            groups = [of.row_group(n) for n in range(of.num_row_groups)]
            self.ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
            if len(self) != of.num_rows:
                raise ValueError(f"the footer has {of.num_rows} rows, the row groups have {len(self)}")
            # The last byte is the end of a struct, 0, unless the signature of a file with encrypted columns follows.
            if footer[-1:] != b"\0" and parquet_footer.unusual(footer)[0]:
                raise ValueError("columns are encrypted")
        except _refused(pyarrow) as error:
            raise unreadable(store, path, "parquet", error) from None
        self.digest = _hash(footer)  # sizes, offsets and statistics of every column

    @property
    def nbytes(self) -> int:
        """Return about the bytes of memory that the open file takes: its parsed footer (pyarrow 26)."""
        return 8 * int(self._metadata.serialized_size)

    @property
    def extents(self) -> Int64s:
        """Return the offset and length of each row group in bytes, int64[row groups, 2]. Raises `DataError`."""
        if self._extents is None:  # not a cached_property, which has one lock for all objects
            try:
                self._extents = parquet_footer.extents(read_footer(self.store, self.path))
            except ValueError as error:
                raise unreadable(self.store, self.path, "parquet", error) from None
        return self._extents

    @contextmanager
    def _source(self, block: int | None = None) -> Iterator[Any]:
        """Open the file; if it is remote, with all of one block in memory."""
        if self.store.is_local:
            with self.store.local_copy(self.path) as local:
                yield str(local)  # no Python file object: a thread may still read when the interpreter exits
        else:
            yield io.BufferedReader(self._window(block), _BUFFER)

    def _window(self, block: int | None) -> Window:
        size = self.store.stat(self.path).size
        begin, length = (0, -1) if block is None else self.extents[block].tolist()
        if begin < 0 or length < 0 or begin + length > size:  # pyarrow reports the error in the footer
            return Window(self.store, self.path, 0, size)
        return _Group(self.store, self.path, begin, begin + length, size)

    def _read(self, block: int, columns: Sequence[str] | None) -> tuple[Any, int]:
        pyarrow = load_pyarrow()
        import pyarrow.parquet as pq

        try:
            with self._source(block if columns is None else None) as source:
                file = pq.ParquetFile(
                    source,
                    metadata=self._metadata,
                    page_checksum_verification=True,
                    pre_buffer=not self.store.is_local and columns is not None,
                )
                table = file.read_row_group(block, columns=None if columns is None else list(columns))
        except _refused(pyarrow) as error:
            offset, record = int(self.extents[block, 0]), f"row group {block}"
            raise unreadable(self.store, self.path, "parquet", error, offset=offset, record=record) from None
        whole: list[Any] = table.to_batches() if columns is None else []
        return (whole[0] if len(whole) == 1 else table), table.nbytes  # rows of a batch are read faster


class ArrowFile(ColumnFile):
    """A memory-mapped Arrow file or stream: data is read on access. Remote files are copied to the cache.

    The batches of a file are where its footer says. Those of a stream are found message by message, and each is read
    with the dictionaries before it.
    """

    def __init__(self, store: Store, path: str) -> None:
        super().__init__(store, path)
        pyarrow = load_pyarrow()
        self._file = held_copy(store, path)
        self._reading = threading.Lock()  # the first batch of a reader also reads the dictionaries
        self._reader: Any = None
        self._before: list[list[Any]] = []  # of a stream: the schema and dictionaries before each batch
        self._is_native = True
        try:
            self._data = pyarrow.py_buffer(np.memmap(self._file.path, np.uint8, "r"))
            self._find_batches(pyarrow)
        except _refused(pyarrow) as error:
            raise unreadable(store, path, "arrow", error) from None

    @property
    def extents(self) -> Int64s:
        """Return the offset and length of each record batch in bytes, int64[batches, 2]."""
        return self._extents

    def _find_batches(self, pyarrow: Any) -> None:
        """Set the schema, and the place and number of rows of each record batch, without reading data."""
        if self._data.slice(0, 6).to_pybytes() == MAGIC["arrow"]:
            self._reader = pyarrow.ipc.open_file(self._data)
            self.schema = self._reader.schema
            footer = self._footer()
            self._extents = batches(footer)
            heads = [footer]
        else:
            self._extents, heads = self._scan(pyarrow)
        self._stored = self.schema
        _ = self.schema.names  # raises if they are not text
        nothing, counts = pyarrow.schema([]), []  # with this schema, pyarrow reads the number of rows alone
        for begin, length in self._extents.tolist():
            message = pyarrow.ipc.read_message(self._data.slice(begin, length))
            counts.append(pyarrow.ipc.read_record_batch(message, nothing).num_rows)
            if counts[-1] < 0:
                raise ValueError(f"the record batch at byte {begin} has {counts[-1]} rows")
            heads.append(message.metadata.to_pybytes())
            if message.metadata_version < pyarrow.ipc.MetadataVersion.V5 and is_compressed(heads[-1]):
                raise DataError(  # see findings/pyarrow_metadata_v4_compression.sh
                    "it is compressed and has metadata version 4, which pyarrow reads as other values",
                    file=self.store.locate(self.path),
                    offset=begin,
                    kind="unsupported",
                    fix="Write it again with metadata version 5.",
                )
        self.ends = np.cumsum(counts, dtype=np.int64)
        self.digest = _hash(self._extents.tobytes() + self.ends.tobytes() + b"".join(heads))

    def _footer(self) -> bytes:
        end = len(self._data) - len(MAGIC["arrow"]) - 4
        length = int.from_bytes(self._data.slice(end, 4).to_pybytes(), "little")
        return bytes(self._data.slice(end - length, length).to_pybytes())

    def _scan(self, pyarrow: Any) -> tuple[Int64s, list[bytes]]:
        """Return where the record batches of a stream are, and the headers of the messages before them."""
        source = pyarrow.BufferReader(self._data)
        self.schema = pyarrow.ipc.read_schema(source)  # from a message, it would take one of another kind as a schema
        before = [self._data.slice(0, source.tell())]
        extents, heads = [], [pyarrow.ipc.read_message(before[0]).metadata.to_pybytes()]
        self._is_native = not is_big_endian(heads[0])
        while True:
            begin = source.tell()
            try:
                message = pyarrow.ipc.read_message(source)
            except EOFError:  # the end, marked or not
                break
            extent = begin, source.tell() - begin
            if message.type == "record batch":
                extents.append(extent)
                self._before.append(before)
            elif message.type == "dictionary":
                heads.append(message.metadata.to_pybytes())
                before = [*before, self._data.slice(*extent)]
            else:
                raise ValueError(f"a message at byte {begin} is a {message.type}")
        if rest := len(self._data) - source.tell():
            self.remarks = (f"{self.path}: {rest:,} bytes after the end of the stream are not read",)
        elif begin == len(self._data):
            self.remarks = (f"{self.path}: the stream has no end marker, so that it may be truncated",)
        return np.asarray(extents, np.int64).reshape(-1, 2), heads

    def _read(self, block: int, columns: Sequence[str] | None) -> tuple[Any, int]:
        pyarrow = load_pyarrow()
        begin, length = self.extents[block].tolist()
        try:
            if self._reader is not None:
                with self._reading:
                    batch = self._reader.get_batch(block)
            elif self._is_native and len(self._before[block]) == 1:  # several times as fast
                batch = pyarrow.ipc.read_record_batch(self._data.slice(begin, length), self._stored)
            else:
                pieces = _Pieces([*self._before[block], self._data.slice(begin, length)])
                batch = pyarrow.ipc.open_stream(pyarrow.PythonFile(pieces, "r")).read_next_batch()
            if columns is not None:
                batch = batch.select(list(columns))
            validate(batch)
        except _refused(pyarrow) as error:
            record = f"record batch {block}"
            raise unreadable(self.store, self.path, "arrow", error, offset=begin, record=record) from None
        return batch, _MAPPED if self._is_mapped(batch) else batch.nbytes

    def _is_mapped(self, batch: Any) -> bool:
        """Return whether all data of a batch is in the file, rather than decompressed in memory."""
        begin, end = self._data.address, self._data.address + len(self._data)
        found = (buffer for column in batch.columns for buffer in column.buffers() if buffer)
        return all(begin <= buffer.address < end for buffer in found)


class _Pieces:
    """Buffers as one file for pyarrow, which reads them without copying."""

    closed = False

    def __init__(self, pieces: Sequence[Any]) -> None:
        self._pieces, self._number, self._at = pieces, 0, 0

    def read(self, size: int) -> bytes:
        """Return the next bytes of the current piece."""
        return bytes(self.read_buffer(size).to_pybytes())

    def read_buffer(self, size: int) -> Any:
        """Return the next bytes of the current piece as `pyarrow.Buffer`; it is empty at the end."""
        while self._number + 1 < len(self._pieces) and self._at >= len(self._pieces[self._number]):
            self._number, self._at = self._number + 1, 0
        piece = self._pieces[self._number]
        found = piece.slice(self._at, min(size, len(piece) - self._at))
        self._at += len(found)
        return found

    def close(self) -> None:
        """Do nothing: the buffers belong to the file."""


def _hash(data: bytes) -> str:
    import xxhash

    return str(xxhash.xxh3_128_hexdigest(data))


_BLOCK = np.dtype([("offset", "<i8"), ("head", "<i4"), ("padding", "<i4"), ("body", "<i8")])
_BATCHES, _HEADER, _COMPRESSION, _ENDIANNESS = 3, 2, 3, 0
"""Fields of a Footer, a Message, a RecordBatch and a Schema in https://github.com/apache/arrow/blob/main/format/."""


def _unpack(data: bytes, at: int, kind: str) -> int:
    return int(np.frombuffer(data, kind, 1, at)[0])


def field(data: bytes, table: int, number: int) -> int:
    """Return where a table of a flatbuffer has a field; 0 if it has none. pyarrow has verified the flatbuffer."""
    fields, at = table - _unpack(data, table, "<i4"), 4 + 2 * number
    relative = _unpack(data, fields + at, "<u2") if at < _unpack(data, fields, "<u2") else 0
    return relative and table + relative


def batches(footer: bytes) -> Int64s:
    """Return offset and length of each record batch, int64[batches, 2], by the footer of an Arrow file."""
    at = field(footer, _unpack(footer, 0, "<u4"), _BATCHES)
    if not at:
        return np.empty((0, 2), np.int64)
    vector = at + _unpack(footer, at, "<u4")
    blocks = np.frombuffer(footer, _BLOCK, _unpack(footer, vector, "<u4"), vector + 4)
    return np.stack([blocks["offset"], blocks["head"] + blocks["body"]], axis=1)


def is_big_endian(head: bytes) -> bool:
    """Return whether the metadata of a schema says so; little-endian is the default."""
    at = field(head, _unpack(head, 0, "<u4"), _HEADER)
    at = at and field(head, at + _unpack(head, at, "<u4"), _ENDIANNESS)
    return bool(at and _unpack(head, at, "<i2"))


def is_compressed(head: bytes) -> bool:
    """Return whether the metadata of a record batch says that its buffers are compressed."""
    at = field(head, _unpack(head, 0, "<u4"), _HEADER)
    return bool(at and field(head, at + _unpack(head, at, "<u4"), _COMPRESSION))
