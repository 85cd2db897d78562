"""All samples as tables of Arrow, Polars and pandas, and as a map-style dataset for torch."""

from __future__ import annotations

import io
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import feedmill as fm
from feedmill.errors import ConfigError, MissingExtra, NotFound
from feedmill.formats.npz.arrays import npy
from helpers.tars import write_tar

COUNT = 5


def picture(number: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 3), (number, 0, 0)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def tars(tmp_path: Path) -> Any:
    files = []
    for n in range(COUNT):
        files += [(f"k{n}.txt", f"text {n}".encode()), (f"k{n}.png", picture(n))]
        files += [(f"k{n}.json", json.dumps({"n": n, "tags": ["a"] * n}).encode())]
        files += [(f"k{n}.npy", npy(np.arange(n + 1, dtype=np.float32)))] if n else []
    return fm.open(write_tar(tmp_path / "a.tar", files))


def test_parts_are_columns(tars: Any) -> None:
    table = tars.to_arrow()
    assert table.column_names == ["__key__", "txt", "png", "json", "npy"]
    rows = table.to_pylist()
    assert [row["__key__"] for row in rows] == [f"k{n}" for n in range(COUNT)]
    assert (
        rows[2]["txt"] == "text 2" and rows[2]["png"] == picture(2) and rows[2]["json"] == {"n": 2, "tags": ["a"] * 2}
    )
    assert rows[0]["npy"] is None and rows[2]["npy"] == [0, 1, 2]
    assert table.schema.field("npy").type == pa.list_(pa.float32())
    assert tars.to_arrow(["json", "txt"]).column_names == ["json", "txt"]
    with pytest.raises(NotFound, match=r"no column 'text' .did you mean 'txt'.*The columns are __key__, txt"):
        tars.to_arrow(["text"])


def test_lines_of_json_have_a_column_for_each_key(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "x", "n": 1}\n{"id": "y", "more": [1.5]}\n')
    table = fm.open(tmp_path / "a.jsonl").to_arrow()
    assert table.to_pylist()[1] == {"__key__": "1", "id": "y", "n": None, "more": [1.5]}


def test_tables_keep_their_types_and_selections_their_order(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array(range(9), pa.int8()), "t": pa.array([None, *"abcdefgh"], pa.large_string())})
    pq.write_table(table, tmp_path / "a.parquet")
    ds = fm.open(tmp_path / "a.parquet")
    assert ds.to_arrow().equals(table)
    assert ds.select([7, 1]).to_arrow().equals(table.take([7, 1]))
    assert ds.map(lambda sample: {"n": sample["n"] + 1}).select([7]).to_arrow().to_pylist() == [
        {"__key__": "7", "n": 8}
    ]


def test_typed_samples_and_single_values(tars: Any) -> None:
    typed = tars.map(
        lambda sample: fm.samples.CaptioningSample(
            __key__=sample.key, __restore_key__=(), image=sample["png"], caption=sample["txt"]
        )
    )
    rows = typed.select([3]).to_arrow().to_pylist()
    assert rows[0]["__key__"] == "k3" and rows[0]["caption"] == "text 3"
    assert np.asarray(Image.open(io.BytesIO(rows[0]["image"])))[0, 0].tolist() == [3, 0, 0]
    assert tars.map(lambda sample: sample["json"]["n"]).to_arrow().to_pydict() == {"value": list(range(COUNT))}


def test_values_without_a_common_type_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": "one"}\n')
    with pytest.raises(ConfigError, match="the values of the column 'n' have no common type"):
        fm.open(tmp_path / "a.jsonl").to_arrow()


@pytest.mark.parametrize("name", ["polars", "pandas"])
def test_missing_packages_are_named(tars: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        MissingExtra, match=f"needs {name}, which is not installed. Install it with: pip install {name}"
    ):
        getattr(tars, f"to_{name}")()


def test_arrow_and_torch_are_extras(tars: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, extra in (("pyarrow", "arrow"), ("torch", "torch")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtra, match=rf"feedmill\[{extra}\]"):
            tars.to_torch() if name == "torch" else tars.to_arrow()


def test_polars_gets_the_arrow_table(tars: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("polars")
    module.from_arrow = lambda table: ("frame", table)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "polars", module)
    kind, table = tars.to_polars(["txt"])
    assert kind == "frame" and table.column_names == ["txt"] and len(table) == COUNT


@pytest.mark.parametrize("name", ["polars", "pandas"])
def test_frames_of_the_real_packages(tars: Any, name: str) -> None:
    pytest.importorskip(name)
    frame = getattr(tars, f"to_{name}")()
    assert frame["txt"].to_list() == [f"text {n}" for n in range(COUNT)] and frame.shape == (COUNT, 5)


def test_torch_reads_samples_by_number(tars: Any) -> None:
    torch = pytest.importorskip("torch")
    dataset = tars.select([4, 1, 2]).to_torch()
    assert len(dataset) == 3
    assert dataset[0]["__key__"] == "k4" and dataset[-1]["json"] == {"n": 2, "tags": ["a", "a"]}

    def numbers(sample: Any) -> dict[str, Any]:
        return {"n": sample["json"]["n"], "x": sample["npy"][:2]}

    loader = torch.utils.data.DataLoader(tars.select([4, 1, 2]).to_torch(numbers), batch_size=2)
    batches = list(loader)
    assert [batch["n"].tolist() for batch in batches] == [[4, 1], [2]] and batches[0]["x"].shape == (2, 2)
