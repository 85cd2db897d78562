"""Recipes over real datasets: what they open, and that a plan gives what the files hold."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from feedmill.errors import FeedmillError, NotFound
from feedmill.indexing.prepare import prepare
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.recipe import Recipe
from feedmill.samples.open import open as open_dataset
from helpers.tars import make_shards


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = make_shards(tmp_path / "tars", [4, 4, 2], parts=("json",))
    prepare(str(root), split_ratio="1,1,1", progress=False)
    (tmp_path / "lines.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(7)))
    return tmp_path


def keys(folder: Path, text: str, count: int) -> list[str]:
    plan = Recipe.parse(text, base=str(folder)).plan()
    return [sample.key for sample in plan.read(np.arange(count))]


def test_without_a_split_training_data_is_meant(folder: Path) -> None:
    assert sorted(keys(folder, "source: {path: tars}", 4)) == [f"s{n:05d}" for n in range(4)]
    assert sorted(keys(folder, "source: {path: tars, split: val}", 4)) == [f"s{n:05d}" for n in range(4, 8)]
    assert sorted(keys(folder, "source: {path: tars, split: '*'}", 10)) == [f"s{n:05d}" for n in range(10)]


def test_a_file_of_any_format_is_a_recipe_of_one_source(folder: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"n": [1, 2, 3]}), folder / "table.parquet")
    assert len(Recipe.load(folder / "table.parquet").plan().source("table")) == 3
    assert len(Recipe.load(folder / "lines.jsonl").plan().source("lines")) == 7
    (folder / "cut.pbin").write_bytes(b"\0\1\2")
    with pytest.raises(FeedmillError, match=r"cut\.pbin: the file has 3 bytes, fewer than the header"):
        Recipe.load(folder / "cut.pbin").plan()
    (folder / "packed.jsonl.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(FeedmillError, match="the compressed file is corrupt or truncated"):
        Recipe.load(folder / "packed.jsonl.gz").plan()
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress((folder / "lines.jsonl").read_bytes()))
    assert len(Recipe.load(folder / "packed.jsonl.gz").plan().source("packed.jsonl")) == 7


def test_a_blend_of_formats(folder: Path) -> None:
    text = "seed: 3\nblend:\n- {path: tars, weight: 0.5}\n- {path: lines.jsonl, weight: 0.5}\n"
    found = keys(folder, text, 56)
    assert sum(key.startswith("s") for key in found) == 28
    assert sorted(key for key in found if not key.startswith("s")) == sorted([str(n) for n in range(7)] * 4)


def test_plan_over_datasets(folder: Path) -> None:
    tars, lines = open_dataset(folder / "tars", split="train"), open_dataset(folder / "lines.jsonl")
    plan = Plan.over([tars, lines], weights=[1, 3], seed=5, shuffle="global")
    found = plan.read(np.arange(400))
    assert sum(sample.source.dataset.endswith(".jsonl") for sample in found) == 300
    assert [source["drawn"] for source in plan.report(samples=400).as_dict()["sources"]] == [100, 300]


def test_what_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(NotFound, match="nothing"):
        Recipe.parse("source: {path: nothing}", base=str(folder)).plan()
    with pytest.raises(NotFound, match=r"no split 'tset'.*train, val, test"):
        Recipe.parse("source: {path: tars, split: tset}", base=str(folder)).plan()
