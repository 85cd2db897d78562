"""Every kind of value in every format: read back as it was, or changed as the plan says, or refused by the plan."""

from __future__ import annotations

import datetime
import io
import json
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import feedmill as fm
from feedmill.converting.fates import KINDS, changes, family, kind_of
from feedmill.converting.values import Coded
from feedmill.errors import ConfigError, DataError
from feedmill.formats.mds.write import ENCODERS, encode_list, write_index, write_shard
from feedmill.storage import open_store
from feedmill.writing.write import write
from helpers.arrow_matrix import columns

TARGETS = ("jsonl", "mds", "npz", "parquet", "webdataset")


def picture(form: str, color: int = 200) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 3), (color, 20, 90)).save(out, form)
    return out.getvalue()


JPEG, PNG, WEBP = picture("JPEG"), picture("PNG"), picture("WEBP")
MOMENT = datetime.datetime(2021, 3, 4, 5, 6, 7, 8, tzinfo=datetime.timezone(datetime.timedelta(0)))
FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def file_of(data: bytes) -> dict[str, Any]:
    return {"bytes": data, "path": None}


ARROW: dict[str, tuple[list[Any], pa.DataType]] = {
    "text": (["a", "é\n"], pa.string()),
    "view": (["a", "a view of a longer text"], pa.string_view()),
    "numbers": ([1, 2**63 - 1], pa.int64()),
    "large": ([2**64 - 1, 0], pa.uint64()),
    "small": ([-1, 1], pa.int8()),
    "floats": ([1.5, math.inf], pa.float64()),
    "nan": ([math.nan, -0.0], pa.float32()),
    "half": ([0.5, 1.0], pa.float16()),
    "bools": ([True, False], pa.bool_()),
    "bytes": ([b"\xff\0", b""], pa.binary()),
    "jpegs in bytes": ([JPEG, JPEG], pa.binary()),
    "c.jpg": ([JPEG, JPEG], pa.binary()),
    "c.json": ([b'{"a": 1}', b"[]"], pa.binary()),
    "txt": ([b"a", b"b"], pa.binary()),
    "dates": ([datetime.date(2020, 1, 2)] * 2, pa.date32()),
    "times": ([datetime.time(1, 2, 3, 4)] * 2, pa.time64("us")),
    "moments": ([MOMENT.replace(tzinfo=None)] * 2, pa.timestamp("us")),
    "moments in a zone": ([MOMENT] * 2, pa.timestamp("us", "UTC")),
    "durations": ([datetime.timedelta(1, 2, 3)] * 2, pa.duration("us")),
    "decimals": ([Decimal("1.50"), Decimal("-0.25")], pa.decimal128(5, 2)),
    "hundreds": ([Decimal("100"), Decimal("1200")], pa.decimal128(5, -2)),
    "vectors": ([[1.5, 2.0], []], pa.list_(pa.float32())),
    "halves": ([[1.5, 2.0], [0.5]], pa.list_(pa.float16())),
    "holes": ([[1, None], [2]], pa.list_(pa.int16())),
    "nothing": ([[], []], pa.list_(pa.float32(), 0)),
    "texts": ([["a"], []], pa.list_(pa.string())),
    "objects": ([{"a": 1, "b": None}, {"a": 2, "b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
    "odd objects": (
        [{"a": math.inf, "d": datetime.date(2020, 1, 2)}] * 2,
        pa.struct([("a", pa.float64()), ("d", pa.date32())]),
    ),
    "lists of floats": ([[{"x": [math.nan]}], []], pa.list_(pa.struct([("x", pa.list_(pa.float64()))]))),
    "maps": ([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "lists of bytes": ([[b"\xff", b"x"], []], pa.list_(pa.binary())),
    "lists of jpegs": ([[JPEG], [JPEG, JPEG]], pa.list_(pa.binary())),
    "lists of files": ([[file_of(JPEG)], []], pa.list_(FILE)),
    "bytes in objects": ([{"b": b"\xff"}] * 2, pa.struct([("b", pa.binary())])),
    "images": ([file_of(JPEG), file_of(JPEG)], FILE),
    "images of two kinds": ([file_of(JPEG), file_of(PNG)], FILE),
    "webp": ([file_of(WEBP), file_of(WEBP)], FILE),
    "intervals": ([pa.MonthDayNano([1, 2, 3])] * 2, pa.month_day_nano_interval()),
    "empty objects": ([{}, {}], pa.struct([])),
    "nulls": ([None, None], pa.null()),
}
"""Columns of tables, by the names that tests know them by."""


def arrow_table(folder: Path, name: str, nulls: bool) -> Path:
    values, kind = ARROW[name]
    column = pa.array([*values, *([None] if nulls else [])], kind)
    table = pa.table({name: column, "n": list(range(len(column)))})
    path = folder / "source.arrow"
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    return path


MDS: dict[str, tuple[str, list[bytes]]] = {
    "list[jpeg]": ("list[jpeg]", [encode_list([JPEG]), encode_list([JPEG, JPEG]), encode_list([])]),
    "list[png]": ("list[png]", [encode_list([PNG]), encode_list([PNG, PNG])]),
    "jpegarray": ("jpegarray", [encode_list([JPEG])[4:], encode_list([JPEG, JPEG])[4:]]),
    "jpeg": ("jpeg", [JPEG, JPEG]),
    "png": ("png", [PNG, PNG]),
    "list[pil]": (
        "list[pil]",
        [encode_list([np.asarray([2, 1, 1], "<u4").tobytes() + b"L" + b"\1\2"]), encode_list([])],
    ),
    "str_decimal": ("str_decimal", [b"1.50", b"-3"]),
    "str_int": ("str_int", [b"1" + b"0" * 40, b"7"]),
    "float16": ("float16", [np.float16(0.5).tobytes(), np.float16(2).tobytes()]),
    "ndarray": ("ndarray", [ENCODERS["ndarray"](np.arange(6, dtype=np.uint16).reshape(2, 3))] * 2),
    "json": ("json", [b'{"a": [1, NaN]}', b"null"]),
}


def mds(folder: Path, name: str, _: bool) -> Path:
    encoding, blocks = MDS[name]
    store = open_store(str(folder / "mds"))
    rows = [[block, ENCODERS["int"](n)] for n, block in enumerate(blocks)]
    write_index(store, [write_shard(store, "shard.00000.mds", {name: encoding, "n": "int"}, rows)])
    return folder / "mds"


NPZ: dict[str, Any] = {
    "big-endian": np.arange(6, dtype=">i4").reshape(2, 3),
    "big-endian floats": np.asarray([1.5, 2.5], ">f8"),
    "cubes": np.zeros((2, 2, 2), np.float16),
    "text of numpy": np.asarray(["a", "bé"]),
    "bytes of numpy": np.asarray([b"a", b"b\xff"]),
    "long doubles": np.arange(2, dtype=np.longdouble),
    "rows of long doubles": np.zeros((2, 3), np.longdouble),
    "flags": np.asarray([[True, False], [False, True]]),
}


def npz(folder: Path, name: str, _: bool) -> Path:
    (folder / "npz").mkdir()
    np.savez(folder / "npz/0.npz", **{name: NPZ[name], "n": np.arange(len(NPZ[name]))})
    return folder / "npz"


Case = tuple[str, str, bool, Callable[[Path, str, bool], Path]]
CASES: list[Case] = [
    *(("arrow", name, nulls, arrow_table) for name in ARROW for nulls in (False, True)),
    *(("mds", name, False, mds) for name in MDS),
    *(("npz", name, False, npz) for name in NPZ),
]


def same(a: Any, b: Any) -> bool:
    """Whether a reader cannot tell two values apart; the order of bytes in arrays does not count."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
            return False
        kinds = [each.dtype.newbyteorder("=") for each in (a, b)]
        nan = a.dtype.kind == "f"
        return kinds[0] == kinds[1] and a.shape == b.shape and np.array_equal(a, b, equal_nan=nan)
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[name]) for name, value in a.items())
    return bool(a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


def column(dataset: Any, name: str) -> list[Any]:
    """The values of a column, under the name that the format gave it; None where a sample has none."""
    out = []
    for sample in dataset:
        row = sample["json"] if dataset.format == "jsonl" else sample
        there = [row[part] for part in row if part == name or part.rpartition(".")[0] == name]
        there = [value for value in there if value is not None]
        assert len(there) <= 1
        out.append(there[0] if there else None)
    return out


def check(source: Path, out: Path, to: str, name: str) -> bool:
    """Convert and compare one column as a reader gets it; return whether it was converted."""
    options: dict[str, Any] = {"workers": 1, "progress": False}
    try:
        plan = fm.convert(source, out, to, dry_run=True, **options).plan
    except ConfigError as error:
        assert repr(name) in str(error) and error.kind in ("loses-content", "unsupported", "no-parts"), error
        assert not out.exists()
        return False
    assert not any(loss.content for loss in plan.losses)
    fm.convert(source, out, to, **options)
    declared = any(loss.what.startswith("types of") and repr(name)[:-1] in loss.what for loss in plan.losses)
    before, after = column(fm.open(source), name), column(fm.open(out), name)
    if not declared:
        assert len(before) == len(after)
        for a, b in zip(before, after, strict=True):
            assert same(a, b), (a, b, [loss.what for loss in plan.losses])
    else:
        assert not all(map(same, before, after)), "what was declared to change did not"
    return True


def trip(case: Case, to: str, folder: Path) -> None:
    _, name, nulls, make = case
    source = make(folder, name, nulls)
    name = "c" if make is of_matrix else name
    out = folder / (f"out.{to}" if to == "jsonl" else "out")
    if check(source, out, to, name):
        kept = next((n for n in fm.open(out)[0] if n == name or n.rpartition(".")[0] == name), name)
        check(out, folder / "back", "parquet", name if to == "jsonl" else kept)


ALL = [(case, to) for case in CASES for to in TARGETS]


def named(item: tuple[Case, str]) -> str:
    (container, name, nulls, _), to = item
    return f"{container}-{name}{'-nulls' * nulls}-{to}"


@pytest.mark.parametrize("item", ALL[::7], ids=named)
def test_a_value_is_kept_or_declared_or_refused(item: tuple[Case, str], tmp_path: Path) -> None:
    trip(*item, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("item", ALL, ids=named)
def test_every_value_is_kept_or_declared_or_refused(item: tuple[Case, str], tmp_path: Path) -> None:
    trip(*item, tmp_path)


def of_matrix(folder: Path, name: str, _: bool) -> Path:
    """A column of the matrix of all types of Arrow, with nulls."""
    array = next(each.array for each in TYPES if each.name == name)
    table = pa.table({"c": array, "n": list(range(len(array)))})
    with pa.ipc.new_file(folder / "s.arrow", table.schema) as writer:
        writer.write_table(table)
    try:
        pa.ipc.open_file(folder / "s.arrow").read_all()
    except pa.ArrowException as error:
        pytest.skip(f"pyarrow does not read what it wrote: {error}")
    return folder / "s.arrow"


TYPES = [*columns(0), *columns(1)]
TYPED: list[tuple[Case, str]] = [(("types", each.name, False, of_matrix), to) for each in TYPES for to in TARGETS]


@pytest.mark.parametrize("item", TYPED[::191], ids=named)
def test_a_type_of_arrow_is_kept_or_declared_or_refused(item: tuple[Case, str], tmp_path: Path) -> None:
    trip(*item, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("item", TYPED, ids=named)
def test_every_type_of_arrow_is_kept_or_declared_or_refused(item: tuple[Case, str], tmp_path: Path) -> None:
    trip(*item, tmp_path)


def test_the_table_has_every_kind_that_values_have() -> None:
    every = [value for values, _ in ARROW.values() for value in values]
    every += [uuid.UUID(int=1), 10**40, np.zeros(2), [np.zeros(2)], Coded(JPEG, "jpg"), {"a": [Coded(JPEG, "jpg")]}]
    kinds = {kind_of(value) for value in every}
    assert {family(kind) for kind in kinds} <= set(KINDS) and "json:jpeg" in kinds and "uuid" in kinds
    with pytest.raises(ConfigError, match=r"values are of the type 'complex', which no format can store"):
        changes("json", [kind_of({"a": [1j]})])
    for name, kind in (("long doubles", "longdouble"), ("rows of long doubles", "array of float128")):
        with pytest.raises(ConfigError, match=f"values are of the type '{kind}', which no format can store"):
            changes("json", [kind_of(NPZ[name][0])])


def test_what_parts_become_in_columns_is_said(tmp_path: Path) -> None:
    parts = {"txt": "a", "json": {"a": 1}, "cls": 3, "html": b"<p>", "bin": b"\xff", "jpg": JPEG, "npy": np.arange(3)}
    write(str(tmp_path / "s"), [{"__key__": f"k{n}", **parts} for n in range(3)], progress=False)
    before = fm.open(tmp_path / "s")[1]
    for to in ("mds", "npz", "parquet"):
        report = fm.convert(tmp_path / "s", tmp_path / to, to, workers=1, progress=False)
        said = {loss.what for loss in report.plan.losses}
        assert said >= {
            "types of 'json': JSON values become text",
            "types of 'cls': numbers become text",
            "types of 'html': bytes become text",
        }
        after = fm.open(tmp_path / to)[1]
        assert all(same(before[name], after[name]) for name in ("txt", "bin", "jpg", "npy"))
        assert (after["json"], after["cls"], after["html"]) == ('{"a":1}', "3", "<p>")
        back = fm.convert(tmp_path / to, tmp_path / f"{to}-back", "webdataset", workers=1, progress=False)
        assert any("text become values" in loss.what for loss in back.plan.losses)
        again = fm.open(tmp_path / f"{to}-back")[1]
        assert all(same(before[name], again[name]) for name in before)


def lacking(folder: Path, name: str, value: Any, kind: Any) -> Path:
    pq.write_table(pa.table({name: pa.array([value, None], kind), "n": [0, 1]}), folder / "s.parquet")
    return folder / "s.parquet"


@pytest.mark.parametrize(("value", "kind"), [([1.5, 2.0], pa.list_(pa.float32())), (file_of(JPEG), FILE), (b"", None)])
def test_a_missing_value_is_never_written_as_what_nothing_can_read(tmp_path: Path, value: Any, kind: Any) -> None:
    source = lacking(tmp_path, "c", value, kind)
    options: dict[str, Any] = {"workers": 1, "progress": False, "allow_loss": True}
    fm.convert(source, tmp_path / "npz", "npz", **options)
    assert fm.open(tmp_path / "npz")[1]["c"] is None and fm.open(tmp_path / "npz")[0]["c"] is not None
    if isinstance(value, dict):
        with pytest.raises(ConfigError, match="mds cannot store samples without 'c': empty bytes cannot be decoded"):
            fm.convert(source, tmp_path / "mds", "mds", **options)
        report = fm.convert(source, tmp_path / "mds", "mds", on_error="skip", **options)
        assert (report.samples, report.skipped) == (1, 1)
    else:
        fm.convert(source, tmp_path / "mds", "mds", **options)
        assert fm.open(tmp_path / "mds")[1]["c"] == (None if isinstance(value, list) else b"")
    assert next(sample["n"] for sample in fm.open(tmp_path / "mds")) == 0


def test_npz_keeps_nulls_of_every_form(tmp_path: Path) -> None:
    table = pa.table(
        {
            "i": [None, 5],
            "f": [None, -0.0],
            "b": [None, True],
            "t": [None, "é"],
            "v": pa.array([None, [1, 2]], pa.list_(pa.int8())),
            "w": pa.array([None, file_of(WEBP)], FILE),
        }
    )
    pq.write_table(table, tmp_path / "s.parquet")
    report = fm.convert(tmp_path / "s.parquet", tmp_path / "o", "npz", workers=1, progress=False)
    assert [loss.what for loss in report.plan.losses] == ["the difference between missing fields and null"]
    first, second = fm.open(tmp_path / "o")
    assert set(first.values()) == {None} and second["v"].dtype == np.int8 and second["w"].shape == (3, 4, 3)
    assert (second["i"], second["b"], second["t"]) == (5, True, "é") and math.copysign(1, second["f"]) == -1
    with np.load(tmp_path / "o/shard-000000.npz") as arrays:
        assert arrays["i.present"].tolist() == [False, True]


def test_a_value_that_does_not_come_back_is_not_blamed_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"f": [1.25, 2.5]}), tmp_path / "s.parquet")
    monkeypatch.setitem(ENCODERS, "float64", lambda value: np.float64(np.float16(value) + 1).tobytes())  # type: ignore[arg-type]
    with pytest.raises(DataError, match="so it does when it is converted again") as error:
        fm.convert(tmp_path / "s.parquet", tmp_path / "o", "mds", workers=1, progress=False)
    assert error.value.kind == "verification-failed" and "disk" not in str(error.value)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (pa.array([pa.MonthDayNano([1, 2, 3])]), r"the type month_day_nano_interval"),
        (pa.array([{}], pa.struct([])), "structs without fields"),
        (pa.array([[{}]], pa.list_(pa.struct([]))), "structs without fields"),
        (pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]), "the type sparse_union"),
        (
            pa.array([Decimal(100)], pa.decimal256(76, -2)),
            r"the type .*, which has more than 76 digits",
        ),
    ],
)
def test_what_parquet_lacks_is_refused_before_anything_is_written(tmp_path: Path, array: Any, words: str) -> None:
    table = pa.table({"c": array, "n": [1]})
    with pa.ipc.new_file(tmp_path / "s.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ConfigError, match=rf"s.arrow 'c': Parquet cannot store {words}"):
        fm.convert(tmp_path / "s.arrow", tmp_path / "o", "parquet", workers=1, progress=False)
    assert not (tmp_path / "o").exists()
    assert fm.convert(tmp_path / "s.arrow", tmp_path / "o", "parquet", fields=["n"], workers=1, progress=False).samples


def test_depth_maps_become_images_only_with_a_word(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "golden/sources/lerobot/depth"
    plan = fm.convert(source, tmp_path / "o", "webdataset", dry_run=True, workers=1, progress=False).plan
    what = "types of 'observation.images.depth': depth in floats becomes images of whole millimeters"
    assert what in [loss.what for loss in plan.losses]


def test_lists_of_images_keep_the_encoding_of_mds(tmp_path: Path) -> None:
    for name, (encoding, _) in MDS.items():
        if not encoding.startswith(("list[j", "list[png", "str_decimal")):
            continue
        (tmp_path / name).mkdir()
        report = fm.convert(mds(tmp_path / name, name, False), tmp_path / name / "o", "mds", workers=1, progress=False)
        assert report.plan.names[name] == encoding and not report.plan.losses
        shards = [shard.read_bytes() for shard in sorted((tmp_path / name).glob("*/*.mds"))]
        assert len(shards) == 2 and all(block in shard for block in MDS[name][1] for shard in shards)


@pytest.mark.parametrize("to", TARGETS)
def test_a_source_without_samples_is_named(to: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    (tmp_path / "npz").mkdir()
    np.savez(tmp_path / "npz/0.npz", a=np.zeros((0, 3)))
    for name in ("a.parquet", "npz"):
        out = tmp_path / f"{name}.{to}"
        with pytest.raises(DataError) as caught:
            fm.convert(tmp_path / name, out, to, workers=1, progress=False)
        assert caught.value.kind == "no-samples" and name in str(caught.value)


FEATURES = {
    "j": {"_type": "Json"},
    "m": {"_type": "Array2D", "shape": [None, 2], "dtype": "int32"},
    "class": {"_type": "ClassLabel", "names": ["a", "b"]},
    "some": {"_type": "List", "feature": {"_type": "ClassLabel", "names": ["a", "b"]}},
}


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("beside", [False, True])
def test_features_of_datasets_are_kept_or_declared(to: str, beside: bool, tmp_path: Path) -> None:
    """Also if they are only in the file beside the tables, as in folders of older releases."""
    matrices = pa.array([[[1, 2]], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int32())))
    table = pa.table({"j": ['{"a": 1}', '"x"'], "m": matrices, "class": [0, 1], "some": [[0, 1], []]})
    if not beside:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})
    source = tmp_path / "saved"
    source.mkdir()
    with pa.ipc.new_stream(source / "data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table)
    (source / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    (source / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    for name in FEATURES:
        out = tmp_path / f"{name}.{to}"
        assert check(source, out, to, name)
    dry = {"dry_run": True, "progress": False, "fields": ["m", "class", "some"]}
    plan = fm.convert(source, tmp_path / f"all.{to}", to, **dry).plan
    lost = "names of classes and shapes of arrays of 'm', 'class', 'some'"
    assert (lost in [loss.what for loss in plan.losses]) == (to != "parquet")
