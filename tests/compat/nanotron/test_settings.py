"""Each mapped setting of Nanotron has an effect; what is refused or not used is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.compat.datatrove.utils.dataset import DatatroveFolderDataset
from feedmill.compat.nanotron.data.dataloader_builder import build_nanoset_dataloader
from feedmill.compat.nanotron.data.nanoset import Nanoset
from feedmill.compat.nanotron.data.nemo_dataset import BlendableDataset
from feedmill.compat.nanotron.settings import CLASSES, PREPROCESS
from feedmill.errors import ConfigError
from feedmill.formats.settings import Fate
from feedmill.planning.dialects import nanotron
from helpers.nanoset_golden import NANOSETS


def values(data: Any) -> list[Any]:
    return [{name: value.tolist() for name, value in data[i].items()} for i in range(len(data))]


RUN: dict[str, Any] = {
    "data_stages": [
        {
            "name": "one",
            "start_training_step": 1,
            "data": {"seed": 7, "dataset": {"dataset_folder": ["nt_eos", "nt_default"]}},
        }
    ],
    "tokens": {"sequence_length": 16, "train_steps": 6, "micro_batch_size": 2, "batch_accumulation_per_replica": 1},
    "parallelism": {"dp": 2, "pp": 1, "tp": 1},
    "general": {"project": "x"},
}
CURRENT = {"shuffle_files": False, "dataset_weights": [0.5, 0.5]}
SHUFFLED = {"dataset_folder": ["doc_shuffled_split"], "dataset_weights": None}
LATER = {"name": "two", "start_training_step": 4, "data": {"dataset": {"dataset_folder": "nt_eos"}}}


def changed_run(place: str, change: dict[str, Any]) -> dict[str, Any]:
    """The run with other settings at a place; a setting that is None is removed."""
    run: dict[str, Any] = json.loads(json.dumps(RUN))
    stage = run["data_stages"][0]
    at = {"stage": stage, "data": stage["data"], "dataset": stage["data"]["dataset"], "run": run}.get(place) or run[
        place
    ]
    at.update(change)
    for name in [name for name, value in at.items() if value is None]:
        del at[name]
    return run


def told(run: dict[str, Any]) -> Any:
    """The recipe as text and all its samples, or its error."""
    try:
        recipe = fm.Recipe.parse(run, base=NANOSETS)
        plan = recipe.plan()
        samples = plan.read(range(plan.length or 20))
    except ConfigError as error:
        return str(error)
    return str(recipe), [{name: np.asarray(value).tolist() for name, value in sample.items()} for sample in samples]


OF_RUNS: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {
    ("stage", "sequence_length"): ({}, {"sequence_length": 20}),
    ("stage", "start_training_step"): ({}, {"start_training_step": 2}),
    ("data", "seed"): ({}, {"seed": None}),
    ("dataset", "dataset_folder"): ({}, {"dataset_folder": ["nt_eos"]}),
    ("dataset", "dataset_weights"): ({}, {"dataset_weights": [0.9, 0.1]}),
    ("dataset", "dataset_read_path"): (CURRENT, {**CURRENT, "dataset_read_path": ["nt_default", "nt_eos"]}),
    ("dataset", "token_size_in_bytes"): ({}, {"token_size_in_bytes": 4}),
    ("dataset", "return_positions"): ({}, {"return_positions": False}),
    ("dataset", "shuffle_files"): ({**SHUFFLED, "shuffle_files": False}, {**SHUFFLED, "shuffle_files": True}),
    ("tokens", "sequence_length"): ({}, {"sequence_length": 20}),
    ("tokens", "train_steps"): ({}, {"train_steps": 5}),
    ("tokens", "micro_batch_size"): ({}, {"micro_batch_size": 1}),
    ("tokens", "batch_accumulation_per_replica"): ({}, {"batch_accumulation_per_replica": 3}),
    ("parallelism", "dp"): ({}, {"dp": 3}),
}


@pytest.mark.parametrize(("place", "name"), OF_RUNS)
def test_a_setting_of_a_run_has_an_effect(place: str, name: str) -> None:
    before, after = OF_RUNS[place, name]
    assert told(changed_run(place, before)) != told(changed_run(place, after))


def test_stages_have_names() -> None:
    run = {**RUN, "data_stages": [RUN["data_stages"][0], LATER]}
    named = told(run)[0]
    run["data_stages"] = [{**RUN["data_stages"][0], "name": "first"}, LATER]
    assert "one" in named and "first" in told(run)[0]


def test_positions_are_returned_unless_they_are_switched_off() -> None:
    """As in Nanotron, where `return_positions` is true by default."""
    for given, expected in (({}, True), ({"return_positions": True}, True), ({"return_positions": False}, False)):
        (_, samples) = told(changed_run("dataset", given))
        assert {"positions" in sample for sample in samples} == {expected}


def test_every_mapped_setting_of_a_run_has_its_test() -> None:
    places = {"stage": nanotron.STAGE, "data": nanotron.DATA, "dataset": nanotron.DATASET, "tokens": nanotron.TOKENS}
    places["parallelism"] = nanotron.PARALLELISM
    mapped = {(place, name) for place, table in places.items() for name in table.names(Fate.MAPPED)}
    assert {*OF_RUNS, ("stage", "name")} == mapped
    assert not nanotron.CONFIG.names(Fate.MAPPED)


@pytest.mark.parametrize("name", nanotron.DATASET.names(Fate.REFUSED))
def test_what_is_refused_is_named(name: str) -> None:
    for place in (RUN["tokens"], {}):
        run = changed_run("dataset", {name: [5, None] if name == "dataset_max_tokens" else "x"})
        with pytest.raises(ConfigError, match=f"'{name}' is unsupported"):
            fm.Recipe.parse({**run, "tokens": place})
    fm.Recipe.parse(changed_run("dataset", {name: [0, 0]}))


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("dataset", "return_positions", "false"),
        ("dataset", "shuffle_files", "true"),
        ("tokens", "train_steps", 1 << 70),
        ("tokens", "train_steps", "100"),
        ("tokens", "micro_batch_size", True),
        ("parallelism", "dp", 2.0),
        ("run", "tokens", "abc"),
        ("run", "parallelism", [2]),
    ],
)
def test_a_value_of_another_type_is_an_error(place: str, name: str, value: Any) -> None:
    for before in ({}, CURRENT):
        run = changed_run("dataset", before)
        at = run if place == "run" else run[place] if place in run else run["data_stages"][0]["data"]["dataset"]
        at[name] = value
        with pytest.raises(ConfigError, match=f"'{name}' must be "):
            fm.Recipe.parse(run, base=NANOSETS)


def test_what_is_not_used_is_named(caplog: pytest.LogCaptureFixture) -> None:
    run = changed_run("dataset", {"skip_in_stream": True, "return_positions": True, "vocab_size": 9})
    fm.Recipe.parse({**run, "my_notes": 3, "tokens": {"train_steps": 3}})
    assert [record.getMessage() for record in caplog.records] == [
        "recipe: 'general' has no effect: about training",
        "recipe: not used: my_notes",
        "recipe: 'pp', 'tp' have no effect: the samples and their order are the same",
        "recipe: 'skip_in_stream' has no effect: a loader starts at any sample at once",
        "recipe: 'vocab_size' has no effect: token files are tokenized already",
        "recipe: not used: return_positions, train_steps: without 'sequence_length', the recipe mixes documents without"
        " end",
    ]
    for place in ("stage", "data", "dataset", "tokens", "parallelism"):
        with pytest.raises(ConfigError, match="unknown setting 'odd'"):
            fm.Recipe.parse(changed_run(place, {"odd": 1}))


FOLDERS = [str(NANOSETS / name) for name in ("nt_eos", "nt_default")]
NANOSET: dict[str, Any] = {
    "dataset_folders": FOLDERS,
    "sequence_length": 16,
    "token_size": 2,
    "train_split_num_samples": 40,
    "dataset_weights": [0.5, 0.5],
}
OF_NANOSETS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dataset_folders": ({}, {"dataset_folders": FOLDERS[::-1]}),
    "sequence_length": ({}, {"sequence_length": 20}),
    "token_size": ({}, {"token_size": 4}),
    "train_split_num_samples": ({}, {"train_split_num_samples": 30}),
    "dataset_weights": ({}, {"dataset_weights": [0.9, 0.1]}),
    "random_seed": ({}, {"random_seed": 5}),
    "eos_token_id": ({}, {"eos_token_id": 5}),
    "return_positions": ({}, {"return_positions": False}),
}


@pytest.mark.parametrize("name", OF_NANOSETS)
def test_a_parameter_of_a_nanoset_has_an_effect(name: str) -> None:
    found: list[Any] = []
    for change in OF_NANOSETS[name]:
        try:
            found.append(values(Nanoset(**{**NANOSET, **change})))
        except ConfigError as error:
            found.append(str(error))
    assert found[0] != found[1]


def parts(*folders: str) -> list[Any]:
    return [DatatroveFolderDataset(folder, 16, recursive=False) for folder in folders or FOLDERS]


OF_BLENDS: dict[str, dict[str, Any]] = {
    "datasets": {"datasets": parts(str(NANOSETS / "doc_shuffled"), FOLDERS[1])},
    "weights": {"weights": [1, 9]},
    "size": {"size": 30},
    "offsets_in_samples": {"offsets_in_samples": {FOLDERS[0]: 3}},
    "consumed_tokens_per_dataset_folder": {"consumed_tokens_per_dataset_folder": {FOLDERS[0]: 17}},
}


@pytest.mark.parametrize("name", OF_BLENDS)
def test_a_parameter_of_a_blend_has_an_effect(name: str) -> None:
    given: dict[str, Any] = {"datasets": parts(), "weights": [1, 1], "size": 20}
    one, two = BlendableDataset(**given), BlendableDataset(**{**given, **OF_BLENDS[name]})
    assert (values(one), one.consumed_tokens) != (values(two), two.consumed_tokens)


def parallel(rank: int) -> Any:
    from types import SimpleNamespace

    def group(rank: int, size: int) -> Any:
        return SimpleNamespace(rank=lambda: rank, size=lambda: size)

    return SimpleNamespace(dp_pg=group(rank, 2), pp_pg=group(0, 2), cp_pg=group(0, 1), context_parallel_size=1)


SAMPLES = Nanoset(**{**NANOSET, "train_split_num_samples": 45, "eos_token_id": 0})
OF_LOADERS: dict[str, dict[str, Any]] = {
    "dataset": {"dataset": Nanoset(**{**NANOSET, "random_seed": 9})},
    "sequence_length": {"sequence_length": 15},
    "parallel_context": {"parallel_context": parallel(1)},
    "input_pp_rank": {"input_pp_rank": 1},
    "output_pp_rank": {"output_pp_rank": 1},
    "micro_batch_size": {"micro_batch_size": 3},
    "dataloader_num_workers": {"dataloader_num_workers": 1},
    "consumed_train_samples": {"consumed_train_samples": 8},
    "dataloader_drop_last": {"dataloader_drop_last": False},
    "dataloader_pin_memory": {"dataloader_pin_memory": True},
    "use_position_ids": {"use_position_ids": False},
    "use_doc_masking": {"use_doc_masking": False},
}


@pytest.mark.parametrize("name", OF_LOADERS)
def test_a_parameter_of_the_loader_has_an_effect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    module = SimpleNamespace(TensorPointer=lambda group_rank: np.array(group_rank))
    monkeypatch.setattr("feedmill.compat.nanotron.data.dataloader_builder.import_module", lambda name: module)
    given: dict[str, Any] = {
        "dataset": SAMPLES,
        "sequence_length": 16,
        "parallel_context": parallel(0),
        "input_pp_rank": 0,
        "output_pp_rank": 0,
        "micro_batch_size": 4,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
    }
    found: list[Any] = []
    for change in ({}, OF_LOADERS[name]):
        loader = build_nanoset_dataloader(**{**given, **change})
        if "workers" in name or "pin" in name:
            found.append((loader.num_workers, loader.pin_memory))
            continue
        try:
            found.append([{key: np.asarray(value).tolist() for key, value in batch.items()} for batch in loader])
        except AssertionError as error:
            found.append(str(error))
    assert found[0] != found[1]


WORDS: dict[str, Any] = {"tokenizer_name_or_path": str(NANOSETS / "tok1k"), "output_folder": "out", "n_tasks": 2}
READ: dict[str, Any] = {"dataset": "data"}
OF_TOOL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tokenizer_name_or_path": ({"tokenizer_name_or_path": "nowhere"}, {}),
    "eos_token": ({"eos_token": "<|endoftext|>"}, {}),
    "output_folder": ({"output_folder": "there"}, {}),
    "logging_dir": ({"logging_dir": "logs"}, {}),
    "n_tasks": ({"n_tasks": 1}, {}),
    "dataset": ({}, {"dataset": "data/a.jsonl"}),
    "column": ({}, {"column": "more"}),
    "glob_pattern": ({}, {"glob_pattern": "a*"}),
}


def preprocessed(before: dict[str, Any], after: dict[str, Any], form: str = "jsonl") -> Any:
    """The files that the tool writes, or its error."""
    words = [part for name, value in before.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    more = [part for name, value in after.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    old = set(Path().rglob("*"))
    done = CliRunner().invoke(app, ["compat", "nanotron", "preprocess_data", *words, form, *more])
    new = {path for path in set(Path().rglob("*")) - old if path.is_file()}
    found = {
        str(path): b"" if path.suffix == ".json" else path.read_bytes() for path in new if path.suffix != ".lineage"
    }
    for path in new:
        path.unlink()
    return done.output if done.exit_code else found


@pytest.mark.parametrize("name", [*OF_TOOL, "split"])
def test_an_option_of_preprocess_data_has_an_effect(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for number, part in enumerate(("a", "b")):
        lines = [json.dumps({"text": f"Text {n}{part}.", "more": f"More {n}."}) for n in range(9 + number)]
        (tmp_path / "data" / f"{part}.jsonl").write_text("\n".join(lines))
    if name == "split":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        (tmp_path / "table").mkdir()
        for part in ("train", "test"):
            pq.write_table(
                pa.table({"text": [f"A text of {part}."]}), tmp_path / "table" / f"{part}-00000-of-00001.parquet"
            )
        given = {"dataset": "table"}
        found = [preprocessed(WORDS, {**given, **more}, "hf") for more in ({}, {"split": "test"})]
        assert isinstance(found[0], dict)
        assert found[0] != found[1]
        return
    before, after = OF_TOOL[name]
    plain = preprocessed(WORDS, READ)
    assert isinstance(plain, dict), plain
    assert plain != preprocessed({**WORDS, **before}, {**READ, **after})


def test_every_setting_of_tool_and_classes_has_its_test() -> None:
    assert {*OF_TOOL, "split"} == set(PREPROCESS.names(Fate.MAPPED))
    faces = {"Nanoset": OF_NANOSETS, "BlendableDataset": OF_BLENDS, "build_nanoset_dataloader": OF_LOADERS}
    assert {f"{face}.{name}" for face in faces for name in faces[face]} == set(CLASSES.names(Fate.MAPPED))
