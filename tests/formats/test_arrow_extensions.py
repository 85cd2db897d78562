"""Extension types, features of `datasets`, values that Python does not have, and what is refused, by name and place."""

from __future__ import annotations

import io
import json
import pickle
import runpy
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.documents.columns import read_columns
from feedmill.documents.file import DocumentFile, Unit
from feedmill.documents.textpath import TextReader
from feedmill.errors import DataError, FeedmillError
from feedmill.formats.arrowtypes import table as types
from feedmill.formats.arrowtypes.reading import Columns, values
from feedmill.formats.rows import INSIDE

DOCS = Path(__file__).parents[2] / "docs"
NAME, PARAMETERS = "ARROW:extension:name", "ARROW:extension:metadata"
FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def arrow(table: pa.Table, folder: Path) -> Path:
    with pa.ipc.new_file(str(folder / "x.arrow"), table.schema) as out:
        out.write_table(table)
    return folder / "x.arrow"


def parquet(table: pa.Table, folder: Path) -> Path:
    pq.write_table(table, folder / "x.parquet")
    return folder / "x.parquet"


def saved(table: pa.Table, folder: Path) -> Path:
    """As `save_to_disk` of `datasets` writes it, with the features in dataset_info.json alone."""
    found = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    (folder / "x").mkdir()
    with pa.ipc.new_stream(str(folder / "x/data-00000-of-00001.arrow"), table.schema.remove_metadata()) as out:
        out.write_table(table.replace_schema_metadata(None))
    (folder / "x/state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "x/dataset_info.json").write_text(json.dumps(found.get("info", {})))
    return folder / "x"


WRITERS = [arrow, parquet, saved]
Write = Callable[[pa.Table, Path], Path]


def with_features(table: pa.Table, **features: Any) -> pa.Table:
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def extension(name: str, array: Any, parameters: str = "") -> pa.Table:
    """A table whose column has an extension type that pyarrow does not know."""
    field = pa.field("c", array.type, metadata={NAME: name, PARAMETERS: parameters})
    return pa.table([array], schema=pa.schema([field]))


def png(shade: int, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (3, 2), shade if mode == "L" else (shade, 0, 0)).save(out, "PNG")
    return out.getvalue()


def stored(numbers: list[int | None], kind: Any, width: Any = None) -> Any:
    return pa.array(numbers, width or pa.int64()).view(kind)


# The table


def test_the_table_has_every_type_of_pyarrow() -> None:
    known = {f"Type_{name}" for row in types.TYPES for name in row.names}
    assert known == {name for name in dir(pa.lib) if name.startswith("Type_")}


def test_no_name_is_in_the_table_twice() -> None:
    for rows in (types.TYPES, types.EXTENSIONS, types.FEATURES):
        names = [name for row in rows for name in row.names]
        assert len(names) == len(set(names)) and all(row.value and row.title for row in rows)


def test_the_page_has_the_tables_of_the_code() -> None:
    pages: dict[Path, str] = runpy.run_path(str(DOCS / "formats/write.py"))["pages"]()
    assert len(pages) == 1
    for path, text in pages.items():
        assert path.read_text() == text, "run: python docs/formats/write.py"
        assert all(row.value in text for rows in (types.TYPES, types.EXTENSIONS, types.FEATURES) for row in rows)


# Features of `datasets`

CHAT = [
    [{"role": "user", "content": "a b"}, {"role": "assistant", "content": [{"type": "text", "text": "yo"}]}],
    [{"role": "user", "content": 5}, {"role": "tool", "content": None}, {"role": "user", "content": float("inf")}],
]
ROLE = {"_type": "Value", "dtype": "string"}
CHAT_FEATURE = {"_type": "List", "feature": {"role": ROLE, "content": {"_type": "Json"}}}


def chat(kind: Any) -> pa.Table:
    """Messages whose content is JSON, as `datasets` stores them if contents have several types."""
    texts = [None if m["content"] is None else json.dumps(m["content"]) for c in CHAT for m in c]
    content = pa.array(texts, kind.storage_type if isinstance(kind, pa.JsonType) else kind)
    content = pa.ExtensionArray.from_storage(kind, content) if isinstance(kind, pa.JsonType) else content
    roles = pa.array([m["role"] for c in CHAT for m in c])
    inner = pa.StructArray.from_arrays([roles, content], ["role", "content"])
    return pa.table({"messages": pa.ListArray.from_arrays([0, 2, 5], inner)})


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("kind", [pa.json_(), pa.json_(pa.large_string()), pa.string(), pa.large_string()], ids=str)
def test_json_is_what_it_says_where_datasets_names_it(write: Write, kind: Any, tmp_path: Path) -> None:
    dataset = fm.open(write(with_features(chat(kind), messages=CHAT_FEATURE), tmp_path))
    assert [sample["messages"] for sample in dataset] == CHAT


@pytest.mark.parametrize("write", [arrow, parquet])
def test_json_without_that_is_text(write: Write, tmp_path: Path) -> None:
    for table in (chat(pa.json_()), with_features(chat(pa.json_()), messages={"_type": "List", "feature": {}})):
        sample = fm.open(write(table, tmp_path))[0]
        assert [m["content"] for m in sample["messages"]] == ['"a b"', '[{"type": "text", "text": "yo"}]']


@pytest.mark.parametrize("write", [arrow, parquet])
def test_documents_have_what_json_says(write: Write, tmp_path: Path) -> None:
    texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['"two\\nlines"', "5", '"three"', "no json"]))
    path = write(with_features(pa.table({"text": texts}), text={"_type": "Json"}), tmp_path)
    assert texts_of(path) == ["two\nlines", None, "three", None]
    with pytest.raises(DataError, match=r"'3.text' .*'text' holds text that is not JSON \('no json'\)"):
        fm.open(path)[3]["text"]


def texts_of(path: Path) -> list[str | None]:
    file = DocumentFile(str(path.parent), path.name, path.suffix[1:], path.stat().st_size, "")
    out: list[str | None] = []
    for batch in read_columns(Unit(file, 0, 1, file.size), TextReader("text")):
        found: list[str | None] = [None] * batch.lines
        for row, text in zip(batch.rows, batch.texts, strict=True):
            found[row] = text
        out += found
    return out


ONE, LIST = {"_type": "Image"}, {"_type": "List", "feature": {"_type": "Image"}}


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("named", [True, False])
def test_files_are_decoded_wherever_they_stand(write: Write, named: bool, tmp_path: Path) -> None:
    one, two = ({"bytes": png(shade), "path": "x.png"} for shade in (10, 20))
    page = pa.struct([("scan", FILE), ("data", pa.binary()), ("more", pa.list_(FILE))])
    columns = {
        "image": pa.array([one, None], FILE),
        "images": pa.array([[one, None, two], []], pa.list_(FILE)),
        "page": pa.array([{"scan": two, "data": one["bytes"], "more": [one]}, None], page),
        "map": pa.array([[("a", one)], None], pa.map_(pa.string(), FILE)),
        "pages": pa.array([[{"scan": one}], [None]], pa.list_view(pa.struct([("scan", FILE)]))),
    }
    features = {"image": ONE, "images": LIST, "page": {"scan": ONE, "data": {"_type": "Value", "dtype": "binary"}}}
    table = pa.table(columns)
    if write is parquet:
        table = table.drop_columns("pages")  # pyarrow has no list views in Parquet
    dataset = fm.open(write(with_features(table, **features) if named else table, tmp_path))
    sample = dataset[0]
    assert sample["image"].shape == (2, 3, 3) and sample["image"][0, 0, 0] == 10
    assert [None if i is None else i[0, 0].tolist() for i in sample["images"]] == [[10, 0, 0], None, [20, 0, 0]]
    assert sample["page"]["scan"][0, 0, 0] == 20 and sample["page"]["data"] == one["bytes"]
    assert sample["page"]["more"][0].shape == (2, 3, 3) and sample["map"][0][1].shape == (2, 3, 3)
    assert "pages" not in sample or sample["pages"][0]["scan"].shape == (2, 3, 3)
    assert dataset.suffixes["images"] == dataset.suffixes["page"] == INSIDE
    again = pickle.loads(pickle.dumps(sample))
    assert [None if i is None else i.shape for i in again["images"]] == [(2, 3, 3), None, (2, 3, 3)]
    assert dataset[1]["images"] == [] and dataset[1]["page"] is None and dataset[1]["image"] is None
    assert isinstance(fm.open(dataset.url, decode=None)[0]["images"], bytes)
    batch = next(iter(fm.Loader(fm.open(dataset.url), batch_size=2, output="samples")))
    assert batch[0]["images"][0].shape == (2, 3, 3)


def test_lists_of_sounds_and_videos(tmp_path: Path) -> None:
    sound, paper = ({"bytes": data, "path": None} for data in (b"RIFF$\0\0\0WAVEfmt ", b"%PDF-1.4"))
    columns = {"sounds": pa.array([[sound]], pa.list_(FILE)), "video": pa.array([sound], FILE)}
    table = pa.table({**columns, "pdf": pa.array([[paper]], pa.list_(FILE))})
    features = {"sounds": {"_type": "List", "feature": {"_type": "Audio"}}, "video": {"_type": "Video"}}
    path = parquet(with_features(table, **features, pdf={"_type": "List", "feature": {"_type": "Pdf"}}), tmp_path)
    sample = fm.open(path)[0]
    assert [type(v).__name__ for v in (sample["sounds"][0], sample["video"])] == ["AVDecoder", "AVDecoder"]
    assert sample["pdf"] == [b"%PDF-1.4"]


def test_a_file_inside_that_is_only_named_is_not_read(tmp_path: Path) -> None:
    table = pa.table({"images": pa.array([[{"bytes": None, "path": "/etc/passwd"}]], pa.list_(FILE)), "n": [1]})
    sample = fm.open(parquet(table, tmp_path))[0]
    assert sample["n"] == 1
    for read in (lambda: sample["images"], lambda: sample.raw("images")):
        with pytest.raises(DataError, match=r"'0.images' .* only its path '/etc/passwd'"):
            read()


@pytest.mark.parametrize("as_extension", [True, False])
@pytest.mark.parametrize("first", [2, None])
def test_arrays_of_datasets(as_extension: bool, first: int | None, tmp_path: Path) -> None:
    rows = [[[1, 2, 3], [4, 5, 6]], None, [[7, 8, 9]] * (2 if first else 1), [[1, None, 3]] * 2]
    array = pa.array(rows, pa.list_(pa.list_(pa.int16())))
    feature = {"_type": "Array2D", "shape": [first, 3], "dtype": "int16"}
    if as_extension:
        name = "datasets.features.features.Array2DExtensionType"
        table = extension(name, array, json.dumps([[first, 3], "int16"]))
    else:
        table = with_features(pa.table({"c": array}), c=feature)
    dataset = fm.open(parquet(table, tmp_path))
    found = [dataset[row]["c"] for row in range(4)]
    assert found[0].dtype == np.int16 and found[0].tolist() == rows[0] and found[1] is None
    assert found[2].shape == (2 if first else 1, 3) and found[3] == rows[3]
    wrong = pa.array([[[1, 2]]], pa.list_(pa.list_(pa.int16())))
    path = parquet(with_features(pa.table({"c": wrong}), c=feature), tmp_path)
    with pytest.raises(DataError, match=r"'0.c' .*the column 'c' holds an array"):
        fm.open(path)[0]["c"]


def test_other_features() -> None:
    table = pa.table({
        "translation": pa.array([{"de": "a", "fr": "b"}]), "label": pa.array([1]),
        "old": pa.array([{"x": [{"bytes": b"1", "path": None}], "y": [1]}]), "listed": pa.array([["1"]]),
    })  # fmt: skip
    features = {
        "translation": {"_type": "Translation", "languages": ["de", "fr"]},
        "label": {"_type": "ClassLabel", "names": ["a", "b"]},
        "old": {"_type": "Sequence", "feature": {"x": {"_type": "Image"}, "y": {"_type": "Value", "dtype": "int64"}}},
        "listed": [{"_type": "Json"}],
    }
    table = with_features(table, **features)
    (row,) = Columns(table.schema).rows(table, np.arange(1))
    assert row == {
        "translation": {"de": "a", "fr": "b"}, "label": 1, "old": {"x": [b"1"], "y": [1]}, "listed": [1]
    }  # fmt: skip


def test_a_feature_that_does_not_fit_the_type_is_not_used(tmp_path: Path) -> None:
    """Metadata outlives changes of the columns, as after a cast with pyarrow."""
    table = with_features(pa.table({"a": [1], "b": [[1]]}), a={"_type": "Json"}, b={"_type": "Image"})
    sample = fm.open(parquet(table, tmp_path))[0]
    assert sample["a"] == 1 and sample["b"].tolist() == [1]


def test_features_of_files_that_differ_are_united(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    numbers = [pa.array([1], kind) for kind in (pa.int32(), pa.int64())]  # unlike, so that they are united
    json_text, plain_text = {"_type": "Json"}, {"_type": "Value", "dtype": "string"}
    one, other = (
        {"_type": "List", "feature": {"_type": "Value", "dtype": dtype}} for dtype in ("string", "large_string")
    )
    tables = [
        with_features(pa.table({"n": numbers[0], "a": ['"x"']}), a=json_text),
        with_features(pa.table({"n": numbers[1], "a": ['"y"'], "b": ["[1]"]}), a=json_text, b=json_text),
    ]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"in/{number}.parquet")
    assert [(s["a"], s["b"]) for s in fm.open(tmp_path / "in")] == [("x", None), ("y", [1])]
    lists = (tmp_path / "l0.parquet", one, pa.string()), (tmp_path / "l1.parquet", other, pa.large_string())
    for path, feature, kind in lists:  # what the type of the column says already may differ
        pq.write_table(with_features(pa.table({"l": pa.array([["x"]], pa.list_(kind))}), l=feature), path)
    assert [s["l"] for s in fm.open(tmp_path / "l*.parquet")] == [["x"], ["x"]]
    pq.write_table(with_features(tables[1], a=plain_text, b=json_text), tmp_path / "in/1.parquet")
    with pytest.raises(DataError, match=r"1.parquet: .*'a' is the feature .* here and .*'Json'.* in '0.parquet'"):
        fm.open(tmp_path / "in")


@pytest.mark.parametrize("write", [arrow, parquet])
def test_tables_without_rows(write: Write, tmp_path: Path) -> None:
    dataset = fm.open(write(pa.table({"a": pa.array([], pa.list_(pa.string_view()))}), tmp_path))
    assert len(dataset) == 0 and list(dataset) == []
    assert dataset.to_arrow().num_rows == 0 and dataset.to_arrow().column_names == ["a"]


# Arrow's extension types that pyarrow has no values for


def test_tensors_of_any_shape(tmp_path: Path) -> None:
    kind = pa.struct([("data", pa.list_(pa.float32())), ("shape", pa.list_(pa.int32(), 2))])
    stored_rows = [([1, 2, 3, 4, 5, 6], [2, 3]), None, ([], [0, 3]), ([1, None], [1, 2])]
    rows = [one and {"data": one[0], "shape": one[1]} for one in stored_rows]
    plain = extension("arrow.variable_shape_tensor", pa.array(rows, kind), "{}")
    turned = extension("arrow.variable_shape_tensor", pa.array(rows, kind), '{"permutation":[1,0]}')
    for table, expected in ((plain, [[1, 2, 3], [4, 5, 6]]), (turned, [[1, 4], [2, 5], [3, 6]])):
        found = [sample["c"] for sample in fm.open(arrow(table, tmp_path))]
        assert found[0].tolist() == expected and found[0].dtype == np.float32 and found[1] is None
        assert found[2].shape == ((0, 3) if table is plain else (3, 0))
        assert found[3] == ([[1.0, None]] if table is plain else [[1.0], [None]])
    wrong = extension("arrow.variable_shape_tensor", pa.array([{"data": [1.0], "shape": [2, 3]}], kind), "{}")
    with pytest.raises(DataError, match=r"'c' holds 1 values for an array of the shape \[2, 3\]"):
        fm.open(arrow(wrong, tmp_path))[0]["c"]


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_times_with_an_offset_of_their_own(unit: str, tmp_path: Path) -> None:
    kind = pa.struct([("timestamp", pa.timestamp(unit, "UTC")), ("offset_minutes", pa.int16())])
    second = {"s": 1, "us": 10**6, "ns": 10**9}[unit]
    fine = 1_700_000_000 * second + (7 if unit == "ns" else 0)
    times = stored([0, fine, None], pa.timestamp(unit, "UTC"))
    offsets = pa.array([90, -60, None], pa.int16())
    array = pa.StructArray.from_arrays([times, offsets], fields=list(kind), mask=pa.array([False, False, True]))
    dataset = fm.open(arrow(extension("arrow.timestamp_with_offset", array), tmp_path))
    first, later, none = (sample["c"] for sample in dataset)
    assert first == datetime(1970, 1, 1, 1, 30, tzinfo=timezone(timedelta(minutes=90))) and none is None
    assert first.utcoffset() == timedelta(minutes=90)
    expected = datetime(2023, 11, 14, 21, 13, 20, tzinfo=timezone(timedelta(hours=-1)))
    assert later == ("2023-11-14T21:13:20.000000007-0100" if unit == "ns" else expected)


# What is refused


def refused(table: pa.Table, folder: Path, match: str, kind: str) -> None:
    for write in (arrow, parquet):
        path = write(table, folder)
        with pytest.raises(DataError, match=match) as raised:
            fm.open(path)
        assert raised.value.kind == kind and raised.value.file and "Copy" not in str(raised.value)
        (found,) = fm.check(path, progress=False).findings
        assert str(found) == str(raised.value)


@pytest.mark.parametrize("name", ["my.type", "geoarrow.wkb", "ray.data.arrow_tensor", "arrow.parquet.variant"])
def test_unknown_extension_types_are_refused_where_they_stand(name: str, tmp_path: Path) -> None:
    inner = pa.field("item", pa.binary(), metadata={NAME: name, PARAMETERS: ""})
    kind = pa.struct([pa.field("deep", pa.list_(inner))])
    table = pa.table([[1], pa.array([{"deep": [b"x"]}], kind)], schema=pa.schema([("n", pa.int64()), ("a", kind)]))
    refused(table, tmp_path, rf"'a.deep\[\]' has the extension type '{name}', which is not", "unsupported")


def test_extension_types_of_this_process_are_refused_too() -> None:
    class Mine(pa.ExtensionType):
        def __init__(self) -> None:
            super().__init__(pa.int32(), "tests.mine")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: Any, data: bytes) -> Mine:
            return cls()

    with pytest.raises(DataError, match=r"'x' has the extension type 'tests.mine'"):
        Columns(pa.schema([pa.field("x", Mine())]))


def test_unknown_features_are_refused(tmp_path: Path) -> None:
    table = with_features(pa.table({"c": [["x"]]}), c={"_type": "List", "feature": {"_type": "Hologram"}})
    refused(
        table,
        tmp_path,
        r"'c\[\]' has the feature 'Hologram' of 'datasets', which is not",
        "unsupported",
    )


def test_metadata_that_is_none_of_datasets_is_refused(tmp_path: Path) -> None:
    for bad in ("{", "[]", '{"info": {"features": [1]}}'):
        table = pa.table({"c": [1]}).replace_schema_metadata({"huggingface": bad})
        refused(table, tmp_path, r"its metadata 'huggingface' is not what 'datasets' writes", "bad-index")


def test_names_that_occur_twice_are_refused(tmp_path: Path) -> None:
    refused(pa.table([[1], [2]], names=["a", "a"]), tmp_path, "two columns have the same name, 'a'", "duplicate-part")
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    table = pa.table({"c": pa.ListArray.from_arrays([0, 1], twice)})
    refused(table, tmp_path, r"the column 'c\[\]' has two fields named 'x'", "duplicate-part")


def test_files_without_columns_are_refused(tmp_path: Path) -> None:
    refused(pa.table({}), tmp_path, "it has no columns", "no-column")


# Values that Python does not have


DAY, TIME = date(1970, 1, 1), datetime(1970, 1, 1)
UNREADABLE = {
    "late": (stored([0, 2**62, None], pa.timestamp("us")), TIME, r"a time before .*\(\d+ us since 1970\)"),
    "early": (stored([0, -(10**14), None], pa.timestamp("ms")), TIME, r"a time before the year 1"),
    "beyond": (stored([0, 2**62, None], pa.timestamp("s", "UTC")), TIME.replace(tzinfo=UTC), "a time before"),
    "date32": (stored([0, 10**8, None], pa.date32(), pa.int32()), DAY, r"a date before .*\(100000000 d since"),
    "date64": (stored([0, 86_400_000 * 10**8, None], pa.date64()), DAY, "a date before"),
    "part": (stored([0, 5, None], pa.date64()), DAY, r"a date with a part of a day \(5 ms"),
    "time32": (stored([0, 90_000, None], pa.time32("s"), pa.int32()), None, r"not within 24 hours \(90000 s\)"),
    "time64": (stored([0, -1, None], pa.time64("ns")), None, r"not within 24 hours \(-1 ns\)"),
    "duration": (stored([0, 10**14, None], pa.duration("s")), timedelta(0), r"beyond 999999999 days \(1\d+ s\)"),
}


def in_column(array: Any) -> tuple[Any, Callable[[Any], Any]]:
    return array, lambda value: value


def in_list(array: Any) -> tuple[Any, Callable[[Any], Any]]:
    return pa.ListArray.from_arrays([0, 1, 2, 3], array), lambda value: value[0]


def in_struct(array: Any) -> tuple[Any, Callable[[Any], Any]]:
    return pa.StructArray.from_arrays([array], ["f"]), lambda value: value["f"]


def in_dictionary(array: Any) -> tuple[Any, Callable[[Any], Any]]:
    return pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), array), lambda value: value


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("nest", [in_column, in_list, in_struct, in_dictionary])
def test_a_value_that_python_does_not_have_is_named(name: str, nest: Callable[[Any], Any], tmp_path: Path) -> None:
    array, first, cause = UNREADABLE[name]
    column, inner = nest(array)
    path = arrow(pa.table({"c": column, "n": [1, 2, 3]}), tmp_path)
    dataset = fm.open(path)
    assert fm.check(path, progress=False).findings == []
    for samples in (list(dataset), [dataset[n] for n in range(3)], dataset.read([2, 1, 0])[::-1]):
        assert [sample["n"] for sample in samples] == [1, 2, 3]
        assert inner(samples[2]["c"]) is None
        assert first is None or inner(samples[0]["c"]) == first
        with pytest.raises(DataError, match=rf"x.arrow '1.c' at byte \d+: the column 'c.*' holds .*{cause}") as raised:
            samples[1]["c"]
        assert raised.value.kind == "unreadable-value" and "Copy it" not in str(raised.value)
        with pytest.raises(DataError, match=cause):
            samples[1].raw("c")
    (found,) = fm.check(path, read_samples=True, progress=False).findings
    assert "1.c" in str(found)


def test_info_shows_what_can_be_read(tmp_path: Path) -> None:
    path = arrow(pa.table({"c": stored([2**62], pa.timestamp("us")), "n": [1]}), tmp_path)
    assert fm.info(path).facts["first_sample"] == {"key": "0", "parts": {"c": None, "n": 1}}
    assert "0 (c not readable, n 1 B)" in CliRunner().invoke(app, ["show", str(path)]).output


def test_an_unknown_time_zone_is_named(tmp_path: Path) -> None:
    for unit in ("us", "ns"):
        table = pa.table({"c": stored([0, None, 5], pa.timestamp(unit, "Mars/Phobos")), "n": [1, 2, 3]})
        dataset = fm.open(arrow(table, tmp_path))
        assert dataset[0]["n"] == 1 and dataset[1]["c"] is None
        with pytest.raises(DataError, match=r"'2.c' .* times of the time zone 'Mars/Phobos', which is not known"):
            dataset[2]["c"]


def test_unreadable_values_of_documents_are_bad_documents(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b", "c"], "at": stored([0, 2**62, None], pa.timestamp("us"))})
    for write in (arrow, parquet):
        raw = tmp_path / write.__name__
        raw.mkdir()
        write(table, raw)
        with pytest.raises(FeedmillError, match=r"the column 'at' holds a time before the year 1 .*, in row 1"):
            fm.import_data(raw, tmp_path / f"out-{write.__name__}", workers=1, progress=False)


def test_what_lies_under_nulls_and_in_no_row_is_not_read() -> None:
    bad = stored([2**62, 0, 2**62, 0], pa.timestamp("us"))
    rows = pa.ListArray.from_arrays(pa.array([1, 2, 3, 4], pa.int32()), bad, mask=pa.array([False, True, False]))
    assert values(rows) == [[datetime(1970, 1, 1)], None, [datetime(1970, 1, 1)]]
    struct = pa.StructArray.from_arrays([bad], ["f"], mask=pa.array([True, False, True, False]))
    assert values(struct) == [None, {"f": datetime(1970, 1, 1)}] * 2
    assert values(pa.DictionaryArray.from_arrays(pa.array([1, 3]), bad)) == [datetime(1970, 1, 1)] * 2
    views = pa.ListViewArray.from_arrays(pa.array([3, 1], pa.int32()), pa.array([1, 1], pa.int32()), bad)
    assert values(views) == [[datetime(1970, 1, 1)]] * 2


def test_rows_do_not_share_what_can_change() -> None:
    shared = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array([{"a": [1]}]))
    first, second = values(shared)
    first["a"].append(2)
    assert second == {"a": [1]}
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([[1, 2]]))
    first, second = values(runs)
    first[0] = 9
    assert second.tolist() == [1, 2]
