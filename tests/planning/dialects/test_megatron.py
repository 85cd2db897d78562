"""Megatron-LM's arguments as recipes, with the files of blends that they name."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError
from helpers.megatron_runs import RUNS, recipe, write_sets

RUN = RUNS["a blend by weight"]
SIZES = {"train_iters": 70, "global_batch_size": 10, "eval_interval": 35, "eval_iters": 1, "seq_length": 16}
BLEND = "0.3 a_text_document 0.5 b_text_document\n0.2 c_text_document\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_sets(tmp_path)
    (tmp_path / "blend.txt").write_text(BLEND)
    (tmp_path / "per_split.json").write_text(
        json.dumps({"train": BLEND.split(), "valid": "a_text_document", "test": []})
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(arguments: dict[str, Any], **options: Any) -> fm.Plan:
    return fm.Recipe.parse(arguments, **options).plan()


@pytest.mark.parametrize(
    "data",
    [
        {"data_path": BLEND.split()},
        {"--data-path": BLEND},
        {"data-args-path": "blend.txt"},
    ],
)
def test_a_blend_in_all_spellings(data: dict[str, Any]) -> None:
    arguments = {**SIZES, **data, "split": "969,20,11"}
    for part, mode in (("train", {}), ("valid", {"mode": "validation"}), ("test", {"split": "test"})):
        ours = recipe({**RUN, "samples": [700, 30, 10]}, part)
        assert planned(arguments, **mode).fingerprint == fm.Recipe.parse(ours).plan().fingerprint
        assert len(planned(arguments, **mode)) == {"train": 700, "valid": 30, "test": 10}[part]


def test_blends_per_split(folder: Path) -> None:
    (folder / "run.yaml").write_text(yaml.safe_dump({**SIZES, "per_split_data_args_path": "per_split.json"}))
    train, valid = (fm.Recipe.load("run.yaml", split=part).plan() for part in ("train", "valid"))
    ours = recipe({**RUN, "split": None, "samples": [700, 30, 10]}, "train")
    assert train.fingerprint == fm.Recipe.parse(ours).plan().fingerprint
    assert valid.names == ["a_text_document"] and len(valid) == 30
    with pytest.raises(ConfigError, match=r"run\.yaml:\d+: there is no data for 'test'"):
        fm.Recipe.load("run.yaml", split="test")


def test_data_of_each_part() -> None:
    arguments = {
        **SIZES,
        "train_data_path": ["a_text_document"],
        "valid_data_path": ["c_text_document", "b_text_document"],
    }
    assert planned(arguments).names == ["a_text_document"]
    assert planned(arguments, split="valid").names == ["c_text_document", "b_text_document"]
    with pytest.raises(ConfigError, match="'test_data_path' is missing"):
        planned(arguments, split="test")


def test_one_prefix_with_a_weight_is_a_blend_as_in_megatron() -> None:
    plan = planned({**SIZES, "data_path": "1 b_text_document", "split": "98,1,1"})
    assert "megatron blend 1" in str(plan)


def test_the_default_split_and_seed() -> None:
    data = fm.Recipe.parse({**SIZES, "data_path": ["b_text_document"]}).model
    assert (data.seed, data.order.split, data.samples) == (1234, "969,30,1", 700)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data_args_path": "blend.txt"}, "the data is given twice, by 'data_path' and 'data_args_path'"),
        ({"data_path": None, "per_split_data_args_path": "blend.txt"}, "the blend file is not JSON"),
        ({"data_path": []}, "there is no data for 'train'"),
        ({"data_path": ["1", "a", "x", "b"]}, "only 1 of 2 weights of the blend are numbers"),
        ({"data_path": ["0", "a_text_document", "1", "b_text_document"]}, "a weight of a Megatron-LM blend is zero"),
        ({"seq_length": None}, "'seq_length' is missing"),
        ({"seq_length": "long"}, "'seq_length' must be an integer"),
        ({"train_iters": None}, "the number of samples of 'train' is unknown"),
        ({"train_iters": 0}, "the number of samples of 'train' is zero"),
        ({"seq_lenght": 4}, "unknown setting 'seq_lenght'. Did you mean"),
        ({"multiple_validation_sets": True}, "'multiple_validation_sets' is unsupported"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], words: str) -> None:
    arguments = {**SIZES, "data_path": BLEND.split(), "split": "969,20,11", **change}
    if "seq_lenght" in change:
        del arguments["seq_length"]
    with pytest.raises(ConfigError, match=words):
        planned(arguments)


def test_the_command_line_of_a_run(folder: Path) -> None:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]
    words += ["--bf16", "--num-layers", "2", "--data-path", *BLEND.split(), "--split", "969,20,11"]
    result = CliRunner().invoke(
        app, ["compat", "megatron", "recipe", "--part", "valid", "--output", "valid.yaml", *words]
    )
    assert result.exit_code == 0, result.output
    expected = fm.Recipe.parse(recipe({**RUN, "samples": [700, 30, 10]}, "valid")).plan().fingerprint
    assert fm.Recipe.load("valid.yaml").plan().fingerprint == expected
    shown = CliRunner().invoke(app, ["compat", "megatron", "recipe", *words])
    assert yaml.safe_load(shown.stdout)["samples"] == 700
    assert "megatron blend 0.3 : 0.5 : 0.2" in CliRunner().invoke(app, ["plan", "valid.yaml"]).output
    empty = CliRunner().invoke(app, ["compat", "megatron", "recipe", "--bf16"])
    assert empty.exit_code == 1 and "name no data" in empty.output
