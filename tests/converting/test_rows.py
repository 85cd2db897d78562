"""Rows to lines and to Parquet and back: every value comes back, and trees keep their shape."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.converting.jsontypes import columns_of, fit, schema_of, types_in, unfit
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.formats.documents import read_rows
from feedmill.formats.jsonl import index as jsonl
from feedmill.storage import open_store
from helpers.conversion_sources import files, lines, rows, tree
from helpers.durations import examples, slow_but

PLAIN = {"use_dictionary": False, "write_page_checksum": True}
LINES = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")


def convert(source: Path, destination: Path, to: str, **options: Any) -> Any:
    return fm.convert(source, destination, to, **{"workers": 1, "progress": False, **options})


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of lines, or of all files of lines in a folder."""
    folder, names = (path.parent, [path.name]) if path.is_file() else (path, None)
    store = open_store(str(folder))
    found = names or [entry.path for entry in store.files()]
    return [json.loads(row) for name in found for some in read_rows(store, name) for row in some]


def same(found: list[Any], wanted: list[Any]) -> bool:
    return [plain(row) for row in found] == [plain(row) for row in wanted]


def plain(value: Any) -> Any:
    """Columns do not tell null from a missing name, nor whole numbers from floats."""
    if type(value) is dict:
        return {name: plain(value[name]) for name in sorted(value) if value[name] is not None}
    if type(value) is list:
        return [plain(item) for item in value]
    return int(value) if type(value) is float and value.is_integer() else value


PAIRS = list(product(LINES, LINES))
ALTERNATELY = [(*pair, number % 5 in (1, 2)) for number, pair in enumerate(PAIRS)]
"""Each pair as folders or as single files: each format as both, before and after others."""


@pytest.mark.parametrize(
    ("first", "second", "single"), slow_but([(*p, s) for p in PAIRS for s in (False, True)], *ALTERNATELY)
)
def test_a_round_trip_through_every_pair_gives_the_same_rows(
    tmp_path: Path, first: str, second: str, single: bool
) -> None:
    source = tree(tmp_path / "source")
    a, b = (tmp_path / (f"{name}.{to}" if single else name) for name, to in (("a", first), ("b", second)))
    convert(source, a, first)
    convert(a, b, second)
    convert(b, tmp_path / "back.jsonl", "jsonl")
    assert same(read(tmp_path / "back.jsonl"), list(rows(120)))


@pytest.mark.parametrize("to", slow_but(LINES, "jsonl.gz", "parquet"))
def test_more_rows_than_are_read_back_at_once_are_compared_too(tmp_path: Path, to: str) -> None:
    source = lines(tmp_path / "x.jsonl", 3000)
    convert(source, tmp_path / f"a.{to}", to)
    assert convert(tmp_path / f"a.{to}", tmp_path / "back.jsonl", "jsonl").samples == 3000
    assert same(read(tmp_path / "back.jsonl"), list(rows(3000)))


def test_a_tree_keeps_its_shape(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    convert(source, tmp_path / "p", "parquet")
    convert(source, tmp_path / "z", "jsonl.zst")
    assert sorted(files(tmp_path / "p")) == [
        ".feedmill/convert.json",
        *(f"documents/web/.feedmill/{n}.parquet.lineage" for n in range(3)),
        *(f"documents/web/{n}.parquet" for n in range(3)),
    ]
    assert (tmp_path / "z/documents/web/2.jsonl.zst").exists()
    assert read(tmp_path / "z") == list(rows(120))


def test_lines_stay_as_they_are_written(tmp_path: Path) -> None:
    text = b'{"b" :1.50,"a":  "\\u00e9", "n": 123456789012345678901234567890, "x": NaN}\n{"a": 1e5}'
    (tmp_path / "s.jsonl").write_bytes(text)
    convert(tmp_path / "s.jsonl", tmp_path / "d.jsonl.gz", "jsonl.gz")
    convert(tmp_path / "d.jsonl.gz", tmp_path / "e.jsonl", "jsonl")
    assert (tmp_path / "e.jsonl").read_bytes() == text + b"\n"


@pytest.mark.parametrize("to", slow_but(LINES, "parquet", "jsonl.gz"))
def test_the_bytes_do_not_depend_on_the_processes(tmp_path: Path, to: str) -> None:
    source = tree(tmp_path / "source")
    convert(source, tmp_path / "one", to)
    convert(source, tmp_path / "two", to, workers=3)
    convert(source, tmp_path / f"1/x.{to}", to)
    convert(source, tmp_path / f"2/x.{to}", to, workers=3)
    assert files(tmp_path / "one") == files(tmp_path / "two") and files(tmp_path / "1") == files(tmp_path / "2")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["x", "y", "z"]), VALUES, min_size=1), min_size=1, max_size=6))
def test_any_rows_fit_into_columns_and_come_back(made: list[dict[str, Any]]) -> None:
    columns = columns_of(made)
    schema = schema_of(columns)
    table = pa.Table.from_pylist([{n: fit(v, columns[n]) for n, v in row.items()} for row in made], schema=schema)
    types = types_in(table.schema)
    back = [{n: unfit(v, types.get(n, "null")) for n, v in row.items()} for row in table.to_pylist()]
    assert same(back, made)


def test_columns_have_the_types_that_fit(tmp_path: Path) -> None:
    source = lines(tmp_path / "s.jsonl", 20)
    report = convert(source, tmp_path / "d.parquet", "parquet")
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "d.parquet")}
    assert types["score"] == "double" and types["id"] == types["mixed"] == "string"
    assert "list<element: string>" in types["metadata"]
    assert any("'metadata', 'mixed'" in loss.what for loss in report.plan.losses)


def test_tables_lose_bytes_and_moments_only_where_it_is_said(tmp_path: Path) -> None:
    moments = pa.array([0, 86_400_000], pa.timestamp("ms"))
    table = pa.table({"t": ["a", "b"], "raw": [b"\xff", b"x"], "at": moments, "v": [[1.0], [2.0, float("nan")]]})
    pq.write_table(table, tmp_path / "s.parquet")
    with pytest.raises(ConfigError, match="bytes of 'raw'"):
        convert(tmp_path / "s.parquet", tmp_path / "d.jsonl", "jsonl")
    report = convert(tmp_path / "s.parquet", tmp_path / "d.jsonl", "jsonl", fields=["t", "at", "v"])
    assert [loss.what for loss in report.plan.losses] == [
        "types of 'at': timestamps become text",
        "types of 'v': arrays become lists",
    ]
    found = read(tmp_path / "d.jsonl")
    assert found[1]["at"] == "1970-01-02T00:00:00" and np.isnan(found[1]["v"][1])
    convert(tmp_path / "s.parquet", tmp_path / "again", "parquet", max_shard_samples=1)
    assert pq.read_table(tmp_path / "again/part-000001.parquet").to_pylist()[0]["raw"] == b"x"
    assert len(list((tmp_path / "again").glob("*.parquet"))) == 2


def test_bad_lines_stop_it_or_are_listed(tmp_path: Path) -> None:
    source = lines(tmp_path / "s.jsonl.gz", 10)
    import gzip

    text = gzip.decompress(source.read_bytes()).split(b"\n")
    text[3], text[7] = b'{"cut": ', b"[1, 2]"
    for name, pack in (("a.jsonl.gz", gzip.compress), ("b.jsonl", bytes)):
        (tmp_path / name).write_bytes(pack(b"\n".join(text)))
        with pytest.raises(FeedmillError):
            convert(tmp_path / name, tmp_path / "d", "parquet")
        report = convert(tmp_path / name, tmp_path / f"{name}-out", "parquet", on_error="skip")
        assert (report.samples, report.skipped) == (8, 2)
        assert [bad.key for bad in report.examples] == [f"{name}, line 4", f"{name}, line 8"]
        with pytest.raises(DataError, match=r"budget of 1 is exceeded .2 so far"):
            convert(tmp_path / name, tmp_path / f"{name}-none", "jsonl.zst", on_error="skip", error_budget=1)


def test_a_cut_file_is_an_error(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    path = source / "documents/web/1.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError):
        convert(source, tmp_path / "d", "jsonl.zst", on_error="skip")


def divided(path: Path, parts: str) -> Path:
    """A file of 10 lines with these splits."""
    lines(path, 10)
    starts = jsonl.index_file(open_store(str(path.parent)), path.name)
    path.with_name(f"{path.name}.split.yaml").write_text(
        f"samples: 10\nlast_at: {starts[-2]}\nsplit_parts: {parts}\n", encoding="utf-8"
    )
    return path


def test_lines_keep_their_splits_in_other_lines(tmp_path: Path) -> None:
    source = divided(tmp_path / "a.jsonl", "{train: [[0, 3], [5, 9]], val: [[2, 4]], test: []}")
    assert convert(source, tmp_path / "b.jsonl", "jsonl", fields=["n"]).plan.losses == []
    assert fm.open(tmp_path / "b.jsonl").splits == {"train": 7, "val": 2, "test": 0}
    assert [sample.key for sample in fm.open(tmp_path / "b.jsonl", split="val").read([0, 1])] == ["2", "3"]
    assert convert(source, tmp_path / "b.jsonl", "jsonl", fields=["n"]).resumed  # nothing is done again
    divided(source, "{train: [[0, 4], [5, 8]], val: [[2, 4]], test: []}")
    with pytest.raises(ConfigError):
        convert(source, tmp_path / "b.jsonl", "jsonl", fields=["n"])
    convert(source, tmp_path / "b.jsonl", "jsonl", split="val", overwrite=True)  # the old splits go with the old file
    assert fm.open(tmp_path / "b.jsonl").splits == {} and len(fm.open(tmp_path / "b.jsonl")) == 2


@pytest.mark.parametrize("parts", ["{train: [[0, 3]], val: [[3, 4]]}", "{train: [[0, 3]]}"])
def test_splits_of_lines_are_lost_only_with_a_word(tmp_path: Path, parts: str) -> None:
    source = divided(tmp_path / "s/a.jsonl", parts)
    for number, to in enumerate(("jsonl", "jsonl.gz", "parquet")):
        assert "splits" in convert(source, tmp_path / f"d{number}", to).plan.losses[0].what
    skipped = convert(source, tmp_path / "e.jsonl", "jsonl", on_error="skip")
    tree = convert(source.parent, tmp_path / "f", "jsonl")
    assert all("splits of 'a.jsonl'" in report.plan.losses[0].what for report in (skipped, tree))
    with pytest.raises(ConfigError, match=r"if invalid lines are skipped.* 'feedmill edit repair' first"):
        convert(source, tmp_path / "g.jsonl", "jsonl", on_error="skip", split="train")


def test_a_folder_that_is_named_like_a_file_is_a_tree(tmp_path: Path) -> None:
    for number, name in enumerate(("a.jsonl", "a.jsonl.gz")):
        lines(tmp_path / name / "x.jsonl", 3)
        assert convert(tmp_path / name, tmp_path / str(number), "parquet").samples == 3


def test_hugging_face(tmp_path: Path) -> None:
    from helpers.foreign_datasets import huggingface

    (tmp_path / "hf").mkdir()
    huggingface(tmp_path / "hf", [5, 4])
    convert(tmp_path / "hf", tmp_path / "d.jsonl", "jsonl")
    assert [row["n"] for row in read(tmp_path / "d.jsonl")] == list(range(9))
    convert(tmp_path / "hf", tmp_path / "p", "parquet")
    assert pq.read_table(tmp_path / "p").column("n").to_pylist() == list(range(9))
    convert(tmp_path / "hf", tmp_path / "w", "webdataset")
    assert fm.open(tmp_path / "w")["3"]["n.json"] == 3


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    source = tree(tmp_path / "source")
    with pytest.raises(NotFound, match="no split 'train': by the names of its files, there are none"):
        convert(source, tmp_path / "d", "parquet", split="train")
    with pytest.raises(ConfigError, match="cannot be converted to mds"):
        convert(source, tmp_path / "d", "mds")
    with pytest.raises(ConfigError, match=r"ends in '\.jsonl'"):
        convert(source, tmp_path / "d.jsonl", "parquet")
    lines(source / "documents/web/1.jsonl", 3)
    with pytest.raises(ConfigError) as error:
        convert(source, tmp_path / "d", "parquet")
    assert error.value.kind == "name-clash"


@pytest.mark.parametrize("to", ["jsonl", "parquet", "wds"])
def test_rows_beside_bad_ones_are_kept(tmp_path: Path, to: str) -> None:
    texts = [f"{n:080d}" for n in range(100)]
    pq.write_table(pa.table({"t": texts}), tmp_path / "x.parquet", row_group_size=10, compression="none", **PLAIN)
    raw = bytearray((tmp_path / "x.parquet").read_bytes())
    raw[pq.read_metadata(tmp_path / "x.parquet").row_group(3).column(0).data_page_offset + 200] ^= 1
    (tmp_path / "x.parquet").write_bytes(raw)
    report = convert(tmp_path / "x.parquet", tmp_path / "d", to, on_error="skip")
    assert (report.samples, report.skipped) == (90, 10)
    assert [bad.index for bad in report.examples] == list(range(30, 40))


def test_a_file_whose_rows_were_all_skipped_leaves_no_output(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x/1.jsonl").write_text('{"a": "x"}\n')
    (tmp_path / "x/2.jsonl").write_text('{"a": "\\ud800"}\n')
    report = convert(tmp_path / "x", tmp_path / "d", "parquet", on_error="skip")
    assert (report.samples, report.skipped) == (1, 1)
    assert [path.name for path in (tmp_path / "d").glob("*.parquet")] == ["1.parquet"]


@pytest.mark.parametrize("to", ["jsonl", "wds"])
def test_rows_beside_one_that_is_not_utf8_are_kept(tmp_path: Path, to: str) -> None:
    data = pa.array([b"a", b"\xff", *[b"x"] * 50])
    text = pa.StringArray.from_buffers(len(data), data.buffers()[1], data.buffers()[2])
    pq.write_table(pa.table({"t": text}), tmp_path / "x.parquet")
    report = convert(tmp_path / "x.parquet", tmp_path / "d", to, on_error="skip")
    assert (report.samples, [bad.index for bad in report.examples]) == (51, [1])


def test_text_that_is_none_is_left_out_or_told(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": "x"}\n{"a": "\\ud800"}\n{"a": "z"}\n')
    report = convert(tmp_path / "x.jsonl", tmp_path / "d.parquet", "parquet", on_error="skip")
    assert (report.samples, [bad.index for bad in report.examples]) == (2, [1])
    (tmp_path / "y.jsonl").write_text('{"a": "x"}\n{"\\ud800": "y"}\n')
    with pytest.raises(DataError) as error:
        convert(tmp_path / "y.jsonl", tmp_path / "e.parquet", "parquet")
    assert error.value.kind == "bad-name"


def test_long_lists_are_not_gathered_without_end(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "x.jsonl").write_text("".join(f'{{"ids": {list(range(n, n + 100))}}}\n' for n in range(50)))
    monkeypatch.setattr("feedmill.converting.rows._GROUP_BYTES", 10_000)
    convert(tmp_path / "x.jsonl", tmp_path / "d", "parquet")
    assert pq.read_metadata(tmp_path / "d/part-000000.parquet").num_row_groups == 9


def test_a_source_that_changed_after_it_was_surveyed_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    path = lines(tmp_path / "x.jsonl", 20)
    survey = "feedmill.converting.rows.surveyed"
    monkeypatch.setattr(survey, lambda *_: {"id": "str"})
    with pytest.raises(DataError, match="when the source was surveyed"):
        convert(path, tmp_path / "d", "parquet")


def test_limits_that_are_asked_for_hold_for_tables(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(25_000)}), tmp_path / "x.parquet", **PLAIN)
    size = (tmp_path / "x.parquet").stat().st_size
    for options, outputs in (({}, 1), ({"max_shard_samples": 10_000}, 3), ({"max_shard_size": size // 4}, 4)):
        report = convert(tmp_path / "x.parquet", tmp_path / "d", "parquet", overwrite=True, **options)
        assert (report.samples, report.outputs) == (25_000, outputs)
    with pytest.raises(ConfigError, match="at least 1 was expected"):
        convert(tmp_path / "x.parquet", tmp_path / "e", "parquet", max_shard_size=0)


@pytest.mark.parametrize("to", ["jsonl", "parquet", "wds", "mds"])
def test_columns_with_one_name_are_refused(tmp_path: Path, to: str) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="two columns have the same name"):
        convert(tmp_path / "x.parquet", tmp_path / "d", to)


def test_columns_that_are_no_more_what_the_file_says_of_them(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"m": {"x": 1}, "l": [1]}\n{"m": {"x": "s"}, "l": ["a"]}\n')
    convert(tmp_path / "x.jsonl", tmp_path / "x.parquet", "parquet")
    table = pq.read_table(tmp_path / "x.parquet")  # other programs keep what is said where they change a column
    table = table.set_column(0, "m", pa.array([5, 6])).set_column(1, "l", pa.array(["a", "b"]))
    wanted = [{"m": 5, "l": "a"}, {"m": 6, "l": "b"}]
    for number, said in enumerate((table.schema.metadata, {b"feedmill.types": b'{"m": ["list"], "l": 7}'})):
        pq.write_table(table.replace_schema_metadata(said), tmp_path / f"{number}.parquet")
        convert(tmp_path / f"{number}.parquet", tmp_path / f"{number}.jsonl", "jsonl")
        assert read(tmp_path / f"{number}.jsonl") == wanted


def test_files_of_lines_by_a_split_of_their_names_or_by_a_pattern(tmp_path: Path) -> None:
    lines(tmp_path / "s/train.jsonl", 3)
    lines(tmp_path / "s/test.jsonl", 2)
    report = convert(tmp_path / "s", tmp_path / "all.parquet", "parquet")
    assert report.samples == 5 and any(
        "the splits 'train', 'test': all rows" in str(loss) for loss in report.plan.losses
    )
    assert convert(tmp_path / "s", tmp_path / "train.parquet", "parquet", split="train").samples == 3
    assert convert(tmp_path / "s/te*.jsonl", tmp_path / "test.parquet", "parquet").samples == 2
