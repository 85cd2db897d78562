"""Schemas of several files unite if no value changes: every pair of types is united, or refused with the difference."""

from __future__ import annotations

import datetime
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import feedmill as fm
from feedmill.errors import DataError
from feedmill.formats.arrowtypes.arrays import is_list
from feedmill.formats.arrowtypes.reading import values
from feedmill.formats.tables.schemas import Unity, fitted, united_type
from helpers import arrow_matrix
from helpers.arrow_matrix import Column

DAY = datetime.datetime(2026, 11, 29, 1, 2, 3, 400_000)
UTC = DAY.replace(tzinfo=datetime.UTC)
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
TEXTS += [pa.dictionary(pa.uint32(), pa.large_string()), pa.run_end_encoded(pa.int32(), pa.string())]
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)]
SIGNED, UNSIGNED = [pa.int8(), pa.int16(), pa.int32(), pa.int64()], [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
INTEGERS, FLOATS = SIGNED + UNSIGNED, [pa.float16(), pa.float32(), pa.float64()]
GROUPS: dict[str, tuple[list[Any], Any]] = {
    "text": (TEXTS, "ab"),
    "JSON": ([pa.json_(kind) for kind in TEXTS[:3]], '{"a": 1}'),
    "bytes": (BYTES, b"ab"),
    "integer": (INTEGERS, 7),
    "float": (FLOATS, 0.5),
    "bool": ([pa.bool_()], True),
    "decimal": ([pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal256(50, 4)], Decimal("1.25")),
    "local": ([pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns")], DAY),
    "UTC": ([pa.timestamp("ms", "UTC"), pa.timestamp("ns", "UTC")], UTC),
    "Paris": ([pa.timestamp("us", "Europe/Paris")], UTC),
    "time": ([pa.time32("ms"), pa.time64("us"), pa.time64("ns")], DAY.time()),
    "duration": ([pa.duration("ms"), pa.duration("ns")], datetime.timedelta(milliseconds=5)),
    "date": ([pa.date32(), pa.date64()], DAY.date()),
    "map": ([pa.map_(pa.string(), pa.int32()), pa.map_(pa.large_string(), pa.int64())], [("a", 1)]),
    "struct": ([pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64()), ("b", pa.string())])], {"a": 3}),
    "words": ([kind(pa.string()) for kind in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)], ["a", None]),
    "pair": ([pa.list_(pa.float32(), 2), pa.list_(pa.float64()), pa.large_list(pa.float16())], [0.5, 1.5]),
    "structs": (
        [pa.list_(pa.struct([("t", pa.string())])), pa.large_list(pa.struct([("t", TEXTS[1]), ("n", pa.int8())]))],
        [{"t": "x"}, None],
    ),
}  # fmt: skip
TYPES = [(name, kind, value) for name, (kinds, value) in GROUPS.items() for kind in kinds]


def test_types_unite_if_their_values_are_of_one_kind() -> None:
    for (group, one, _), (other_group, other, _) in product(TYPES, TYPES):
        found = united_type(one, other)
        nothing_holds_both = pa.uint64() in (one, other) and (one in SIGNED or other in SIGNED)
        assert (found is not None) == (group == other_group and not nothing_holds_both), (one, other)
        assert found is None or found.equals(united_type(other, one))
        assert united_type(pa.null(), one).equals(one)


def column(kind: Any, value: Any) -> pa.Array:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        plain = pa.array([value, None], kind.value_type)
        return plain.cast(kind) if pa.types.is_dictionary(kind) else pa.compute.run_end_encode(plain)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array([value, None], kind.storage_type))
    if kind == pa.float16():
        return pa.array([np.float16(value), None], kind)
    if pa.types.is_large_list(kind) and kind.value_type == pa.float16():
        return pa.array([value, None], pa.large_list(pa.float32())).cast(kind)
    return pa.array([value, None], kind)


@pytest.mark.parametrize("group", GROUPS)
def test_united_columns_have_the_values_of_each(group: str) -> None:
    kinds, value = GROUPS[group]
    for one, other in product(kinds, kinds):
        united = united_type(one, other)
        if united is None:
            continue
        for kind in (one, other):
            table = pa.table({"x": column(kind, value)})
            got = fitted(table, pa.schema({"x": united}), "here").column("x")
            got.validate(full=True)
            assert got.type == united
            first, last = got.to_pylist()
            if isinstance(value, dict):
                first = {name: first[name] for name in value}
            if group == "structs":
                first = [item and {"t": item["t"]} for item in first]
            expected = value if not isinstance(value, datetime.datetime) or value.tzinfo is None else UTC
            assert (first.to_pydatetime() if hasattr(first, "to_pydatetime") else first) == expected and last is None


def plainest(kind: Any) -> Any:
    """The type as which another file may have the same values: lists for views, values for dictionaries and runs."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plainest(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plainest(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(plainest(kind.key_type), plainest(kind.item_type))
    return pa.list_(plainest(kind.value_type)) if is_list(kind) else kind


def comparable(value: Any) -> Any:
    """Tuples and arrays as lists, NaN as text."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, dict):
        return {name: comparable(item) for name, item in value.items()}
    return list(map(comparable, value)) if isinstance(value, list | tuple) else "NaN" if value != value else value


def check_united(column: Column) -> bool:
    """Check a column that becomes the plainest type beside a file with it; False if it has that type already."""
    kind = plainest(column.array.type)
    united = united_type(column.array.type, kind)
    assert united is not None, column.name
    if united.equals(column.array.type):
        return False
    schema = pa.schema({"x": united})
    for low in (0, 1):
        table = pa.table({"x": column.array[low:]})
        for got in (fitted(table, schema, "here"), fitted(table.slice(0, 2), schema, "here")):
            got.validate(full=True)
            expected = column.values[low : low + len(got)]
            assert comparable(values(got.column("x"))) == comparable(expected), (column.name, low)
    lacking = pa.schema({"x": pa.struct([("s", united), ("more", kind)])})
    inside = pa.table({"x": pa.StructArray.from_arrays([column.array], ["s"])})
    rows = values(fitted(inside, lacking, "here").column("x"))
    assert comparable(rows) == [{"s": comparable(value), "more": None} for value in column.values], column.name
    return True


def test_united_columns_of_any_nesting_have_the_values_of_each() -> None:
    assert sum(map(check_united, [*arrow_matrix.columns(1, limit=150), *arrow_matrix.columns(2, limit=150)])) >= 100


@pytest.mark.slow
def test_all_united_columns_have_the_values_of_each() -> None:
    assert sum(map(check_united, [*arrow_matrix.columns(1), *arrow_matrix.columns(2, limit=1000)])) >= 500


def write(folder: Path, *tables: dict[str, Any]) -> Path:
    folder.mkdir()
    for number, columns in enumerate(tables):
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
    return folder


def test_rows_are_those_of_pyarrow(tmp_path: Path) -> None:
    small = {
        "t": ["a"],
        "n": pa.array([1], pa.int32()),
        "v": pa.array([[1, 2]], pa.list_(pa.int32())),
        "o": pa.nulls(1),
    }
    wide = {"o": ["x"], "n": [2**40], "v": [[2**40]], "t": pa.array(["b"]).dictionary_encode()}
    large = {
        "v": pa.array([[3]], pa.large_list(pa.uint8())),
        "t": pa.array(["c"], pa.large_string()),
        "n": [None],
        "o": ["y"],
    }
    dataset = fm.open(write(tmp_path / "d", small, wide, large))
    theirs = pyarrow.dataset.dataset(tmp_path / "d", schema=dataset.schema).to_table()
    assert dataset.to_arrow().equals(theirs) and dataset.describe()["columns"]["v"] == "large_list<item: int64>"
    assert [(s["t"], s["n"], s["o"]) for s in dataset] == [("a", 1, None), ("b", 2**40, "x"), ("c", None, "y")]
    assert [(s["v"].dtype, s["v"].tolist()) for s in dataset.read([2, 0])] == [("int64", [3]), ("int64", [1, 2])]
    assert list(dataset[1]) == ["t", "n", "v", "o"] and not dataset.remarks
    assert not fm.check(tmp_path / "d", read_samples=True, progress=False).findings
    assert fm.convert(tmp_path / "d", tmp_path / "out.parquet", to="parquet", progress=False).samples == 3
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == theirs.to_pylist()


def test_a_column_that_files_lack_is_null_and_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = {"t": ["a"], "m": [{"lang": "en", "page": 3}], "extra": [1]}
    folder = write(tmp_path / "d", {"t": ["x"]}, whole, {"t": ["y"], "m": [{"lang": "de"}]}, {"t": ["z"]})
    dataset = fm.open(folder)
    notes = [
        "'m' is missing from 2 of 4 files, such as '0.parquet': null there",
        "'extra' is missing from 3 of 4 files, such as '0.parquet': null there",
        "'m.page' is missing from 1 of 4 files, such as '2.parquet': null there",
    ]
    assert (
        list(dataset.remarks)
        == notes
        == fm.info(folder).facts["remarks"]
        == [r.getMessage() for r in caplog.records][:3]
    )
    assert [dict(sample.items()) for sample in dataset] == [
        {"t": "x", "m": None, "extra": None},
        {"t": "a", "m": {"lang": "en", "page": 3}, "extra": 1},
        {"t": "y", "m": {"lang": "de", "page": None}, "extra": None},
        {"t": "z", "m": None, "extra": None},
    ]
    write(tmp_path / "keys", {"__key__": ["k"], "t": ["a"]}, {"t": ["b"]})
    with pytest.raises(DataError, match="1 rows have no key in the column '__key__'"):
        fm.open(tmp_path / "keys").find("k")


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (pa.array([1]), pa.array([0.5]), "'x' is double here and int64 in '0.parquet'"),
        (pa.array([1]), pa.array(["a"]), "'x' is string here and int64 in '0.parquet'"),
        (pa.array([1], pa.uint64()), pa.array([-1]), "'x' is int64 here and uint64 in '0.parquet'"),
        (
            pa.array([DAY], pa.timestamp("us", "UTC")),
            pa.array([DAY], pa.timestamp("us", "Europe/Paris")),
            "tz=Europe/Paris",
        ),
        (pa.array([{"a": 1}]), pa.array([{"b": 1}]), "struct<b: int64> here and struct<a: int64>"),
        (pa.array([b"a"]), pa.array(["a"]), "'x' is string here and binary"),
        (pa.array([True]), pa.array([1]), "'x' is int64 here and bool"),
    ],
)
def test_what_loses_something_is_refused(one: pa.Array, other: pa.Array, words: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "d", {"x": one, "t": ["a"]}, {"x": other, "t": ["a"]})
    with pytest.raises(DataError) as caught:
        fm.open(folder)
    assert caught.value.kind == "other-columns" and words in str(caught.value) and "1.parquet" in str(caught.value)


def test_a_value_that_no_united_type_holds_is_named(tmp_path: Path) -> None:
    far = pa.array([datetime.datetime(3000, 1, 1)], pa.timestamp("ms"))
    folder = write(tmp_path / "d", {"x": far}, {"x": pa.array([DAY], pa.timestamp("ns"))})
    dataset = fm.open(folder)
    assert dataset[1]["x"] == DAY
    with pytest.raises(DataError, match=r"0\.parquet \"column 'x'\": a value of 'x' does not fit timestamp\[ns\]"):
        dataset[0]


def test_only_nullability_and_names_of_items_differ(tmp_path: Path) -> None:
    one = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("l", pa.list_(pa.field("item", pa.string())))])
    other = pa.schema(
        [pa.field("x", pa.int64()), pa.field("l", pa.list_(pa.field("element", pa.string(), nullable=False)))]
    )
    unity = Unity()
    for number, schema in enumerate((one, other, one)):
        unity.add(schema, f"{number}.parquet", "here")
    assert (
        unity.schema.field("x").nullable and unity.schema.field("l").type == pa.list_(pa.string()) and not unity.notes
    )
    rows = pa.table({"x": [1], "l": [["a"]]})
    (tmp_path / "d").mkdir()
    for number, schema in enumerate((one, other)):
        pq.write_table(rows.cast(schema), tmp_path / f"d/{number}.parquet")
    assert [(s["x"], s["l"]) for s in fm.open(tmp_path / "d")] == [(1, ["a"])] * 2
