"""The loader reads data of other tools, alone and blended, with workers, and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from helpers import foreign_datasets as sourcedata
from helpers.tars import make_shards

RECIPE = """
blend:
  - {path: parquet, weight: 1}
  - {path: mds, weight: 1}
  - {path: robot, split: test, weight: 1}
  - {path: "tars/shards/shard_{000..001}.tar", weight: 1}
seed: 5
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    for name, make in (("parquet", sourcedata.parquet), ("mds", sourcedata.mds), ("robot", sourcedata.lerobot_v3)):
        if name != "robot":
            (root / name).mkdir()
        make(root / name, [7, 5, 8])
    make_shards(root / "tars", [11, 9])
    (root / "recipe.yaml").write_text(RECIPE)
    return root


def name(sample: Any) -> tuple[str, int]:
    return sample.source.dataset.rpartition("/")[2], int(sample["n"] if "n" in sample else sample["json"]["n"])


def read(folder: Path, **options: Any) -> list[tuple[str, int]]:
    plan = fm.Recipe.load(folder / "recipe.yaml").plan()
    loader = fm.Loader(plan, batch_size=8, collate=list, **options)
    return [name(sample) for _, batch in zip(range(10), loader, strict=False) for sample in batch]


def test_a_blend_of_all_kinds(folder: Path) -> None:
    """Splits of a source hold: the robot's test episodes are 13 frames, which come again."""
    found = read(folder)
    for kind in ("parquet", "mds", "shards"):
        assert sorted(number for one, number in found if one == kind) == list(range(20))  # each once
    robot = [number for one, number in found if one == "robot"]
    assert len(robot) == 20 and set(robot) == set(range(7, 20))


def test_threads_give_the_same(folder: Path) -> None:
    assert read(folder, workers=2) == read(folder)


def names(samples: list[Any]) -> list[tuple[str, int]]:
    return [name(sample) for sample in samples]


def test_worker_processes_open_their_own(folder: Path) -> None:
    plan = fm.Recipe.load(folder / "recipe.yaml").plan()
    loader = fm.Loader(plan, batch_size=8, collate=names, workers=fm.Workers(2, processes=True))
    found = [each for _, batch in zip(range(10), loader, strict=False) for each in batch]
    assert found == read(folder)


def test_resume_in_the_middle(folder: Path) -> None:
    plan = fm.Recipe.load(folder / "recipe.yaml").plan()
    whole = fm.Loader(plan, batch_size=8, collate=list)
    batches = [[name(s) for s in batch] for _, batch in zip(range(8), whole, strict=False)]
    first = fm.Loader(plan, batch_size=8, collate=list)
    for _, _ in zip(range(3), first, strict=False):
        pass
    state = first.state_dict()
    second = fm.Loader(fm.Recipe.load(folder / "recipe.yaml").plan(), batch_size=8, collate=list)
    second.load_state_dict(state)
    done = state.get("step", 3) if isinstance(state, dict) else 3
    assert [[name(s) for s in batch] for _, batch in zip(range(8 - done), second, strict=False)] == batches[done:]
