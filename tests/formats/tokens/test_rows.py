"""Token ids in rows of Parquet, Arrow, JSONL and MDS: documents, windows, packing, loss masks, and bad rows."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError, FeedmillError
from helpers.foreign_datasets import mds_shard

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

IDS = [list(range(k * 10, k * 10 + (k * 5) % 7)) for k in range(60)]
FLAT = np.concatenate(IDS)


def put(folder: Path, kind: str, ids: list[Any] = IDS, **columns: list[Any]) -> Path:
    """Write rows with the column ``input_ids`` and others; of MDS, ``tokens`` as bytes."""
    folder.mkdir(exist_ok=True)
    if kind == "jsonl":
        path = folder / "x.jsonl"
        rows = [
            dict(zip(["input_ids", *columns], row, strict=True)) for row in zip(ids, *columns.values(), strict=True)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    if kind == "mds":
        shard = mds_shard([[np.array(row, "<i8").tobytes()] for row in ids], [None])
        (folder / "mds").mkdir()
        (folder / "mds" / "shard.00000.mds").write_bytes(shard)
        about = {
            "column_encodings": ["bytes"],
            "column_names": ["tokens"],
            "column_sizes": [None],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "raw_data": {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}},
            "samples": len(ids),
            "size_limit": 1 << 26,
            "version": 2,
            "zip_data": None,
        }
        (folder / "mds" / "index.json").write_text(json.dumps({"shards": [about], "version": 2}))
        return folder / "mds"
    table = pyarrow.table({"input_ids": ids, **columns})
    path = folder / f"x.{kind}"
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=7)
    else:
        with pyarrow.OSFile(str(path), "wb") as out, pyarrow.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    return path


KINDS = ["parquet", "arrow", "jsonl", "mds"]


def column(kind: str) -> str:
    return "tokens" if kind == "mds" else "input_ids"


@pytest.mark.parametrize("kind", KINDS)
def test_documents_are_the_rows(kind: str, tmp_path: Path) -> None:
    dataset = fm.open(put(tmp_path, kind), tokens=column(kind))
    assert [row["input_ids"].tolist() for row in dataset.read(range(len(dataset)))] == IDS
    assert dataset.lengths is not None and dataset.lengths.tolist() == [len(row) for row in IDS]
    assert dataset.describe()["tokens"] == len(FLAT) and dataset.describe()["column"] == column(kind)
    assert dataset.read([5])[0].raw("input_ids") == np.array(IDS[5], "<i8").tobytes()
    assert dataset.locate(5).index == 5 and dataset.find("5") == 5
    again = pickle.loads(pickle.dumps(dataset))
    assert again.fingerprint() == dataset.fingerprint() and again[7]["input_ids"].tolist() == IDS[7]


@pytest.mark.parametrize("kind", KINDS)
def test_windows_cross_the_rows(kind: str, tmp_path: Path) -> None:
    path = put(tmp_path, kind)
    windows = fm.open(path, seq_len=16, reuse_last_target=False, positions=True, boundaries=True)
    got = windows.read(range(len(windows)))
    assert np.array_equal(np.stack([row["input_ids"] for row in got]), FLAT[: len(got) * 16].reshape(-1, 16))
    starts = np.unique(np.concatenate([[0], np.cumsum([len(row) for row in IDS])]))
    for number, row in enumerate(got):
        inner = [at for at in (starts - number * 16).tolist() if 0 < at < 16]
        assert row["boundaries"].tolist() == [0, *inner, 16]
    recipe = {"source": {"path": str(path), "windows": 16}, "shuffle": "none", "epochs": 1}
    plan = fm.Recipe.parse(recipe).plan()
    assert plan.read([2])[0]["input_ids"].tolist() == FLAT[34:51].tolist(), "17 tokens, as for .ds"
    loader = fm.Loader(plan, 2, rank=0, world_size=1, workers=0)
    assert next(iter(loader))["input_ids"].shape == (2, 17)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_packed(kind: str, tmp_path: Path) -> None:
    source = {"path": str(put(tmp_path, kind)), "tokens": column(kind)}
    plan = fm.Recipe.parse({"source": source, "epochs": 1, "pack": {"seq_len": 32}}).plan()
    rows = plan.read(range(len(plan)))
    assert sum(row["tokens"] for row in rows) == len(FLAT)
    assert sorted(np.concatenate([row["input_ids"][: row["tokens"]] for row in rows]).tolist()) == sorted(FLAT.tolist())
    with pytest.raises(ConfigError, match="name it: 'tokens: input_ids'"):
        fm.Recipe.parse({"source": source["path"], "epochs": 1, "pack": {"seq_len": 32}}).plan()


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_labels_and_masks_are_loss_masks(kind: str, tmp_path: Path) -> None:
    labels = [[id if id % 3 else -100 for id in row] for row in IDS]
    by_labels = fm.open(put(tmp_path / "a", kind, labels=labels), tokens="input_ids")
    by_mask = fm.open(put(tmp_path / "b", kind, loss_mask=[[id % 3 for id in row] for row in IDS]), tokens="input_ids")
    for dataset in (by_labels, by_mask):
        assert dataset.shards[0].load_loss().tolist() == (FLAT % 3 != 0).tolist()
        assert dataset.loss_mask() == {"files": 1, "tokens_in_loss": int((FLAT % 3 != 0).sum())}
    shifted = [[*row[1:], -100] if row else [] for row in IDS]
    with pytest.raises(DataError, match="shifted labels are unsupported"):
        fm.open(put(tmp_path / "c", kind, labels=shifted), tokens="input_ids").loss_mask()
    with pytest.raises(DataError, match=r"'labels' has the shape \(1,\), the ids have"):
        fm.open(put(tmp_path / "d", kind, labels=[[0]] * len(IDS)), tokens="input_ids").loss_mask()


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([[1, 2], [3, -4]], "row 1.*the id -4 is negative"),
        ([[1, 2], ["a"]], "row 1.*expected a list of integers"),
        ([[1, 2], [0.5]], "row 1.*expected a list of integers"),
        ([[1, 2], [[1], [2, 3]]], "row 1.*nested lists of different lengths|row 1.*expected a list of integers"),
        ([[1, 2], None], "row 1.*expected a list of integers"),
        ([[1, 2], 7], "row 1.*expected a list of integers"),
    ],
)
def test_bad_rows_are_one_clear_error(ids: list[Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        fm.open(put(tmp_path, "jsonl", ids), tokens="input_ids")


def test_bad_options_are_one_clear_error(tmp_path: Path) -> None:
    def fails(path: Path, words: str, **options: Any) -> None:
        with pytest.raises(FeedmillError, match=words):
            fm.open(path, **options)

    path = put(tmp_path, "parquet")
    fails(path, "there is no column 'ids' of token ids.*input_ids", tokens="ids")
    mds = put(tmp_path, "mds", [[1, 2, 3]])
    assert fm.open(mds, tokens="tokens", token_size=4)[0]["input_ids"].tolist() == [1, 0, 2, 0, 3, 0]
    fails(put(tmp_path / "n", "parquet", [[1]], text=["a"]), "there is no column 'words'", tokens="words")
    np.save(tmp_path / "x.npy", np.arange(9))
    fails(tmp_path / "x.npy", "this is token data already", tokens="input_ids")
    parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "t.parquet")
    fails(tmp_path / "t.parquet", "name its column of token ids with tokens=NAME", seq_len=4)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_become_token_files(kind: str, tmp_path: Path) -> None:
    path = put(tmp_path, kind)
    for to in ("pbin", "ds", "megatron", "dolma"):
        report = fm.convert(path, tmp_path / to, to, progress=False)
        dataset = fm.open(tmp_path / to)
        assert [row["input_ids"].tolist() for row in dataset.read(range(len(dataset)))] == IDS, report


def test_labels_become_the_mask_of_ds_and_other_columns_are_named(tmp_path: Path) -> None:
    labels = [[id if id % 3 else -100 for id in row] for row in IDS]
    path = put(tmp_path, "parquet", labels=labels, text=["t"] * len(IDS))
    with pytest.raises(ConfigError, match="text"):
        fm.convert(path, tmp_path / "ds", "ds", progress=False)
    fm.convert(path, tmp_path / "ds", "ds", allow_loss=True, progress=False)
    mask = fm.open(tmp_path / "ds").loss_mask()
    assert mask == {"files": 1, "tokens_in_loss": int((FLAT % 3 != 0).sum())}
    words = put(tmp_path / "text", "parquet", [["a"]] * 3)
    with pytest.raises(FeedmillError, match="cannot be read as token ids"):
        fm.convert(words, tmp_path / "none", "pbin", progress=False)
