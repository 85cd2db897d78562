"""Read documents in columns: Parquet files, and the Arrow files of Hugging Face datasets on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from feedmill.documents.batch import BadDocument, Batch, Record, RowReader
from feedmill.documents.file import PARQUET, DocumentFile, Unit
from feedmill.documents.rows import shown_bytes
from feedmill.documents.textpath import TextReader, checked, parse_path, walk
from feedmill.errors import ConfigError
from feedmill.formats.arrowtypes.arrays import validate
from feedmill.formats.arrowtypes.place import Unreadable
from feedmill.formats.arrowtypes.reading import Columns
from feedmill.formats.columns import load_pyarrow, opened
from feedmill.formats.tables.unreadable import Kind, unreadable

ROWS = 512


def row_groups(file: DocumentFile, unit_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of row groups of a Parquet file (first, end, size in bytes), of about `unit_bytes` each."""
    with _opened(file) as (_, parquet):
        begin = size = 0
        for number in range(parquet.metadata.num_row_groups):
            size += parquet.metadata.row_group(number).total_byte_size
            if size >= unit_bytes or number + 1 == parquet.metadata.num_row_groups:
                yield begin, number + 1, size
                begin, size = number + 1, 0


def count_rows(file: DocumentFile, groups: int | None = None) -> int:
    """Return the number of rows of a file, or of a Parquet file's first row groups. Raises DataError, StorageError."""
    with _opened(file) as (_, source):
        if file.kind == "parquet":
            of = source.metadata
            return sum(of.row_group(n).num_rows for n in range(of.num_row_groups if groups is None else groups))
        return 0 if groups is not None else sum(batch.num_rows for batch in source)


def read_columns(unit: Unit, reader: TextReader | RowReader) -> Iterator[Batch]:
    """Yield the documents of a unit of rows. Raises DataError, ConfigError."""
    pyarrow = load_pyarrow()
    if isinstance(reader, RowReader):
        yield from _read_rows(unit, reader, pyarrow)
        return
    steps = parse_path(reader.expression)
    if not steps or not isinstance(steps[0], str):
        raise ConfigError(
            f"{reader.expression!r} is not the name of a column",
            file=unit.file.url,
            kind="bad-option",
            fix="For Parquet and Arrow files, use a column or a path in it, e.g. text or .message.content.",
        )
    row = 0
    first, step = unit.file.rows
    before = count_rows(unit.file, unit.begin) if step > 1 else 0
    for table, columns in _batches(unit, steps[0], reader.fields, pyarrow):
        found = columns.values(table)
        column = found[steps[0]]
        fields = [found.get(field) or [None] * len(column) for field in reader.fields]
        batch = Batch(lines=len(column))
        for number, value in enumerate(column):
            if step > 1 and (before + row + number - first) % step:
                continue
            beside = tuple(values[number] for values in fields)
            error = _unreadable((value, *beside))
            try:
                if error is not None:
                    raise BadDocument(str(error))
                record = Record(checked(walk(value, steps[1:]), reader.expression), "", beside)
            except BadDocument as bad:
                record = Record(None, str(bad))
            batch.add(row + number, record)
        yield batch
        row += len(column)


def _read_rows(unit: Unit, reader: RowReader, pyarrow: Any) -> Iterator[Batch]:
    """Yield the documents of a unit of rows, whose null values are left out: tables cannot say that a key is absent."""
    with _opened(unit.file) as (names, _):
        known = [name for name in reader.columns if name in names]
    if not known:
        raise ConfigError(
            f"the file has none of the columns {', '.join(reader.columns)} (its columns are: {', '.join(names)})",
            file=unit.file.url,
            kind="no-column",
            fix="Rename its columns.",
        )
    row = 0
    first, step = unit.file.rows
    before = count_rows(unit.file, unit.begin) if step > 1 else 0
    for table, columns in _batches(unit, known[0], tuple(known[1:]), pyarrow):
        rows = columns.documents(table)
        chosen = [n for n in range(table.num_rows) if step <= 1 or not (before + row + n - first) % step]
        batch = Batch(lines=table.num_rows)
        bad = {number: str(error) for number in chosen if (error := _unreadable(rows[number].values())) is not None}
        records = reader.records([_without_nulls(rows[number]) for number in chosen if number not in bad])
        for number in chosen:
            record = Record(None, bad[number]) if number in bad else next(records)
            batch.add(row + number, record)
            if record.text is None and record.reason:  # see `feedmill.documents.read.batches_of`
                yield batch
                batch = Batch()
        yield batch
        row += table.num_rows


def _unreadable(values: Iterable[Any]) -> Unreadable | None:
    return next((value for value in values if type(value) is Unreadable), None)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return list(map(_without_nulls, value)) if isinstance(value, list) else value


def read_rows(
    file: DocumentFile, fields: Sequence[str] | None = None, *, shown: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a file in lists, without null values.

    Args:
        file: The file.
        fields: The columns to read, as far as the file has them; None for all.
        shown: Replace bytes as `shown_bytes` does, instead of raising.

    Raises:
        ConfigError: Two columns have the same name, or a requested column holds bytes and `shown` is False.
        DataError: The file is corrupt.
    """
    pyarrow = load_pyarrow()
    with _opened(file) as (names, source):
        wanted = [name for name in names if fields is None or name in fields]
        _refuse_duplicates(file, names, wanted)
        number, columns = 0, None
        try:
            groups = source.iter_batches(ROWS, columns=wanted, use_threads=False) if file.kind == "parquet" else source
            for table in groups:
                part = table.select(wanted)
                binary = _with_bytes(part.schema)
                if binary and not shown:
                    raise _holds_bytes(file, binary[0])
                validate(part)
                columns = columns or Columns(part.schema, file.url, plain=True)
                for at in range(0, part.num_rows, ROWS):
                    rows = columns.documents(part.slice(at, ROWS))
                    for row in rows:
                        error = _unreadable(row.values())
                        if error is not None:
                            raise error.located(file.url, number)
                        number += 1
                    for row in rows if binary else ():
                        row.update({name: _without_bytes(row[name]) for name in binary})
                    yield [{name: value for name, value in row.items() if value is not None} for row in rows]
        except (pyarrow.ArrowException, OSError, MemoryError) as error:
            raise unreadable(file.store(), file.path, _form(file), error) from None


def _with_bytes(schema: Any) -> list[str]:
    """Return the columns that hold bytes, at any level."""
    return [field.name for field in schema if "binary" in str(field.type)]


def _without_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return shown_bytes(value)
    if isinstance(value, dict):
        return {name: _without_bytes(item) for name, item in value.items()}
    return list(map(_without_bytes, value)) if isinstance(value, list) else value


def _holds_bytes(file: DocumentFile, column: str) -> ConfigError:
    return ConfigError(
        f"the column {column!r} holds bytes, which documents cannot contain",
        file=file.url,
        kind="no-column",
        fix="Drop the column with 'feedmill convert', or convert it to text.",
    )


def _refuse_duplicates(file: DocumentFile, names: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if names.count(name) > 1:
            raise two_columns(file.url, names.count(name), name)


def two_columns(file: str, count: int, name: str) -> ConfigError:
    """Return the error for a file that has several columns of one name."""
    return ConfigError(
        f"the file has {count} columns named {name!r}", file=file, kind="ambiguous", fix="Rename or drop all but one."
    )


def _batches(unit: Unit, column: str, fields: tuple[str, ...], pyarrow: Any) -> Iterator[tuple[Any, Columns]]:
    """Yield the columns of a unit in batches of rows, with their readers."""
    file = unit.file
    with _opened(file) as (names, source):
        if column not in names:
            raise ConfigError(
                f"the file has no column {column!r} (its columns are: {', '.join(names)})",
                file=file.url,
                kind="no-column",
                fix="Select the column of the text with --text (in 'feedmill compat nanotron': --column).",
            )
        _refuse_duplicates(file, names, (column, *fields))
        wanted = list(dict.fromkeys(name for name in (column, *fields) if name in names))
        columns = None
        try:
            if file.kind == "parquet":
                groups = list(range(unit.begin, unit.end))
                source = source.iter_batches(ROWS, row_groups=groups, columns=wanted, use_threads=False)
            for table in source:
                part = table.select(wanted)
                validate(part)
                columns = columns or Columns(part.schema, file.url, plain=True)
                for at in range(0, part.num_rows, ROWS):
                    yield part.slice(at, ROWS), columns
        except (pyarrow.ArrowException, OSError, MemoryError) as error:
            raise unreadable(file.store(), file.path, _form(file), error) from None


def _form(file: DocumentFile) -> Kind:
    return "parquet" if file.kind == PARQUET else "arrow"


def _opened(file: DocumentFile) -> AbstractContextManager[tuple[list[str], Any]]:
    """Open a file, and return the names of its columns and a `ParquetFile` or the reader of an Arrow stream or file."""
    return opened(file.store(), file.path, _form(file))
