"""Write samples and rows as Parquet: a folder of files, or one file of many row groups."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedmill.converting.fields import KEY, Taken, digest, is_json, plain_bytes, row_digest, row_of, wanted
from feedmill.converting.job import Done
from feedmill.converting.jsontypes import METADATA, fit, schema_of
from feedmill.converting.preview import Loss, named
from feedmill.converting.survey import (
    BYTES,
    COUNTS,
    Survey,
    column_of,
    json_value,
    kinds,
    names,
    read_digest,
    refuse_unsurveyed,
    text_of,
    value_of,
)
from feedmill.converting.units import Add, SampleTarget, Unit, Written, local_piece, opened
from feedmill.errors import DataError
from feedmill.formats.base import Dataset
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
        columns: column -> form, see `feedmill.converting.survey.Columns`.
    """

    columns: Mapping[str, Any]

    def path(self, unit: Unit) -> str:
        """See `Target`."""
        return f"part-{unit.number:06d}.parquet"

    @contextmanager
    def output(self, store: Store, path: str, unit: Unit, extra: dict[str, Any]) -> Iterator[Add]:  # noqa: ARG002
        """See `Target`. Row groups are written when they exceed 32 MiB."""
        columns, schema = self.columns, arrow_schema(self.columns)
        rows: list[dict[str, Any]] = []
        size = 0

        def add(item: tuple[int, Taken]) -> Sequence[bytes]:
            nonlocal size
            taken = item[1]
            refuse_unsurveyed(taken, columns)
            row, parts = _row(columns, taken)
            rows.append(row)
            size += sum(map(len, parts.values()))
            if size >= _GROUP_BYTES:
                flush()
            return (digest(taken.key if KEY in columns else "", parts),)

        def flush() -> None:
            nonlocal size
            if rows:
                writer.write_table(_table(rows, schema, store.locate(path)))
            rows.clear()
            size = 0

        with _writer(store, path, schema) as writer:
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
    """Rows as Parquet: of JSON, with types in `columns`, or of the table `source`, whose columns keep their types.

    Attributes:
        source, split: the source.
        fields: names or patterns of the columns to keep; all if empty.
        stems: names of the outputs without suffixes; if empty, outputs are numbered.
    """

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
            hashes = [row_digest(row) for _, row in item]
            if self.columns:
                writer.write_table(self.fitted(schema, item))
            else:
                table = self.table().arrow_rows([number for number, _ in item])
                writer.write_table(table.select(schema.names).cast(schema))
            return hashes

        with _writer(store, path, schema) as writer:
            yield add

    def schema(self) -> Any:
        """Return the Arrow schema of the outputs."""
        if self.columns:
            return schema_of(self.columns)
        import pyarrow as pa

        schema = self.table().schema
        assert schema is not None
        return pa.schema([f for f in schema if wanted(f.name, self.fields)], metadata=schema.metadata)

    def table(self) -> TableDataset:
        """Return the source, which is a table."""
        dataset = opened(self.source, self.split)
        assert isinstance(dataset, TableDataset)
        return dataset

    def fitted(self, schema: Any, rows: Rows) -> Any:
        """Return rows of JSON as an Arrow table. Raises `DataError` if they do not fit the columns."""
        try:
            fitted = [{n: fit(v, self.columns[n]) for n, v in row.items()} for _, row in rows]
        except KeyError as error:
            raise DataError(
                f"the name {error} is new: no row had it when the source was surveyed",
                file=self.source,
                kind="changed",
                fix="The source has changed. Run the conversion again with --overwrite.",
            ) from None
        return _table(fitted, schema, self.source)

    def digests(self, dataset: Dataset, samples: Sequence[Sample]) -> list[bytes]:
        """See `SampleTarget`."""
        return [row_digest(row_of(dataset, sample)) for sample in samples]

    def record(self, written: Written, number: int) -> str:
        """See `Target`."""
        return f"row {written.first + number}"


@contextmanager
def _writer(store: Store, path: str, schema: Any) -> Iterator[Any]:
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


def parquet_columns(found: Survey) -> tuple[dict[str, str], list[Loss]]:
    """Return column -> form for Parquet, in the order of the fields, and the losses."""
    out: dict[str, str] = {KEY: "string"} if found[COUNTS]["keyed"] else {}
    for name in names(found):
        have = kinds(found, name)[0]
        form = _parquet_form(have)
        out[column_of(name, have, form)] = form
    mixed = [name for name, form in out.items() if form == "json"]
    losses = []
    if any(kinds(found, name)[1] for name in names(found)):
        losses.append(Loss("the difference between missing fields and null"))
    if mixed:
        losses.append(Loss(f"types of {named(mixed)}: nested values and mixed types become JSON text"))
    return out, losses


def _parquet_form(have: set[str]) -> str:
    if have <= {"text"}:
        return "string"
    if len(have) == 1 and (one := next(iter(have))) in ("int", "float", "bool"):
        return {"int": "int64", "float": "double", "bool": "bool"}[one]
    if len(have) == 1 and next(iter(have)).startswith("array:"):
        _, dtype, axes = next(iter(have)).split(":")
        return f"list:{dtype}" if axes == "1" and np.dtype(dtype).kind in "iuf" and dtype != "<f2" else "binary"
    if have & BYTES or any(kind.startswith("array:") for kind in have):
        return "binary"
    return "json"


def _row(columns: Mapping[str, str], taken: Taken) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the values of a row, and the bytes of each field as they will be read back."""
    row: dict[str, Any] = {}
    parts = {}
    for name, form in columns.items():
        value = taken.key if name == KEY else value_of(taken, name)
        if value is None:
            row[name] = None
            continue
        if form == "string":
            value = text_of(value)
        elif form == "binary":
            value = plain_bytes(value)
        elif form == "json":
            value = json.dumps(json_value(value), ensure_ascii=False, default=str)
        if name != KEY:
            parts[name] = plain_bytes(value)
        row[name] = value
    return row, parts


def arrow_schema(columns: Mapping[str, str]) -> Any:
    """Return the Arrow schema of these columns. Its metadata lists those that hold JSON text."""
    import pyarrow as pa

    def kind(form: str) -> Any:
        if form.startswith("list:"):
            return pa.list_(pa.from_numpy_dtype(np.dtype(form[5:])))
        plain = {"string": pa.string(), "json": pa.string(), "binary": pa.binary(), "int64": pa.int64()}
        return {**plain, "double": pa.float64(), "bool": pa.bool_()}[form]

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
            kind="bad-value",
            fix="Fix the source, or select other columns with --fields.",
        ) from None


def _join(store: Store, name: str, pieces: Sequence[Done]) -> None:
    """Write one Parquet file from the row groups of chunks."""
    import pyarrow.parquet as pq

    with local_piece(pieces[0]) as path, pq.ParquetFile(path) as first:
        schema = first.schema_arrow
    with _writer(store, name, schema) as writer:
        for piece in pieces:
            with local_piece(piece) as path, pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group))
