"""Times finer than those of Python are text; all others are as before, in any nesting, with pandas or without."""

from __future__ import annotations

import json
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedmill as fm
from feedmill.formats.arrowtypes.reading import Columns
from feedmill.formats.arrowtypes.reading import values as to_python

TIMES = pa.timestamp("ns")


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return Columns(table.schema).rows(table, np.arange(len(table)))


FINE, WHOLE = "1970-01-01T00:00:00.000000001", datetime(1970, 1, 1, 0, 0, 0, 2)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (TIMES, [FINE, WHOLE, None]),
        (pa.timestamp("ns", "+02:00"), ["1970-01-01T02:00:00.000000001+0200"]),
        (pa.duration("ns"), ["PT0.000000001S", timedelta(microseconds=2), None]),
        (pa.time64("ns"), ["00:00:00.000000001", time(0, 0, 0, 2), None]),
    ],
)
def test_a_time_is_text_only_if_it_needs_nanoseconds(kind: Any, expected: list[Any]) -> None:
    stored = pa.array([1, 2000, None], kind)
    assert to_python(stored)[: len(expected)] == expected
    assert [to_python(stored[n : n + 1])[0] for n in range(len(expected))] == expected
    assert to_python(stored[1:]) == stored[1:].to_pylist()  # as pyarrow itself


def test_times_before_1970() -> None:
    before = datetime(1969, 12, 31, 23, 59, 59, 999998)
    assert to_python(pa.array([-1, -2000], TIMES)) == ["1969-12-31T23:59:59.999999999", before]
    assert to_python(pa.array([-1_500_000_001], pa.duration("ns"))) == ["-PT1.500000001S"]


def test_times_within_other_values() -> None:
    inner = [("at", TIMES), ("name", pa.string()), ("all", pa.list_(TIMES)), ("of", pa.map_(pa.string(), TIMES))]
    rows = [{"at": 1, "name": "x", "all": [1, 2000, None], "of": [("a", 1)]}, None, {"at": None}]
    table = pa.table({"row": pa.array(rows, pa.struct(inner)), "n": [1, 2, 3]})
    first = {"at": FINE, "name": "x", "all": [FINE, WHOLE, None], "of": [("a", FINE)]}
    assert rows_of(table) == [
        {"row": first, "n": 1},
        {"row": None, "n": 2},
        {"row": {"at": None, "name": None, "all": None, "of": None}, "n": 3},
    ]
    for kind in (pa.large_list(TIMES), pa.list_(TIMES, 2)):
        assert to_python(pa.array([[1, 2000]], kind)) == [[FINE, WHOLE]]
    assert to_python(pa.array([1, 2000, 2000], TIMES).dictionary_encode()) == [FINE, WHOLE, WHOLE]


def test_tables_with_nanoseconds_open_and_convert(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"text": ["a", "b"], "at": pa.array([1, 2000], TIMES)})
    pq.write_table(table, tmp_path / "in/a.parquet")
    dataset = fm.open(tmp_path / "in")
    assert [sample["at"] for sample in dataset] == [FINE, WHOLE]
    assert dataset[0].raw("at") == FINE.encode()
    fm.convert(tmp_path / "in", tmp_path / "out", to="parquet", workers=1, progress=False)
    assert pq.read_table(tmp_path / "out").equals(table)
    fm.convert(tmp_path / "in", tmp_path / "out.jsonl", to="jsonl", allow_loss=True, workers=1, progress=False)
    lines = [json.loads(line)["at"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == [FINE, WHOLE.isoformat()]
