"""Nanosets end to end: configurations and recipes over golden token files give the samples that Nanotron gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from helpers.nanoset_golden import NANOSETS, expected, sha256

CASES = expected()["nanoset_samples"]


def config(case: dict, form: str) -> dict[str, Any]:
    """A configuration of Nanotron in one of the forms of its `dataset_folder`."""
    folders, weights = case["folders"], case["weights"]
    dataset: dict[str, Any] = {"dataset_folder": folders}
    if form == "path":
        dataset = {"dataset_folder": folders[0]}
    elif form == "mapping":
        dataset = {"dataset_folder": dict(zip(folders, weights, strict=True))}
    elif form == "weights":
        dataset["dataset_weights"] = weights
    stage = {"name": "x", "start_training_step": 1, "data": {"seed": case["seed"], "dataset": dataset}}
    tokens = {"sequence_length": case["sequence_length"], "micro_batch_size": 2, "batch_accumulation_per_replica": 1}
    tokens["train_steps"] = case["train_split_num_samples"] // 4
    return {"data_stages": [stage], "tokens": tokens, "parallelism": {"dp": 2}}


def forms(case: dict) -> list[str]:
    """The forms in which the same run can be written."""
    return (
        ["list"]
        if case["weights"] is None
        else ["mapping", "weights", *["path", "list"][: 2 * (len(case["folders"]) == 1)]]
    )


@pytest.mark.parametrize(("case", "form"), [(case, form) for case in CASES for form in forms(case)], ids=str)
def test_every_sample_of_golden_runs(case: dict, form: str) -> None:
    plan = fm.Recipe.parse(config(case, form), base=NANOSETS).plan()
    count = case["train_split_num_samples"]
    assert plan.length == count
    assert [len(source) for source in plan.sources] == case["lengths"]
    rows = np.stack([sample["input_ids"] for sample in plan.read(range(count))])
    assert rows.shape == (count, case["sequence_length"] + 1)
    assert sha256(rows.astype("<i8").tobytes()) == case["all_sha256_as_i64le"]
    for number, tokens in case["samples"].items():
        assert rows[int(number)].tolist() == tokens


def test_the_loader_gives_them_on_any_number_of_ranks(tmp_path: Path) -> None:
    case = CASES[2]
    plan = fm.Recipe.parse(config(case, "mapping"), base=NANOSETS).plan()
    whole = np.stack([sample["input_ids"] for sample in plan.read(range(48))])
    for ranks in (1, 2, 3):
        loaders = [fm.Loader(plan, batch_size=12 // ranks, rank=rank, world_size=ranks) for rank in range(ranks)]
        steps = [
            [np.asarray(batch["input_ids"]) for batch, _ in zip(loader, range(4), strict=False)] for loader in loaders
        ]
        rows = np.concatenate([np.concatenate(step) for step in zip(*steps, strict=True)])
        assert sorted(rows.tolist()) == sorted(whole.tolist())


def test_the_same_in_a_recipe_of_feedmills_own() -> None:
    case = CASES[2]
    windows = {"seq_len": case["sequence_length"], "files": "nanotron", "positions": True}
    blend = [
        {"path": folder, "weight": weight, "windows": windows}
        for folder, weight in zip(case["folders"], case["weights"], strict=True)
    ]
    recipe = fm.Recipe.parse({"seed": case["seed"], "order": "nanoset", "blend": blend}, base=NANOSETS)
    plan = recipe.plan()
    for number, tokens in case["samples"].items():
        sample = plan.read([int(number)])[0]
        assert sample["input_ids"].tolist() == tokens
        assert sample["positions"][0] == 0
    own = fm.Recipe.parse({"seed": 1, "blend": blend, "unit": "tokens", "samples": 300}, base=NANOSETS).plan()
    assert len(own.read(range(300))) == 300  # Feedmill's own order over the same windows


def test_windows_are_for_token_data_only(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(fm.FeedmillError, match="only token data can be read in windows"):
        fm.Recipe.parse({"source": {"path": "x.jsonl", "windows": 8}}, base=tmp_path).plan()
    with pytest.raises(fm.FeedmillError, match="'windows' needs a dataset"):
        fm.Recipe.parse({"source": {"recipe": "x.yaml", "windows": 8}}, base=tmp_path)
    with pytest.raises(fm.FeedmillError, match="seq_len"):
        fm.Recipe.parse({"source": {"path": "x", "windows": {"seq_len": 0}}}, base=tmp_path)
