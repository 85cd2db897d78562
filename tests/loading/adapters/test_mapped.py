"""A plan by position: what a torch `DataLoader`, or any library that indexes, gets of it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.loading.loader import Loader
from helpers.fakes import FakePlan


def crop(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "x": sample["x"][int(rng.integers(3)) :]}


def test_a_sample_is_that_of_the_loader_in_any_order_and_bulk() -> None:
    plan = FakePlan(length=30)
    dataset = fm.loading.PlanDataset(plan, transform=crop)
    samples = [sample for batch in Loader(plan, 4, transform=crop, output="samples") for sample in batch]
    assert len(dataset) == 30
    assert [same(dataset[k], samples[k]) for k in (29, 0, 7, np.int64(7), -1)] == [True] * 5
    assert all(map(same, dataset.__getitems__([3, 3, 28]), [samples[3], samples[3], samples[28]]))
    assert dataset.__getitems__([]) == [] and len(list(dataset)) == 30


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("position", [30, -31, 10**9])
def test_a_position_outside_ends_an_iteration(position: int) -> None:
    with pytest.raises(IndexError, match=r"there is no sample .*: the dataset has 30 samples"):
        fm.loading.PlanDataset(FakePlan(length=30))[position]


def test_an_endless_plan_has_the_length_that_is_given() -> None:
    endless = fm.loading.PlanDataset(FakePlan())
    assert endless[10**6]["position"] == 10**6
    with pytest.raises(TypeError, match="give as_dataset"):
        len(endless)
    assert len(fm.loading.PlanDataset(FakePlan(), samples=50)) == 50
    for samples in (0, 31):
        with pytest.raises(ConfigError, match=f"samples={samples} is invalid: the plan has 30"):
            fm.loading.PlanDataset(FakePlan(length=30), samples=samples)


def test_an_error_names_the_sample() -> None:
    with pytest.raises(DataError, match=r"position 7 \(source 1"):
        fm.loading.PlanDataset(FakePlan(length=30, fails_at=frozenset([7]))).__getitems__([6, 7])


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[fm.Plan]:
    (tmp_path / "docs.jsonl").write_text("".join(f'{{"text": "document {n}"}}\n' for n in range(37)))
    yield fm.Recipe.parse(
        {"seed": 3, "samples": 50, "source": {"path": str(tmp_path / "docs.jsonl"), "shuffle": "global"}}
    ).plan()


def text(sample: fm.Sample) -> dict[str, Any]:
    return {"text": sample["json"]["text"], "length": len(sample["json"]["text"])}


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_loads_it_in_the_order_of_the_plan(plan: fm.Plan, workers: int) -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset = plan.as_dataset(transform=text)
    ours = [batch["text"] for batch in Loader(plan, 8, transform=text)]
    batches = list(data.DataLoader(dataset, batch_size=8, num_workers=workers, collate_fn=dataset.collate))
    assert [batch["text"] for batch in batches] == ours
    assert batches[0]["length"].tolist() == [len(each) for each in ours[0]]
    assert pickle.loads(pickle.dumps(dataset))[11] == dataset[11]
