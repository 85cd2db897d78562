"""Flat token files of other tools: raw, with a header of llm.c, and numpy's; their index, and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError, DataError, FeedmillError

EOS = 9
IDS = np.array([9, 1, 2, 3, 9, 4, 5, 9, 6, 7])
BEGINS = [[9, 1, 2, 3], [9, 4, 5], [9, 6, 7]]
"""Documents of llm.c, which begin with the token."""
ENDS = [[9], [1, 2, 3, 9], [4, 5, 9], [6, 7]]
"""Documents of other tools, which end with it."""


def llm_c(magic: int = 20240520, version: int = 1, tokens: int | None = None, kind: str = "<u2") -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(IDS) if tokens is None else tokens
    return header.tobytes() + IDS.astype(kind).tobytes()


def put(path: Path, kind: str) -> Path:
    if kind == "numpy":
        np.save(path, IDS.astype(np.int32))
    elif kind == "llm.c":
        path.write_bytes(llm_c())
    elif kind == "llm.c 4 bytes":
        path.write_bytes(llm_c(20240801, 7, kind="<u4"))
    else:
        path.write_bytes(IDS.astype(kind).tobytes())
    return path


CASES = [("x.bin", "<u2", 2), ("x.npy", "<u4", 4), ("x.bin", "llm.c", None), ("x.bin", "llm.c 4 bytes", None)]
CASES += [("x.npy", "numpy", None)]


def documents(dataset: fm.Dataset) -> list[list[int]]:
    return [sample["input_ids"].tolist() for sample in dataset.read(range(len(dataset)))]


@pytest.mark.parametrize(("name", "kind", "size"), CASES)
def test_windows_without_an_index(name: str, kind: str, size: int | None, tmp_path: Path) -> None:
    path = put(tmp_path / name, kind)
    windows = fm.open(path, token_size=size, seq_len=4, reuse_last_target=False, eos=EOS, positions=True)
    assert [row["input_ids"].tolist() for row in windows] == [[9, 1, 2, 3], [9, 4, 5, 9]]
    assert windows[1]["positions"].tolist() == [0, 0, 1, 2]
    facts = fm.open(path, token_size=size).describe()
    assert (facts["tokens"], facts["indexed"], facts["samples"]) == (10, False, None)


@pytest.mark.parametrize(("name", "kind", "size"), CASES)
def test_an_index_makes_documents(name: str, kind: str, size: int | None, tmp_path: Path) -> None:
    path = put(tmp_path / name, kind)
    words = ["tokens", "index", str(path), "--eos-id", "9", *(["--token-size", str(size)] if size else [])]
    result = CliRunner().invoke(app, words)
    wanted = BEGINS if "llm.c" in kind else ENDS
    assert result.exit_code == 0 and f"{len(wanted)} documents" in result.output, result.output
    dataset = fm.open(path)
    assert documents(dataset) == wanted and dataset.describe()["indexed"]
    assert not list(fm.check(path).findings)
    plan = fm.Recipe.parse({"source": str(path), "shuffle": "none", "epochs": 1, "pack": {"seq_len": 5}}).plan()
    assert sum(row["tokens"] for row in plan.read(range(len(plan)))) == len(IDS)
    fm.convert(path, tmp_path / "out", "pbin", progress=False)
    assert documents(fm.open(tmp_path / "out")) == wanted
    assert "input_ids" in CliRunner().invoke(app, ["show", str(path)]).output
    assert json.loads(CliRunner().invoke(app, ["show", str(path), "--json"]).stdout)["tokens"] == len(IDS)
    assert CliRunner().invoke(app, words).exit_code == 1, "it exists"


def test_lists_patterns_and_folders(tmp_path: Path) -> None:
    for name in ("b", "a"):
        put(tmp_path / f"{name}.bin", "llm.c")
    a, b = tmp_path / "a.bin", tmp_path / "b.bin"
    for given in (f"{tmp_path}/*.bin", [b, a], tmp_path):
        assert fm.open(given).describe()["tokens"] == 20
        assert len(fm.open(given, seq_len=4, reuse_last_target=False)) == 4
    raw = [put(tmp_path / f"raw/{k}.bin", "<u2") for k in "xy" if (tmp_path / "raw").mkdir(exist_ok=True) is None]
    assert len(fm.open(raw, token_size=2, seq_len=5, reuse_last_target=False)) == 4
    recipe = {"source": {"path": f"{tmp_path}/raw/*.bin", "windows": {"seq_len": 4, "token_size": 2}}, "epochs": 1}
    assert len(fm.Recipe.parse(recipe).plan()) == 4


def change(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("data", "options", "error", "words"),
    [
        (IDS.astype("<u2").tobytes(), {}, ConfigError, "has no header, and the size of a token is unknown"),
        (IDS.astype("<u2").tobytes(), {"token_size": 3}, ConfigError, "the size of a token is 3 bytes"),
        (IDS.astype("<u2").tobytes()[:-1], {"token_size": 2}, DataError, "19 bytes are not a whole number of tokens"),
        (llm_c(), {"token_size": 4}, ConfigError, "token_size=4 contradicts the header: 2 bytes"),
        (llm_c()[:-2], {}, DataError, "expected 1,044 bytes for 10 tokens, found 1,042"),
        (llm_c()[:100], {}, DataError, "100 bytes are fewer than its header"),
        (llm_c(version=2), {}, DataError, "has the version 2, expected 1"),
        (llm_c(20240522), {}, DataError, "an evaluation file of llm.c"),
        (b"\x93NUMPY\x01\x00\xff\xff{", {}, DataError, "its numpy header cannot be read"),
    ],
)
def test_bad_files_are_one_clear_error(
    data: bytes, options: dict[str, Any], error: type[FeedmillError], words: str, tmp_path: Path
) -> None:
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(error, match=words):
        fm.open(tmp_path / "x.bin", **options)


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((2, 2), np.int32), np.array([{"a": 1}], object)])
def test_other_arrays_are_refused(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(DataError, match="expected one row of integers"):
        fm.open(tmp_path / "x.npy")


def test_bad_indexing_is_one_clear_error(tmp_path: Path) -> None:
    path = put(tmp_path / "x.bin", "<u2")

    def fails(words: str, **options: Any) -> None:
        with pytest.raises(FeedmillError, match=words):
            fm.tokens.index(path, **options)

    fails("the id of the end-of-text token is missing", token_size=2)
    fails("the end-of-text token 50256 does not occur among 10 tokens", token_size=2, eos=50256)
    fails("the id 9 of token 0 is not in a vocabulary of 9", token_size=2, eos=9, vocab_size=9)
    fails("the id 589824.* is not in a vocabulary|the id \\d+ of token 0", token_size=4, eos=9, vocab_size=10)
    fails("the size of a token is unknown", eos=9)
    fails("bounds are always written next to their file", eos=9, output=tmp_path / "y")
    fm.tokens.index(path, eos=9, token_size=2)
    with pytest.raises(ConfigError, match="token_size=4 contradicts its index"):
        fm.open(path, token_size=4)
    path.write_bytes(path.read_bytes()[:-2])  # the index is of another file now
    with pytest.raises(ConfigError, match="the size of a token is unknown"):
        fm.open(path)
    side = tmp_path / "x.bin.feedmill.bounds"
    fm.tokens.index(path, eos=9, token_size=2, overwrite=True)
    side.write_bytes(side.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DataError, match="bounds of documents are corrupt"):
        documents(fm.open(path))
    (tmp_path / "x.idx").write_bytes(b"MMIDIDX")
    fails("this is not a flat token file", eos=9)
