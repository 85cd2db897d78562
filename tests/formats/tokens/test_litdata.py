"""LitData's token chunks, which litdata 0.2.76 wrote and read (tests/golden/sources/litdata)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import FeedmillError

SOURCES = Path(__file__).parents[2] / "golden" / "sources"
WANTED = [list(range(i * 100, i * 100 + (i * 7) % 13 + 1)) for i in range(40)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SOURCES / "litdata", tmp_path / "litdata"))


def documents(dataset: fm.Dataset) -> list[list[int]]:
    return [sample["input_ids"].tolist() for sample in dataset.read(range(len(dataset)))]


def test_documents_and_windows_are_those_of_litdata(folder: Path) -> None:
    dataset = fm.open(folder)
    assert dataset.format == "litdata" and documents(dataset) == WANTED
    windows = fm.open(folder, seq_len=7)  # LitGPT's block_size is one more
    assert [row["input_ids"].tolist() for row in windows] == json.loads(
        (SOURCES / "litdata_blocks_of_8.json").read_text()
    )


def test_verbs_understand_them(folder: Path, tmp_path: Path) -> None:
    assert not fm.check(folder).findings
    assert json.loads(CliRunner().invoke(app, ["show", str(folder), "--json"]).stdout)["tokens"] == sum(
        map(len, WANTED)
    )
    assert CliRunner().invoke(app, ["show", str(folder)]).exit_code == 0
    fm.convert(folder, tmp_path / "out", "ds", progress=False)
    assert documents(fm.open(tmp_path / "out")) == WANTED
    plan = fm.Recipe.parse({"source": str(folder), "shuffle": "none", "epochs": 1, "pack": {"seq_len": 16}}).plan()
    assert sum(row["tokens"] for row in plan.read(range(len(plan)))) == sum(map(len, WANTED))


@pytest.mark.parametrize("code", range(8))
def test_arrays_of_numpy_are_tokens_too(folder: Path, code: int) -> None:
    dtype = np.dtype(
        ("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8")[code]
    )  # litdata's list, in all its releases
    index = json.loads((folder / "index.json").read_text())
    for chunk in index["chunks"]:
        data = (folder / chunk["filename"]).read_bytes()
        count = int.from_bytes(data[:4], "little")
        ends = np.frombuffer(data, "<u4", count + 1, 4) - 4 * (count + 2)
        ids = np.frombuffer(data, "<i4", -1, 4 * (count + 2)) % 100
        head = [count, *(ends // 4 * dtype.itemsize + 4 * (count + 2))]
        (folder / chunk["filename"]).write_bytes(np.asarray(head, "<u4").tobytes() + ids.astype(dtype).tobytes())
    index["config"]["data_format"] = [f"no_header_numpy:{code}"]
    (folder / "index.json").write_text(json.dumps(index))
    assert documents(fm.open(folder)) == [[token % 100 for token in document] for document in WANTED]


def damaged(edit: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        edit(index)
        (folder / "index.json").write_text(json.dumps(index))

    return change


def cut(folder: Path) -> None:
    chunk = folder / "chunk-0-1.bin"
    chunk.write_bytes(chunk.read_bytes()[:-4])


def scramble(folder: Path) -> None:
    chunk = folder / "chunk-0-1.bin"
    data = bytearray(chunk.read_bytes())
    data[8:12] = (1).to_bytes(4, "little")
    chunk.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (damaged(lambda index: index["config"].update(compression="zstd")), r"its chunks have compression \(zstd\)"),
        (damaged(lambda index: index["config"].update(data_format=["no_header_tensor:1"])), "which is not an integer"),
        (damaged(lambda index: index["config"].update(data_format=["no_header_numpy:9"])), "which is not an integer"),
        (
            damaged(lambda index: index["config"].update(data_format=["no_header_tensor:16", "jpeg"])),
            "expected one tensor or array",
        ),
        (damaged(lambda index: index["chunks"][0].update(dim=None)), r"without TokensLoader \(their dim is null\)"),
        (damaged(lambda index: index["chunks"][0].pop("dim")), "this is not an index of token chunks"),
        (cut, "chunk-0-1.bin: expected 272 bytes and 8 documents by the index, found 268"),
        (scramble, "the documents of the chunk do not follow one another"),
        (lambda folder: (folder / "chunk-0-0.bin").unlink(), "chunk-0-0.bin"),
    ],
)
def test_bad_chunks_are_one_clear_error(change: Callable[[Path], None], words: str, folder: Path) -> None:
    change(folder)
    with pytest.raises(FeedmillError, match=words):
        documents(fm.open(folder))
