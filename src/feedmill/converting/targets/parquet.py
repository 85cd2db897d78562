"""Write samples and rows as Parquet: a folder of files, or one file of many row groups."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from feedmill.converting import fields
from feedmill.converting.fields import Taken, is_json, wanted
from feedmill.converting.job import Done
from feedmill.converting.jsontypes import METADATA, fit, schema_of, weight
from feedmill.converting.survey import Columns, read_digest, row_digest, row_of
from feedmill.converting.units import Add, SampleTarget, Unit, Written, local_piece, opened
from feedmill.converting.values import digest, values_of
from feedmill.errors import ConfigError, DataError
from feedmill.formats.base import Dataset
from feedmill.formats.columnar import Forms
from feedmill.formats.sample import Sample
from feedmill.formats.tables.dataset import TableDataset
from feedmill.storage import Store, join_url, split_url

_GROUP_BYTES = 32 << 20

Rows = list[tuple[int, dict[str, Any]]]
"""Rows with their numbers."""


@dataclass(frozen=True, slots=True)
class Parquet(SampleTarget):
    """Samples as a folder of Parquet files or as one file.

    Attributes:
        columns: the columns.
    """

    columns: Columns

    def path(self, unit: Unit) -> str:
        """See `Target`."""
        return f"part-{unit.number:06d}.parquet"

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:  # noqa: ARG002
        """See `Target`. Row groups are written when they exceed 32 MiB."""
        columns, schema = self.columns, arrow_schema(self.columns.forms)
        known = forms_of(typed=columns.typed)
        rows: list[dict[str, Any]] = []
        size = 0

        def add(item: tuple[int, Taken]) -> Sequence[bytes]:
            nonlocal size
            taken = item[1]
            values = row_of(known, columns, taken)
            rows.append({name: _cell(form, values.get(name, taken.key)) for name, form in columns.forms.items()})
            size += sum(map(weight, values.values()))
            if size >= _GROUP_BYTES:
                flush()
            return (row_digest(taken.key, values, columns),)

        def flush() -> None:
            nonlocal size
            if rows:
                writer.write_table(_table(rows, schema, store.locate(path)))
            rows.clear()
            size = 0

        with parquet_writer(store, path, schema) as writer:
            yield add
            flush()

    def writes(self, units: Sequence[Unit]) -> tuple[Sequence[str], str]:  # noqa: ARG002
        """See `Target`."""
        return (), "" if self.piece else r"part-\d+\.parquet(\.idx)?"

    def finish(self, store: Store, units: Sequence[Unit], done: Sequence[Done]) -> list[str]:  # noqa: ARG002
        """See `Target`."""
        paths = [each.path for each in done if each.samples]
        if not self.piece:
            return paths
        _, name = split_url(self.destination)
        _join(store, name, [each for each in done if each.samples])
        return [name]

    def reader(self, written: Written) -> tuple[Dataset, int]:
        """See `SampleTarget`."""
        if self.piece:
            return opened(self.destination, None), written.first
        return opened(join_url(self.destination, written.done.path), None), 0

    def digest(self, sample: Sample) -> bytes:
        """See `SampleTarget`."""
        return read_digest(self.columns, sample)


@dataclass(frozen=True, slots=True)
class ParquetRows(Parquet):
    """Rows as Parquet: of JSON, or of the table `source`, whose columns keep their types.

    Attributes:
        types: types of the columns of JSON, see `feedmill.converting.jsontypes`; empty for a table.
        source, split: the source.
        fields: names or patterns of the columns to keep; all if empty.
        stems: names of the outputs without suffixes; if empty, outputs are numbered.
    """

    types: Mapping[str, Any]
    source: str
    split: str | None
    fields: tuple[str, ...]
    stems: tuple[str, ...] = ()

    def path(self, unit: Unit) -> str:
        """See `Target`."""
        return f"{self.stems[unit.number]}.parquet" if self.stems else Parquet.path(self, unit)

    def writes(self, units: Sequence[Unit]) -> tuple[Sequence[str], str]:
        """See `Target`."""
        return SampleTarget.writes(self, units)

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:  # noqa: ARG002
        """See `Target`. Each batch becomes a row group."""
        schema = self.schema()

        def add(item: Rows) -> Sequence[bytes]:
            if self.types:
                rows = self.fit(item)
                writer.write_table(_table(rows, schema, self.source))
                return [digest("", row, loose=True) for row in rows]
            table = self.table().arrow_rows([number for number, _ in item])
            writer.write_table(_cast(table.select(schema.names), schema))
            return [digest("", row) for _, row in item]

        with parquet_writer(store, path, schema) as writer:
            yield add

    def schema(self) -> Any:
        """Return the Arrow schema of the outputs.

        Raises:
            ConfigError: Parquet cannot store a column of the table.
        """
        if self.types:
            return schema_of(self.types)
        import pyarrow as pa

        schema = self.table().schema
        assert schema is not None
        kept = [f.with_type(_storable(f.type, f.name)) for f in schema if wanted(f.name, self.fields)]
        return pa.schema(kept, metadata=schema.metadata)

    def check(self) -> None:
        """Raise `ConfigError` if Parquet cannot store a column of the table: the first row is written and read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema, dataset = self.schema(), self.table()
        first = dataset.arrow_rows(range(min(1, len(dataset)))) if len(dataset) else None
        for field in schema:
            try:
                written = io.BytesIO()
                alone = pa.schema([field])
                table = alone.empty_table() if first is None else _cast(first.select([field.name]), alone)
                pq.write_table(table, written)
                pq.read_table(written)
            except (pa.ArrowException, DataError) as error:
                raise _unstorable(field.name, f"the type {field.type} ({' '.join(str(error).split())[:200]})") from None

    def table(self) -> TableDataset:
        """Return the source, which is a table."""
        dataset = opened(self.source, self.split)
        assert isinstance(dataset, TableDataset)
        return dataset

    def fit(self, rows: Rows) -> list[dict[str, Any]]:
        """Return rows of JSON as their columns store them. Raises `DataError` for a name that has no column."""
        try:
            return [{n: fit(v, self.types[n]) for n, v in row.items()} for _, row in rows]
        except KeyError as error:
            raise DataError(
                f"the name {error} is new: no row had it when the source was surveyed",
                file=self.source,
                kind="changed",
                fix="The source has changed. Run the conversion again with --overwrite.",
            ) from None

    def refuse(self, rows: Rows) -> None:
        """Raise `DataError` if rows of JSON do not fit their columns."""
        _table(self.fit(rows), self.schema(), self.source)

    def digests(self, dataset: Dataset, samples: Sequence[Sample]) -> list[bytes]:
        """See `SampleTarget`."""
        if self.types:  # of which texts of JSON stay text
            keyed = getattr(dataset, "key_column", None) == fields.KEY
            rows = [{**({fields.KEY: sample.key} if keyed else {}), **values_of(sample)} for sample in samples]
            return [digest("", row, loose=True) for row in rows]
        return [digest("", fields.row_of(dataset, sample)) for sample in samples]

    def record(self, written: Written, number: int) -> str:
        """See `Target`."""
        return f"row {written.first + number}"


@contextmanager
def parquet_writer(store: Store, path: str, schema: Any) -> Iterator[Any]:
    """Open a writer of row groups."""
    import pyarrow.parquet as pq

    with store.write(path) as file:
        writer = pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True)
        try:
            yield writer
        except BaseException:
            with suppress(Exception):
                writer.close()  # otherwise its finalizer writes to the closed file
            raise
        writer.close()


def _own_array(dtype: np.dtype[Any], axes: int) -> str:
    return f"list:{dtype.str}" if axes == 1 and dtype.kind in "biuf" and dtype.name != "float16" else ""


_PARTS = Forms(
    kinds={
        "text": "string",
        "int": "int64",
        "float": "double",
        "bool": "bool",
        "bytes": "binary",
        **dict.fromkeys(("part", "jpeg", "png"), "binary"),
    },
    array=_own_array,
    text="string",
    bytes="binary",
    media="binary",
    exact=frozenset({"binary", "file"}),
    nulls=True,
    json="json text",
)
_FILES = {**dict.fromkeys(("jpeg", "png", "media"), "file"), "list:bytes": "binaries"}
_TYPED = replace(_PARTS, kinds={**_PARTS.kinds, **_FILES}, media="file", lists="files")


def forms_of(*, typed: bool) -> Forms:
    """Return the forms of columns of samples: files are recognized by their content, those of parts by their names."""
    return _TYPED if typed else _PARTS


def _cell(form: str, value: Any) -> Any:
    if form.startswith("list:") and value is not None:
        return np.asarray(value, form[5:])  # Arrow has no bytes in the other order
    if form == "files" and value is not None:
        return [{"bytes": item, "path": None} for item in value]
    return {"bytes": value, "path": None} if form == "file" and value is not None else value


def arrow_schema(columns: Mapping[str, str]) -> Any:
    """Return the Arrow schema of these columns. Its metadata lists those that hold JSON text."""
    import pyarrow as pa

    def kind(form: str) -> Any:
        if form.startswith("list:"):
            return pa.list_(pa.from_numpy_dtype(np.dtype(form[5:])))
        plain = {"string": pa.string(), "json": pa.string(), "binary": pa.binary(), "int64": pa.int64()}
        file = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # as Hugging Face stores files
        more = {"double": pa.float64(), "bool": pa.bool_(), "file": file, "files": pa.list_(file)}
        more["binaries"] = pa.list_(pa.binary())
        return {**plain, **more}[form]

    texts = {name: "json" for name, form in columns.items() if form == "json" or (form == "string" and is_json(name))}
    metadata = {METADATA: json.dumps(texts).encode()} if texts else None
    return pa.schema([pa.field(name, kind(form)) for name, form in columns.items()], metadata=metadata)


def _table(rows: list[dict[str, Any]], schema: Any, where: str) -> Any:
    """Return rows as an Arrow table. Raises `DataError` for values that Arrow rejects, such as lone surrogates."""
    import pyarrow as pa

    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise DataError(
            f"a value does not fit its column ({str(error)[:200]})",
            file=where,
            kind="bad-option",
            fix="Fix the source, or select other columns with --fields.",
        ) from None


def _join(store: Store, name: str, pieces: Sequence[Done]) -> None:
    """Write one Parquet file from the row groups of chunks."""
    import pyarrow.parquet as pq

    with local_piece(pieces[0]) as path, pq.ParquetFile(path) as first:
        schema = first.schema_arrow
    with parquet_writer(store, name, schema) as writer:
        for piece in pieces:
            with local_piece(piece) as path, pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group))


def _storable(kind: Any, name: str, *, nested: bool = False) -> Any:
    """Return the type as which Parquet stores a column of an Arrow type, with equal values.

    Raises:
        ConfigError: there is none.
    """
    import pyarrow as pa
    from pyarrow import types

    def item(field: Any) -> Any:
        return field.with_type(_storable(field.type, name, nested=True))

    if isinstance(kind, pa.BaseExtensionType):
        if _storable(kind.storage_type, name) != kind.storage_type:
            raise _unstorable(name, f"the type {kind}")
        return kind
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.string() if types.is_string_view(kind) else pa.binary()
    if types.is_run_end_encoded(kind):
        if nested and "[ns" in str(kind):  # they are decoded as values of Python, which have microseconds
            raise _unstorable(name, f"nested run ends of nanoseconds ({kind})")
        return _storable(kind.value_type, name, nested=True)
    if types.is_dictionary(kind):
        plain = _storable(kind.value_type, name, nested=True)
        return kind if plain == kind.value_type and not types.is_null(plain) and not types.is_nested(plain) else plain
    if types.is_decimal(kind) and kind.scale < 0:
        if kind.precision - kind.scale > 76:
            raise _unstorable(name, f"the type {kind}, which has more than 76 digits")
        return (pa.decimal128 if kind.precision - kind.scale <= 38 else pa.decimal256)(kind.precision - kind.scale, 0)
    if types.is_struct(kind) and kind.num_fields:
        return pa.struct([item(field) for field in kind])
    if types.is_map(kind):
        return pa.map_(_storable(kind.key_type, name, nested=True), item(kind.item_field), keys_sorted=kind.keys_sorted)
    if types.is_fixed_size_list(kind) and kind.list_size:
        return pa.list_(item(kind.value_field), kind.list_size)
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.large_list(item(kind.value_field))
    if types.is_list(kind) or types.is_list_view(kind) or types.is_fixed_size_list(kind):
        return pa.list_(item(kind.value_field))
    if types.is_struct(kind) or types.is_union(kind) or types.is_interval(kind):
        raise _unstorable(name, "structs without fields" if types.is_struct(kind) else f"the type {kind}")
    return kind


def _unstorable(name: str, what: str) -> ConfigError:
    return ConfigError(
        f"Parquet cannot store {what}",
        record=name,
        kind="unsupported",
        fix="Select other columns with --fields, or convert to another format.",
    )


def _cast(table: Any, schema: Any) -> Any:
    """Return a table whose columns have the types of `_storable`. Raises `DataError` if a value cannot be converted."""
    import pyarrow as pa

    columns = []
    for column, field in zip(table.columns, schema, strict=True):
        column = _plain(column) if column.type != field.type else column
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # nested run ends, dictionaries of nulls
            try:
                columns.append(pa.chunked_array([pa.array(column.to_pylist(), field.type)]))
            except (pa.ArrowException, ValueError) as error:
                raise DataError(
                    f"values of the type {column.type} cannot be converted to {field.type} ({error})",
                    record=field.name,
                    kind="unsupported",
                    fix="Select other columns with --fields, or convert to another format.",
                ) from None
    return pa.Table.from_arrays(columns, schema=schema)


def _plain(column: Any) -> Any:
    """Return a chunked array without run ends and dictionaries of nested values of its own."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_run_end_encoded(column.type):
        return pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], column.type.value_type)
    if pa.types.is_dictionary(column.type) and pa.types.is_nested(column.type.value_type):
        return pa.chunked_array([each.dictionary.take(each.indices) for each in column.chunks], column.type.value_type)
    return column
