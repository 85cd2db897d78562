"""Values as bytes, blocks that are kept, and what rows share."""

from __future__ import annotations

import io
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sourcedata
from feedmill.errors import NotFound
from feedmill.formats.rows import BlockCache, magic_suffix, to_bytes
from feedmill.samples.open import open as open_dataset

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(PLAIN)
def test_nested_values_are_json(value: Any) -> None:
    if isinstance(value, str):
        assert to_bytes(value).decode() == value
    elif value is None:
        assert to_bytes(value) == b""
    else:
        assert json.loads(to_bytes(value)) == value


def test_other_values() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = np.load(io.BytesIO(to_bytes(array)), allow_pickle=False)
    assert found.dtype == array.dtype and np.array_equal(found, array)
    nested = {
        "when": datetime(2024, 1, 2),
        "cost": Decimal("1.10"),
        "blob": b"\0\1",
        "array": np.arange(2),
        "nan": math.nan,
    }
    back = json.loads(to_bytes(nested))
    assert math.isnan(back.pop("nan"))
    assert back == {"when": "2024-01-02T00:00:00", "cost": "1.10", "blob": "AAE=", "array": [0, 1]}


MAGIC = {
    b"\xff\xd8\xff\xe0": "jpg", b"\x89PNG\r\n\x1a\n": "png", b"RIFF0000WEBPVP8": "webp", b"RIFF0000WAVE": "wav",
    b"fLaC": "flac", b"?": "",
}  # fmt: skip


@pytest.mark.parametrize(("data", "suffix"), MAGIC.items())
def test_bytes_say_what_they_are(data: bytes, suffix: str) -> None:
    assert magic_suffix(data) == suffix


def test_a_sample_selects_and_names_its_parts(tmp_path: Path) -> None:
    sample = open_dataset(sourcedata.parquet(tmp_path, [4]))[2]
    assert dict(sample) == {"n": 2, "text": "text 2 ü"} and sample.raw("text") == "text 2 ü".encode()
    only = sample.select(lambda name: name == "n")
    assert dict(only) == {"n": 2} and only.source.names == ("2.n",)
    with pytest.raises(NotFound, match=r"no part 'x' \(it has: n, text\)"):
        sample["x"]
    assert sample.get("x") is None
    undecoded = open_dataset(tmp_path, decode=None)[2]
    assert undecoded["n"] == b"2"


def test_blocks_are_made_once_and_dropped_by_size() -> None:
    cache = BlockCache(100)
    made: list[int] = []
    gate = threading.Barrier(8)

    def make(key: int) -> tuple[int, int]:
        made.append(key)
        return key, 60

    def ask(_: int) -> int:
        gate.wait()
        value: int = cache.get(1, lambda: make(1))
        return value

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [1] * 8
    assert made == [1]
    cache.get(2, lambda: make(2))
    cache.get(1, lambda: make(1))
    assert made == [1, 2, 1]  # 1 had to go for 2


def test_a_block_that_cannot_be_made_is_tried_again() -> None:
    cache = BlockCache(100)
    with pytest.raises(ZeroDivisionError):
        cache.get(1, lambda: (1 // 0, 1))
    assert cache.get(1, lambda: (5, 1)) == 5


def test_row_groups_kept_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from feedmill.formats.tables import dataset as tables

    monkeypatch.setattr(tables, "CACHE_BYTES", 1000)
    rows = sourcedata.table(0, 400)
    sourcedata.pq.write_table(rows, tmp_path / "0.parquet", row_group_size=20)
    dataset = open_dataset(tmp_path)
    assert isinstance(dataset, tables.TableDataset)
    order = np.random.default_rng(0).permutation(400)
    assert [s["n"] for s in dataset.read(order)] == order.tolist()
    assert dataset._blocks._bytes <= 1000 and len(dataset._blocks._blocks) <= 2
