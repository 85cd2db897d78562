"""Datasets that Hugging Face `datasets` and MosaicML `streaming` wrote, read as those read them."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
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
