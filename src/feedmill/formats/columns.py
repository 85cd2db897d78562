"""Read Parquet and Arrow files block by block, for tables and for documents.

A block is the smallest unit that can be read alone: a row group of a Parquet file, or a record batch of an Arrow file
(stream or file form). Opening reads footers and message headers, never data. Requires pyarrow (`feedmill[arrow]`).
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from feedmill.errors import DataError, FeedmillError, MissingExtra
from feedmill.formats.arrowtypes.arrays import validate
from feedmill.formats.offsets import Int64s
from feedmill.formats.tables import footer as parquet_footer
from feedmill.storage import Store
from feedmill.storage.cache.copies import held_copy
from feedmill.storage.window import Window

_ARROW_MAGIC = b"ARROW1"
_BUFFER, _PIECE = 1 << 20, 8 << 20
_MAPPED = 4096
"""Size in bytes that a mapped block counts in a cache: its pages belong to the operating system."""


def load_pyarrow() -> Any:
    """Return the pyarrow package. Raises `MissingExtra`."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise MissingExtra("Parquet and Arrow files require pyarrow", "arrow") from None
    return pyarrow


def damaged(where: str, error: BaseException, **fields: Any) -> DataError:
    """Return the error for a file of columns that cannot be read."""
    reason = " ".join(str(error).split())[:200]
    return DataError(f"the file cannot be read ({reason})", file=where, fix="Copy it again.", **fields)


@contextmanager
def opened(store: Store, path: str, kind: str) -> Iterator[tuple[list[str], Any]]:
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
            elif raw.read(6) == _ARROW_MAGIC:
                reader = pyarrow.ipc.open_file(raw)
                source = (reader.get_batch(i) for i in range(reader.num_record_batches))
                names = list(reader.schema.names)
            else:
                raw.seek(0)
                source = pyarrow.ipc.open_stream(raw)
                names = list(source.schema.names)
        except (pyarrow.ArrowException, OSError) as error:
            raise damaged(store.locate(path), error) from None
        yield names, source


class ColumnFile(ABC):
    """One file of columns, open for reading blocks in any order, from any thread.

    Attributes:
        schema: the `pyarrow.Schema`.
        ends: int64[blocks], number of rows up to the end of each block.
        digest: hash of the file's own index, which changes with the content as far as that index shows.
    """

    schema: Any
    ends: Int64s
    digest: str

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    @abstractmethod
    def extents(self) -> Int64s:
        """Return the offset and length of each block in bytes, int64[blocks, 2]. Raises `DataError`."""

    @abstractmethod
    def read(self, block: int, columns: Sequence[str] | None = None) -> tuple[Any, int]:
        """Return a block as `pyarrow.Table` or `RecordBatch`, and its size in bytes. Raises `DataError`."""


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
        self.store, self.path = store, path
        self._extents: Int64s | None = None
        pyarrow = load_pyarrow()
        with self._source() as source:
            try:
                import pyarrow.parquet as pq

                opened_file = pq.ParquetFile(source)
                self._metadata, self.schema = opened_file.metadata, opened_file.schema_arrow
                _ = self.schema.names  # raises if they are not text
            except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
                raise damaged(store.locate(path), error) from None
        of = self._metadata
        groups = [of.row_group(n) for n in range(of.num_row_groups)]
        self.ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
        if len(self) != of.num_rows:
            raise damaged(
                store.locate(path), ValueError(f"the footer has {of.num_rows} rows, the row groups have {len(self)}")
            )
        self.digest = _hash(self._footer())  # sizes, offsets and statistics of every column

    def _footer(self) -> bytes:
        size = self.store.stat(self.path).size
        tail = self.store.read(self.path, size - 8, 8)
        length = min(int.from_bytes(tail[:4], "little"), size - 8)
        return self.store.read(self.path, size - 8 - length, length)

    @property
    def extents(self) -> Int64s:
        """Return the offset and length of each row group in bytes, int64[row groups, 2]. Raises `DataError`."""
        if self._extents is None:  # not a cached_property, which has one lock for all objects
            try:
                self._extents = parquet_footer.extents(self._footer())
            except ValueError as error:
                raise damaged(self.store.locate(self.path), error) from None
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

    def read(self, block: int, columns: Sequence[str] | None = None) -> tuple[Any, int]:
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
        except (pyarrow.ArrowException, OSError) as error:
            if isinstance(error, FeedmillError):
                raise
            offset = int(self.extents[block, 0])
            raise damaged(self.store.locate(self.path), error, offset=offset, record=f"row group {block}") from None
        return table, table.nbytes


class ArrowFile(ColumnFile):
    """A memory-mapped Arrow file in either form: data is read on access. Remote files are copied to the cache."""

    def __init__(self, store: Store, path: str) -> None:
        self._where = store.locate(path)
        pyarrow = load_pyarrow()
        self._file = held_copy(store, path)
        local = self._file.path
        if not local.stat().st_size:
            raise DataError("the file is empty (0 bytes)", file=self._where, kind="empty-file", fix="Copy it again.")
        self._data = pyarrow.py_buffer(np.memmap(local, np.uint8, "r"))
        self._whole: list[Any] | None = None
        try:
            heads = self._scan(pyarrow)
        except (pyarrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            raise damaged(self._where, error) from None
        self.digest = _hash(self._extents.tobytes() + self.ends.tobytes() + heads)

    @property
    def extents(self) -> Int64s:
        """Return the offset and length of each record batch in bytes, int64[batches, 2]."""
        return self._extents

    def _scan(self, pyarrow: Any) -> bytes:
        """Read the schema and the location of each record batch. Return the headers of all messages."""
        source = pyarrow.BufferReader(self._data)
        form = source.read(6) == _ARROW_MAGIC
        source.seek(8 if form else 0)
        self.schema = pyarrow.ipc.read_schema(source)
        _ = self.schema.names  # raises if they are not text
        counts, extents, heads = [], [], []
        if any(pyarrow.types.is_dictionary(field.type) for field in self.schema):
            source.seek(0)  # a dictionary applies to all later batches, so such files are read from the beginning
            reader = pyarrow.ipc.open_file(source) if form else pyarrow.ipc.open_stream(source)
            self._whole = [reader.get_batch(i) for i in range(reader.num_record_batches)] if form else list(reader)
            for batch in self._whole:
                validate(batch)
            counts = [batch.num_rows for batch in self._whole]
            extents = [(0, len(self._data))] * len(counts)
            heads = [str(sum(batch.nbytes for batch in self._whole)).encode()]
        while self._whole is None:
            begin = source.tell()
            try:
                message = pyarrow.ipc.read_message(source)
            except EOFError:  # the end, marked or not
                break
            batch = pyarrow.ipc.read_record_batch(message, self.schema)
            counts.append(batch.num_rows)
            extents.append((begin, source.tell() - begin))
            heads.append(message.metadata.to_pybytes())
        self.ends = np.cumsum(counts, dtype=np.int64)
        self._extents = np.asarray(extents, np.int64).reshape(-1, 2)
        return b"".join(heads)

    def read(self, block: int, columns: Sequence[str] | None = None) -> tuple[Any, int]:
        pyarrow = load_pyarrow()
        begin, length = self.extents[block].tolist()
        try:
            if self._whole is not None:
                batch = self._whole[block]
            else:
                batch = pyarrow.ipc.read_record_batch(self._data.slice(begin, length), self.schema)
            if columns is not None:
                batch = batch.select(list(columns))
            validate(batch)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise damaged(self._where, error, offset=begin, record=f"record batch {block}") from None
        return batch, _MAPPED


def _hash(data: bytes) -> str:
    import xxhash

    return str(xxhash.xxh3_128_hexdigest(data))
