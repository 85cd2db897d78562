"""Datasets that Hugging Face `datasets`, MosaicML `streaming` and writers of tables wrote, read as those read them."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset
import pytest

from feedmill.errors import NotFound, TrustError
from feedmill.samples.open import open as open_dataset

GOLDEN = Path(__file__).parents[1] / "golden" / "sources"
HF, MDS = GOLDEN / "huggingface", GOLDEN / "mds"


def hf_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((HF / "expected.json").read_text())["train"]
    return rows


def plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize(
    ("folder", "split"), [("saved", None), ("dict", "train"), ("dict/train", None), ("cache", "train")]
)
def test_hugging_face_rows(folder: str, split: str | None) -> None:
    dataset = open_dataset(HF / folder, split=split)
    assert dataset.describe()["format"] == "huggingface"
    assert [{name: plain(value) for name, value in sample.items()} for sample in dataset] == hf_rows()
    assert isinstance(dataset[0]["vector"], np.ndarray)
    assert dataset.describe()["labels"] == {"label": ["a", "b", "c"]}


def test_hugging_face_splits() -> None:
    both = open_dataset(HF / "dict")
    assert len(both) == 30 and both.splits == {"train": 23, "test": 7}
    assert open_dataset(HF / "dict", split="test")[0]["n"] == 23
    assert [s["n"] for s in open_dataset(HF / "cache", split="test")] == list(range(23, 30))
    with pytest.raises(NotFound, match=r"no split 'val'\. Splits are: 'train', 'test'"):
        open_dataset(HF / "dict", split="val")


def test_a_shuffled_data_set_is_read_in_its_order() -> None:
    expected = json.loads((HF / "expected.json").read_text())["shuffled"]
    assert [sample["n"] for sample in open_dataset(HF / "shuffled")] == expected


TABLES = Path(__file__).parents[1] / "golden" / "tables"
WRITERS = json.loads((TABLES / "versions.json").read_text())


def written(writer: str) -> list[dict[str, Any]]:
    """The rows that tests/golden/tables/record.py gave to a writer."""
    first = list(WRITERS).index(writer) * 3
    return [
        {
            "id": n,
            "text": f"text {n} by {writer} ü",
            "score": n / 4,
            "source": ("web", "book")[n % 2],
            "tags": [["a", "b"], [], ["c"]][n % 3],
            "vector": [n + 0.5, -1.25],
            "made": datetime.datetime(2026, 11, n + 1, 12, 30, 0, 250000),
            "meta": {"lang": "en" if n % 2 else None, "words": n},
        }
        for n in range(first, first + 3)
    ]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_files_of_five_writers_are_one_table(form: str) -> None:
    files = sorted(path.name for path in (TABLES / form).iterdir())
    expected = [row for name in files for row in written(name.partition(".")[0])]
    assert {name.partition(".")[0] for name in files} == set(WRITERS)
    dataset = open_dataset(TABLES / form)
    assert not dataset.remarks and all(sample["vector"].dtype == np.float64 for sample in dataset)
    rows = [{**dict(sample.items()), "vector": sample["vector"].tolist()} for sample in dataset]
    assert rows == expected == dataset.to_arrow().to_pylist()
    for name in files:
        alone = open_dataset(TABLES / form / name)
        assert [sample["id"] for sample in alone] == [row["id"] for row in written(name.partition(".")[0])]
    if form == "parquet":  # pyarrow's datasets have no streams
        theirs = pyarrow.dataset.dataset(TABLES / form, schema=dataset.schema).to_table()
        assert theirs.equals(dataset.to_arrow())


def mds_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "array": value.tolist()}
    return value


def test_every_encoding_of_mds() -> None:
    expected = json.loads((MDS / "expected.json").read_text())["plain"]
    dataset = open_dataset(MDS / "plain")
    assert len(dataset) == 20
    for sample, row in zip(dataset, expected, strict=True):
        assert set(sample) == set(row)
        for name, said in row.items():
            value = sample[name]
            if isinstance(said, dict) and "image" in said:
                assert value.tolist() == said["image"], name
            elif isinstance(said, dict) and "images" in said:
                assert [image.tolist() for image in value] == said["images"], name
            else:
                assert mds_value(value) == said, name


@pytest.mark.parametrize("folder", ["zstd", "gz"])
def test_compressed_mds(folder: str) -> None:
    dataset = open_dataset(MDS / folder)
    order = np.random.default_rng(0).permutation(20)
    assert [(s["n"], s["text"]) for s in dataset.read(order)] == [(n, f"text {n} ü") for n in order.tolist()]
    assert not dataset.verify()


def test_pickled_columns_run_nothing() -> None:
    dataset = open_dataset(MDS / "pkl")
    assert [sample["n"] for sample in dataset] == [0, 1, 2]
    with pytest.raises(
        TrustError, match=r"shard.00000.mds .*'evil' is pickled, and reading a pickle can run code.*trust=True"
    ):
        dataset[1]["evil"]
    assert dataset[1].raw("evil").startswith(b"\x80")
    assert open_dataset(MDS / "pkl", trust=True)[1]["evil"] == (1,)
