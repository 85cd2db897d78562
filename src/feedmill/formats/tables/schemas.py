"""Unite the schemas of the files of one table by what their values become in Python, and read files by the result.

Types unite if no value changes and none is lost::

    null and any type                               the other type
    dictionaries, run-end encoded                   as their values
    text: string, large, view                       string, or large_string
    JSON text (arrow.json)                          of what their text unites to
    bytes: binary, large, view, of fixed size       binary, or large_binary
    integers                                        the narrowest type that holds both, if there is one
    floating point numbers; decimals                the wider one
    timestamps of one time zone, times, durations   the finer unit
    dates                                           date64
    lists: list, large, view, of fixed size         list, or large_list, of what their items unite to
    maps, structs                                   of what their parts unite to

All others must be equal. The columns are in the order of the first file; those that it lacks follow. A column, or a
field of a struct, that a file lacks is null there: `Unity.notes` says so. Import this module when a table is opened: it
requires pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from feedmill.errors import DataError
from feedmill.formats.arrowtypes.arrays import Bools, bounds, chunks_of, filled, is_list, present_in, take, within
from feedmill.formats.arrowtypes.features import HUGGINGFACE, features_of, meaning

_UNITS = ("s", "ms", "us", "ns")
_LISTS = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
_LARGE_LISTS = (types.is_large_list, types.is_large_list_view)
_TEXTS = (types.is_string, types.is_large_string, types.is_string_view)
_BYTES = (types.is_binary, types.is_fixed_size_binary, types.is_large_binary, types.is_binary_view)


def united_type(one: Any, other: Any) -> Any:
    """Return the `pyarrow.DataType` to which two types unite; None if values would change or be lost."""
    if one.equals(other):
        return one
    for kind, another in ((one, other), (other, one)):
        if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
            return united_type(kind.value_type, another)
        if types.is_null(kind):
            return another
    for tests, unite in _RULES:
        if _is(one, tests) and _is(other, tests):
            return unite(one, other)
    return None


def _is(kind: Any, tests: Sequence[Any]) -> bool:
    return any(test(kind) for test in tests)


def _text(*both: Any) -> Any:
    return pa.string() if all(map(types.is_string, both)) else pa.large_string()


def _bytes(*both: Any) -> Any:
    return pa.binary() if all(_is(kind, _BYTES[:2]) for kind in both) else pa.large_binary()


def _integer(*both: Any) -> Any:
    signed = any(map(types.is_signed_integer, both))
    bits = max(kind.bit_width * (1 + (signed and types.is_unsigned_integer(kind))) for kind in both)
    return getattr(pa, f"int{bits}" if signed else f"uint{bits}")() if bits <= 64 else None


def _decimal(one: Any, other: Any) -> Any:
    scale = max(one.scale, other.scale)
    digits = max(kind.precision - kind.scale for kind in (one, other)) + scale
    return None if digits > 76 else (pa.decimal128 if digits <= 38 else pa.decimal256)(digits, scale)


def _finer(one: Any, other: Any) -> str:
    return str(max(one.unit, other.unit, key=_UNITS.index))


def _time(one: Any, other: Any) -> Any:
    unit = _finer(one, other)
    return pa.time32(unit) if unit in _UNITS[:2] else pa.time64(unit)


def _timestamp(one: Any, other: Any) -> Any:
    return pa.timestamp(_finer(one, other), one.tz) if one.tz == other.tz else None


def _list(one: Any, other: Any) -> Any:
    items = united_type(one.value_type, other.value_type)
    large = _is(one, _LARGE_LISTS) or _is(other, _LARGE_LISTS)
    return None if items is None else (pa.large_list if large else pa.list_)(items)


def _map(one: Any, other: Any) -> Any:
    parts = united_type(one.key_type, other.key_type), united_type(one.item_type, other.item_type)
    return None if None in parts else pa.map_(*parts)


def _struct(one: Any, other: Any) -> Any:
    here, there = ({part.name: part.type for part in kind} for kind in (one, other))
    if not here.keys() & there.keys() or (len(here), len(there)) != (one.num_fields, other.num_fields):
        return None  # nothing in common, or two fields of one name
    types = {name: united_type(here.get(name, pa.null()), there.get(name, pa.null())) for name in {**here, **there}}
    return None if None in types.values() else pa.struct(types.items())


def _is_json(kind: Any) -> bool:
    return getattr(kind, "extension_name", "") == "arrow.json"


def _json(one: Any, other: Any) -> Any:
    return pa.json_(_text(one.storage_type, other.storage_type))


_RULES: tuple[tuple[Sequence[Any], Any], ...] = (
    (_TEXTS, _text),
    ((_is_json,), _json),
    (_BYTES, _bytes),
    ((types.is_integer,), _integer),
    ((types.is_floating,), lambda one, other: max(one, other, key=lambda kind: kind.bit_width)),
    ((types.is_decimal,), _decimal),
    ((types.is_timestamp,), _timestamp),
    ((types.is_time,), _time),
    ((types.is_duration,), lambda one, other: pa.duration(_finer(one, other))),
    ((types.is_date,), lambda *_: pa.date64()),
    (_LISTS, _list),
    ((types.is_map,), _map),
    ((types.is_struct,), _struct),
)


@dataclass
class Unity:
    """The schema to which the files of a table unite, extended file by file with `add`.

    Attributes:
        schema: the `pyarrow.Schema`; None before the first file.
    """

    schema: Any = None
    _seen: list[tuple[Any, str, int]] = field(default_factory=list)  # schema, its first file, number of its files
    _of: dict[str, str] = field(default_factory=dict)  # column -> the file that it was first seen in

    def add(self, schema: Any, path: str, where: str) -> None:
        """Add the schema of a file.

        Args:
            path: path of the file in its store, for messages about other files.
            where: its location, for errors.

        Raises:
            DataError: the file does not unite with those before it.
        """
        for number, (seen, first, count) in enumerate(self._seen):
            if schema.equals(seen):
                self._seen[number] = seen, first, count + 1
                return
        self.schema = schema if self.schema is None else self._united(schema, where)
        self._of = {**dict.fromkeys(schema.names, path), **self._of}
        self._seen.append((schema, path, 1))

    def _united(self, schema: Any, where: str) -> Any:
        known = self.schema
        if not set(known.names) & set(schema.names):
            here, there = (", ".join(map(repr, fields.names)) for fields in (schema, known))
            what = f"its columns are {here}, and those of {self._seen[0][1]!r} are {there}"
            raise _differs(where, what, "Open the files one by one, or mix them with a recipe.")
        fields = {field.name: field.with_nullable(True) for field in known}
        for own in schema:
            before = fields.get(own.name)
            kind = own.type if before is None else united_type(before.type, own.type)
            if kind is None:
                assert before is not None
                what = f"{own.name!r} is {own.type} here and {before.type} in {self._of[own.name]!r}"
                raise _differs(where, what, "Write the column with one type in all files, or mix them with a recipe.")
            changed = before is not None and not kind.equals(before.type)  # what its writer noted is of the other type
            fields[own.name] = pa.field(own.name, kind) if changed else (before or own).with_nullable(True)
        return pa.schema(list(fields.values()), metadata=self._metadata(schema, where))

    def _metadata(self, schema: Any, where: str) -> dict[bytes, bytes] | None:
        """Return the metadata of both schemas, with the features of `datasets` for all columns of both."""
        before, features = features_of(self.schema, where), features_of(schema, where)
        for name in before.keys() & features.keys():
            if meaning(before[name]) != meaning(features[name]):  # text in one may be JSON in the other
                what = f"{name!r} is the feature {features[name]} here and {before[name]} in {self._of[name]!r}"
                raise _differs(where, what, "Save the column with one feature in all files.")
        metadata = {**(schema.metadata or {}), **(self.schema.metadata or {})}
        if before and features:
            metadata[HUGGINGFACE] = json.dumps({"info": {"features": {**features, **before}}}).encode()
        return metadata or None

    @property
    def notes(self) -> list[str]:
        """Return notes on the columns, and fields inside of columns, that some files lack."""
        lacking: dict[str, list[tuple[str, int]]] = {}
        for schema, path, count in self._seen:
            for name in _lacking(schema, self.schema, ""):
                lacking.setdefault(name, []).append((path, count))
        together: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for name, lacks in lacking.items():
            together.setdefault(tuple(lacks), []).append(name)
        total = sum(count for *_, count in self._seen)
        return [
            f"{', '.join(map(repr, names))} {'is' if len(names) == 1 else 'are'} missing from"
            f" {sum(count for _, count in lacks):,} of {total:,} files, such as {lacks[0][0]!r}: null there"
            for lacks, names in together.items()
        ]


def _lacking(have: Any, united: Any, above: str) -> Iterator[str]:
    """Yield the names of fields of a schema or struct that another one lacks, at any depth."""
    known = {field.name: field.type for field in have}
    for wanted in united:
        if wanted.name not in known:
            yield above + wanted.name
        elif not wanted.type.equals(known[wanted.name]):
            yield from _lacking_inside(known[wanted.name], wanted.type, f"{above}{wanted.name}.")


def _lacking_inside(have: Any, united: Any, above: str) -> Iterator[str]:
    while types.is_dictionary(have) or types.is_run_end_encoded(have):
        have = have.value_type
    if types.is_struct(united) and types.is_struct(have):
        yield from _lacking(have, united, above)
    elif _is(united, _LISTS) and _is(have, _LISTS):
        yield from _lacking_inside(have.value_type, united.value_type, above)
    elif types.is_map(united) and types.is_map(have):
        yield from _lacking_inside(have.item_type, united.item_type, above)


def _differs(where: str, what: str, fix: str) -> DataError:
    return DataError(f"its columns differ from other files: {what}", file=where, kind="other-columns", fix=fix)


def fitted(table: Any, schema: Any, where: str) -> Any:
    """Return a `pyarrow.Table` or `RecordBatch` with the columns and types of a united schema.

    Raises:
        DataError: a value is out of the range of the united type, such as a time of the year 3000 in nanoseconds.
    """
    columns = []
    for column in schema:
        at = table.schema.get_field_index(column.name)
        columns.append(pa.nulls(table.num_rows, column.type) if at < 0 else _cast(table.column(at), column, where))
    return type(table).from_arrays(columns, schema=schema)


def _cast(column: Any, to: Any, where: str) -> Any:
    if column.type.equals(to.type):
        return column
    try:
        parts = [_as(array, to.type) for array in chunks_of(column)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"a value of {to.name!r} does not fit {to.type}, to which the types of the files unite ({reason})",
            file=where,
            record=f"column {to.name!r}",
            kind="other-columns",
            fix="Write the column with one type in all files.",
        ) from None
    return pa.chunked_array(parts, to.type) if isinstance(column, pa.ChunkedArray) else parts[0]


def _as(array: Any, to: Any) -> Any:
    """Return an array as the type to which its type and others unite.

    Its parts are cast one by one: Arrow has no cast of many nested types, and its cast of list views loses items (see
    findings/pyarrow_cast_of_list_views.sh). Raises `pyarrow.ArrowInvalid` if a value does not fit.
    """
    kind = array.type
    if kind.equals(to):
        return array
    if types.is_null(kind):
        return pa.nulls(len(array), to)
    if types.is_dictionary(kind):
        return _chosen(_as(array.dictionary, to), filled(array.indices), present_in(array.indices))
    if types.is_run_end_encoded(kind):
        runs = np.searchsorted(np.asarray(array.run_ends), array.offset + np.arange(len(array)), side="right")
        return _chosen(_as(array.values, to), runs, np.ones(len(array), bool))
    nulls = pa.array(~present_in(array)) if array.null_count else None
    if types.is_struct(kind):
        have = {field.name: number for number, field in enumerate(kind)}
        lacking = pa.nulls(len(array))
        parts = [_as(array.field(have[field.name]) if field.name in have else lacking, field.type) for field in to]
        return pa.StructArray.from_arrays(parts, fields=list(to), mask=nulls)
    if types.is_map(kind):
        keys, at = within(array.keys, *bounds(array))
        items, _ = within(array.items, *bounds(array))
        parts = [_joined(keys, to.key_type), _joined(items, to.item_type)]
        return pa.MapArray.from_arrays(pa.array(at, pa.int32()), *parts, type=to, mask=nulls)
    if is_list(kind) and not types.is_fixed_size_list(to):
        make, offset = (pa.LargeListArray, pa.int64()) if types.is_large_list(to) else (pa.ListArray, pa.int32())
        items, at = within(array.values, *bounds(array))
        return make.from_arrays(pa.array(at, offset), _joined(items, to.value_type), type=to, mask=nulls)
    if _is_json(to):
        return pa.ExtensionArray.from_storage(to, _as(array.storage, to.storage_type))
    return array.cast(to)


def _chosen(values: Any, numbers: npt.NDArray[Any], present: Bools) -> Any:
    """Return values by number; null where `present` is not."""
    if not present.all():
        numbers = np.where(present, numbers, len(values))
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return _joined(take(values, numbers.astype(np.int64)), values.type)


def _joined(column: Any, to: Any) -> Any:
    """Return an array or chunked array as one array of a type."""
    parts = [_as(array, to) for array in chunks_of(column)]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [pa.nulls(0, to)])
