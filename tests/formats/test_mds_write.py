"""Shards of MosaicML's that are written here are read here; a shard of theirs, written again, is the same samples."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import DataError
from feedmill.formats.mds import write as mds_write
from feedmill.formats.mds.write import ENCODERS, write_index, write_shard
from feedmill.storage import open_store
from helpers import foreign_datasets as sourcedata

VALUES: dict[str, list[Any]] = {
    "bytes": [b"", b"\xff\0", bytes(300)],
    "str": ["", "é \U0001f600", "x"],
    "int": [0, -(2**63), 2**63 - 1],
    "float64": [0.0, -1.5e300, float("inf")],
    "json": [None, {"a": [1, "é"]}, "text"],
    "ndarray": [np.zeros((0, 3), np.float32), np.arange(300, dtype=np.int16), np.asarray(7, np.uint8)],
}


def test_every_encoding_comes_back(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    columns = {name: name for name in sorted(VALUES)}
    rows = [[ENCODERS[name](VALUES[name][i]) for name in columns] for i in range(3)]
    entries = [write_shard(store, f"shard.{n:05d}.mds", columns, rows[n : n + 2]) for n in (0, 2)]
    write_index(store, entries)
    dataset = fm.open(tmp_path)
    assert len(dataset) == 3
    for i in range(3):
        sample = dataset[i]
        for name in columns:
            found, wanted = sample[name], VALUES[name][i]
            if name == "ndarray":
                assert found.dtype == wanted.dtype and found.shape == wanted.shape and np.array_equal(found, wanted)
            else:
                assert found == wanted
    assert dataset.verify() == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [*mds_write._CODES])
def test_every_type_of_array(tmp_path: Path, dtype: str) -> None:
    store = open_store(str(tmp_path))
    array = np.arange(12).astype(dtype).reshape(3, 4)
    for number, value in enumerate((array, array.T, array.astype(array.dtype.newbyteorder(">")))):
        name = f"s{number}.mds"
        entry = write_shard(store, name, {"a": "ndarray"}, [[mds_write.encode_array(value)]])
        write_index(store, [entry])
        found = fm.open(tmp_path)[0]["a"]
        assert found.dtype == np.dtype(dtype) and np.array_equal(found, value)


def test_a_shard_beyond_4_gib_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mds_write, "_MOST", 1000)
    with pytest.raises(DataError, match="--max-shard-size"):
        write_shard(open_store(str(tmp_path)), "s.mds", {"a": "bytes"}, [[bytes(2000)]])
    assert not list(tmp_path.iterdir())


ARROW = {"snappy": "snappy", "br": "brotli"}
"""MDSWriter's names of compressions, with pyarrow's."""


@pytest.mark.parametrize("name", ARROW)
def test_shards_that_pyarrow_decompresses(tmp_path: Path, name: str) -> None:
    import pyarrow as pa

    sourcedata.mds(tmp_path, [5, 3], partial(pa.compress, codec=ARROW[name], asbytes=True), name)
    dataset = fm.open(tmp_path)
    assert [sample["text"] for sample in dataset] == [f"text {n} ü" for n in range(8)]
    assert dataset.verify() == []  # type: ignore[attr-defined]
    path = tmp_path / f"shard.00001.mds.{name}"
    data = path.read_bytes()
    for number, changed in enumerate((data[:-9], bytes([data[0] ^ 1]) + data[1:], b"\xff" * len(data), b"")):
        path.write_bytes(changed)
        index = json.loads((tmp_path / "index.json").read_text())
        index["shards"][1]["zip_data"]["bytes"] = len(changed)
        (tmp_path / "index.json").write_text(json.dumps(index))
        with pytest.raises(DataError) as error:
            fm.open(tmp_path)[6]
        assert error.value.kind in ("bad-compression", "wrong-count", "too-large"), number


def test_a_shard_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    monkeypatch.setenv("FEEDMILL_MAX_UNPACKED", "1kB")
    for name in ARROW:
        (tmp_path / name).mkdir()
        sourcedata.mds(tmp_path / name, [500], partial(pa.compress, codec=ARROW[name], asbytes=True), name)
        with pytest.raises(DataError, match="limit"):
            fm.open(tmp_path / name)[0]
