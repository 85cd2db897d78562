"""Configurations of Nanotron's current trainer give the samples of its `BlendableDataset`, over golden token files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import ConfigError
from helpers.nanoset_golden import NANOSETS, expected

FOLDERS = ["nt_default", "doc_shuffled_split"]
LENGTH = 64


def config(stages: list[tuple[int, dict[str, Any]]], steps: int = 12, **tokens: Any) -> dict[str, Any]:
    """A configuration: the first step and the dataset of each stage; four samples a step."""
    return {
        "data_stages": [
            {"name": f"s{start}", "start_training_step": start, "data": {"seed": 7, "dataset": dataset}}
            for start, dataset in stages
        ],
        "tokens": {"sequence_length": LENGTH, "micro_batch_size": 2, "batch_accumulation_per_replica": 1}
        | {"train_steps": steps}
        | tokens,
        "parallelism": {"dp": 2},
    }  # fmt: skip


def samples_of(stages: list[tuple[int, list[str], list[float], bool]]) -> np.ndarray:
    """The samples of Nanotron's datasets: count, folders, weights and `shuffle_files` of each stage."""
    pytest.importorskip("torch")
    from feedmill.compat.datatrove.utils.dataset import DatatroveFolderDataset
    from feedmill.compat.nanotron.data.nemo_dataset import BlendableDataset

    read: dict[str, int] = {}
    out = []
    for count, folders, weights, shuffle in stages:
        parts = [
            DatatroveFolderDataset(str(NANOSETS / name), LENGTH, "*.ds", recursive=False, shuffle=shuffle, seed=7)
            for name in folders
        ]
        data = BlendableDataset(parts, weights, count, offsets_in_samples=dict(read))
        out += [sample["input_ids"].numpy() for sample in data.__getitems__(range(count))]
        for part, drawn in zip(parts, data.dataset_num_samples.tolist(), strict=True):
            read[part.folder_path] = read.get(part.folder_path, 0) + drawn
    return np.stack(out)


def planned(document: dict[str, Any]) -> np.ndarray:
    plan = fm.Recipe.parse(document, base=NANOSETS).plan()
    assert plan.length is not None
    return np.stack([sample["input_ids"] for sample in plan.read(range(plan.length))])


@pytest.mark.parametrize("weights", [None, [3, 1], [0.15, 0.85]])
@pytest.mark.parametrize("shuffle", [None, False, True])
def test_one_stage(weights: list[float] | None, shuffle: bool | None) -> None:
    dataset = {"dataset_folder": FOLDERS, "dataset_weights": weights, "shuffle_files": shuffle, "vocab_size": 5}
    found = planned(config([(1, dataset)]))
    assert np.array_equal(found, samples_of([(48, FOLDERS, weights or [1, 1], bool(shuffle))]))


def test_a_later_stage_continues_each_folder() -> None:
    first = {"dataset_folder": FOLDERS, "dataset_weights": [0.5, 0.5], "tokenizer_name": "x"}
    later = {"dataset_folder": ["doc_shuffled_split", "nt_eos"], "dataset_weights": [0.9, 0.1]}
    found = planned(config([(1, first), (6, later), (9, first)]))
    wanted = [(20, FOLDERS, [0.5, 0.5], False), (12, ["doc_shuffled_split", "nt_eos"], [0.9, 0.1], False)]
    assert np.array_equal(found, samples_of([*wanted, (16, FOLDERS, [0.5, 0.5], False)]))


def test_a_copy_is_read_instead(tmp_path: Path) -> None:
    shutil.copytree(NANOSETS / "nt_eos", tmp_path / "copy")
    (tmp_path / "copy/deeper").mkdir()
    shutil.copy(tmp_path / "copy/00000_unshuffled.ds", tmp_path / "copy/deeper/x.ds")
    dataset = {"dataset_folder": "s3://bucket/nt_eos", "dataset_read_path": str(tmp_path / "copy")}
    assert np.array_equal(planned(config([(1, dataset)])), samples_of([(48, ["nt_eos"], [1], False)]))


@pytest.mark.parametrize("case", [case for case in expected()["blendable"] if "dataset_index" in case], ids=str)
def test_a_recipe_with_the_order(case: dict[str, Any]) -> None:
    from helpers.number_dataset import Numbered

    blend = [{"path": f"d{n}", "weight": weight} for n, weight in enumerate(case["weights"])]
    recipe = fm.Recipe.parse({"seed": 1, "samples": case["size"], "order": "blendable", "blend": blend})
    plan = recipe.plan(lambda path, **_: Numbered(path, 1000))
    located = plan.locate(range(case["size"]))
    assert plan.length == case["size"] and located.source.tolist() == case["dataset_index"]
    assert located.index.tolist() == case["dataset_sample_index"]


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ({"dataset_max_tokens": [10, None]}, "'dataset_max_tokens' is unsupported"),
        ({"pad_samples_to_global_batch_size": True}, "'pad_samples_to_global_batch_size' is unsupported"),
        ({"use_old_brrr_dataloader": True}, "'use_old_brrr_dataloader' is unsupported"),
        ({"dataset_read_path": ["x"]}, "2 folders and .*Give one path for each folder"),
        ({"dataset_folder": ["nt_eos", "nt_eos"], "vocab_size": 3}, "a folder is listed twice"),
        ({"dataset_weights": [0, 0], "vocab_size": 3}, "weight"),
        ({"shufle_files": True}, "did you mean 'shuffle_files'"),
    ],
)
def test_what_is_refused(dataset: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        planned(config([(1, {"dataset_folder": FOLDERS, **dataset})]))


def test_a_run_longer_than_its_folders_is_refused_before_it_starts() -> None:
    with pytest.raises(ConfigError, match="is not read twice"):
        planned(config([(1, {"dataset_folder": FOLDERS, "vocab_size": 1})], steps=5000))
    with pytest.raises(ConfigError, match="length of a stage needs 'tokens' with train_steps"):
        planned(config([(1, {"dataset_folder": FOLDERS, "vocab_size": 1})], train_steps=None))


@pytest.mark.parametrize(
    ("order", "said"),
    [({}, "needs 'samples'"), ({"order": {"kind": "blendable", "ranks": 2}, "samples": 3}, "no options")],
)
def test_recipes_that_make_no_sense(order: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fm.Recipe.parse({"seed": 1, "order": "blendable", "blend": [{"path": "a"}], **order})
