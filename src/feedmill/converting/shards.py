"""One output of a conversion of samples, in each format: samples in, a file and what is read back of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO, Protocol

from feedmill.converting.columns import arrow_schema, mds_row, parquet_row
from feedmill.converting.taking import KEY, Taken, digest, encoded, folded, parse_json, parts_of
from feedmill.errors import DataError, FeedmillError
from feedmill.formats.mds.write import write_shard
from feedmill.samples.encode import Encoder, encode_json
from feedmill.storage import Store
from feedmill.writing.encoding import Encoded, Encoding
from feedmill.writing.fields import Taker as WritingTaker
from feedmill.writing.shard import Shard, ShardFile

_BATCH, _BATCH_BYTES = 512, 4 << 20
_GROUP_BYTES = 32 << 20


class Output(Protocol):
    """An output being written; nothing is left of it where it is not closed."""

    def add(self, taken: Taken) -> bytes:
        """Take a sample in; gives its hash, as reading back will. Raises `DataError`: then it is not taken."""

    def close(self) -> dict[str, Any]:
        """Publish it; gives what finishing the dataset needs."""

    def abort(self) -> None:
        """Give it up."""


class TarOutput:
    """A tar.

    Attributes:
        shard: what was written, when it is closed.
    """

    def __init__(self, store: Store, path: str) -> None:
        self._file = ShardFile(store, path)
        self._encoding = Encoding(Encoder(), WritingTaker())
        self._waiting: list[Encoded] = []
        self._bytes = 0
        self._key: str | None = None
        self.shard: Shard | None = None

    def add(self, taken: Taken) -> bytes:
        """See `Output`."""
        if taken.key == self._key:
            raise DataError(
                "the sample before has this key, too: in a tar both would be one",
                record=taken.key,
                kind="duplicate-key",
                fix="Rename one of them.",
            )
        parts = parts_of(taken)
        encoded = self._encoding.of(taken.key, parts.items())
        self._key = taken.key
        self._waiting.append(encoded)
        self._bytes += encoded.size
        if len(self._waiting) >= _BATCH or self._bytes >= _BATCH_BYTES:
            self._flush()
        return digest(taken.key, parts)

    def _flush(self) -> None:
        if self._waiting:
            self._file.add(self._waiting)
        self._waiting, self._bytes = [], 0

    def close(self) -> dict[str, Any]:
        """See `Output`."""
        self._flush()
        self.shard = self._file.close()
        return {"digest": self.shard.record.digest}

    def abort(self) -> None:
        """See `Output`."""
        self._file.abort()


class LineOutput:
    """Lines of JSON, with keys or without."""

    def __init__(self, store: Store, path: str, *, keyed: bool) -> None:
        self._keyed = keyed
        self._stack = ExitStack()
        self._file: BinaryIO = self._stack.enter_context(store.write(path))

    def add(self, taken: Taken) -> bytes:
        """See `Output`."""
        line = encode_json(folded(taken, keyed=self._keyed))
        self._file.write(line + b"\n")
        return line_digest(line)

    def close(self) -> dict[str, Any]:
        """See `Output`."""
        self._stack.close()
        return {}

    def abort(self) -> None:
        """See `Output`."""
        _drop(self._stack)


def line_digest(line: bytes) -> bytes:
    """The hash of a line: of the object, not of how it is spaced."""
    return digest("", {"json": encode_json(parse_json("", "json", line))})


class MdsOutput:
    """A shard of MosaicML's."""

    def __init__(self, store: Store, path: str, columns: Mapping[str, str]) -> None:
        self._store, self._path, self._columns = store, path, columns
        self._rows: list[list[bytes]] = []

    def add(self, taken: Taken) -> bytes:
        """See `Output`."""
        _check(taken, self._columns)
        row, parts = mds_row(self._columns, taken)
        self._rows.append(row)
        return digest(taken.key if KEY in self._columns else "", parts)

    def close(self) -> dict[str, Any]:
        """See `Output`."""
        return {"mds": write_shard(self._store, self._path, self._columns, self._rows)}

    def abort(self) -> None:
        """See `Output`."""


class ParquetOutput:
    """A Parquet file, row groups of bounded size."""

    def __init__(self, store: Store, path: str, columns: Mapping[str, str]) -> None:
        import pyarrow.parquet as pq

        self._columns, self._schema, self._where = columns, arrow_schema(columns), store.locate(path)
        self._stack = ExitStack()
        self._file = self._stack.enter_context(store.write(path))
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd", write_page_checksum=True)
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def add(self, taken: Taken) -> bytes:
        """See `Output`."""
        _check(taken, self._columns)
        row, parts = parquet_row(self._columns, taken)
        self._rows.append(row)
        self._bytes += sum(map(len, parts.values()))
        if self._bytes >= _GROUP_BYTES:
            self._flush()
        return digest(taken.key if KEY in self._columns else "", parts)

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(arrow_table(self._rows, self._schema, self._where))
        self._rows, self._bytes = [], 0

    def close(self) -> dict[str, Any]:
        """See `Output`."""
        self._flush()
        self._writer.close()
        self._stack.close()
        return {}

    def abort(self) -> None:
        """See `Output`."""
        with suppress(Exception):
            self._writer.close()  # or it would write to the closed file when nobody has it any more
        _drop(self._stack)


def arrow_table(rows: list[dict[str, Any]], schema: Any, where: str) -> Any:
    """Rows as a table. Raises `DataError` for values that Arrow refuses, such as text with lone surrogates."""
    import pyarrow as pa

    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise DataError(
            f"a value does not fit its column ({str(error)[:200]})",
            file=where,
            kind="bad-value",
            fix="Leave the column out with --fields, or fix the source.",
        ) from None


def _check(taken: Taken, columns: Mapping[str, str]) -> None:
    """Refuse what columns cannot hold: text that is none, parts that nobody has heard of."""
    for name, value in {KEY: taken.key, **taken.values}.items():
        if isinstance(value, str):
            encoded(taken.key, name, value)
    if all(name in columns for name in taken.values):
        return
    known = {name.removesuffix(".npy") for name in columns} | set(columns)
    other = [name for name, value in taken.values.items() if name not in known and value is not None]
    if other:
        raise DataError(
            f"the part {other[0]!r} was not there when the source was surveyed",
            record=taken.key,
            kind="changed",
            fix="The source changed meanwhile: run it again with --overwrite.",
        )


def _drop(stack: ExitStack) -> None:
    error = _GivenUp("given up")
    stack.__exit__(_GivenUp, error, None)


class _GivenUp(FeedmillError):
    """Makes the store drop a file."""


def open_output(to: str, store: Store, path: str, columns: Mapping[str, str], *, keyed: bool = True) -> Output:
    """An output of this format; lines are `keyed` or not."""
    if to == "mds":
        return MdsOutput(store, path, columns)
    if to == "parquet":
        return ParquetOutput(store, path, columns)
    return LineOutput(store, path, keyed=keyed) if to == "jsonl" else TarOutput(store, path)
