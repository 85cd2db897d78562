"""Each setting of Megatron-LM's runs that is mapped changes the samples; what is refused or not used is named."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.compat.megatron.fields import gpt_fields, gpt_settings
from feedmill.compat.megatron.settings import FLAGS, MERGE, PREPROCESS
from feedmill.errors import ConfigError
from feedmill.formats.settings import Fate
from feedmill.planning.dialects.megatron import ARGUMENTS, CONFIG, batch_settings
from helpers.megatron_runs import RUNS, recipe, write_sets

BLEND = ["0.3", "a_text_document", "0.7", "b_text_document"]
RUN: dict[str, Any] = {
    "data_path": BLEND,
    "split": "80,15,5",
    "seq_length": 16,
    "train_iters": 40,
    "global_batch_size": 10,
    "eval_interval": 10,
    "eval_iters": 1,
}
GOLDEN = json.loads((Path(__file__).parents[2] / "golden/settings/megatron.json").read_text())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("megatron")
    write_sets(folder)
    blends = {"train": BLEND, "valid": "a_text_document", "test": ["b_text_document"]}
    (folder / "per_split.json").write_text(json.dumps(blends))
    (folder / "blend.txt").write_text(" ".join(BLEND))
    return folder


@pytest.fixture(autouse=True)
def folder(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)


def samples(change: dict[str, Any], part: str) -> Any:
    """All samples of a part as plain values; a setting that is None is left out."""
    run = {name: value for name, value in {**RUN, **change}.items() if value is not None}
    plan = fm.Recipe.parse(run, split=part).plan()
    return [{name: np.asarray(value).tolist() for name, value in each.items()} for each in plan.read(range(len(plan)))]


EFFECTS: dict[str, tuple[dict[str, Any], str]] = {
    "data_path": ({"data_path": ["b_text_document"]}, "train"),
    "split": ({"split": "60,20,20"}, "train"),
    "seq_length": ({"seq_length": 17}, "train"),
    "seed": ({"seed": 5}, "train"),
    "train_samples": ({"train_samples": 300}, "train"),
    "train_iters": ({"train_iters": 30}, "train"),
    "global_batch_size": ({"global_batch_size": 8}, "train"),
    "mid_level_dataset_surplus": ({"mid_level_dataset_surplus": 5.0}, "train"),
    "add_extra_token_to_sequence": ({"add_extra_token_to_sequence": False}, "train"),
    "drop_last_partial_validation_sequence": (
        {"drop_last_partial_validation_sequence": False, "data_path": ["b_text_document"], "full_validation": True},
        "valid",
    ),
    "dataloader_inter_document_masking": ({"dataloader_inter_document_masking": True}, "train"),
    "eval_interval": ({"eval_interval": 20}, "valid"),
    "eval_iters": ({"eval_iters": 2}, "test"),
    "eval_global_batch_size": ({"eval_global_batch_size": 5}, "valid"),
    "start_eval_at_iter": ({"start_eval_at_iter": 20}, "valid"),
    "skip_train": ({"skip_train": True}, "valid"),
    "full_validation": ({"full_validation": True, "data_path": ["b_text_document"]}, "valid"),
}
SAME: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "data_args_path": ({}, {"data_path": None, "data_args_path": "blend.txt"}, "train"),
    "encoder_seq_length": ({}, {"seq_length": None, "encoder_seq_length": 16}, "train"),
    **{
        f"{part}_data_path": (
            {"data_path": None, "split": None, "per_split_data_args_path": "per_split.json"},
            {"data_path": None, "split": None, "train_data_path": "x", f"{part}_data_path": blend},
            part,
        )
        for part, blend in (("train", BLEND), ("valid", ["a_text_document"]), ("test", ["b_text_document"]))
    },
}
SAME["per_split_data_args_path"] = SAME["train_data_path"]


@pytest.mark.parametrize("name", EFFECTS)
def test_a_setting_changes_the_samples(name: str) -> None:
    change, part = EFFECTS[name]
    before = {key: value for key, value in change.items() if key != name}
    assert samples(change, part) != samples(before, part)


@pytest.mark.parametrize("name", SAME)
def test_a_setting_gives_the_samples_of_another_form(name: str) -> None:
    left, right, part = SAME[name]
    assert samples(left, part) == samples(right, part)
    if part in name or name == "per_split_data_args_path":
        assert samples(left, part) != samples({}, part)


def test_a_cache_is_read() -> None:
    with pytest.raises(ConfigError, match="the cache has no indices"):
        samples({"data_cache_path": "."}, "train")


def test_every_mapped_argument_has_its_test() -> None:
    batches = batch_settings(ARGUMENTS.settings)
    assert {*EFFECTS, *SAME, "data_cache_path", *batches} == set(ARGUMENTS.names(Fate.MAPPED))


@pytest.mark.parametrize("surplus", [0.0, 0.005, 0.1, 0.5])
def test_the_surplus_is_that_of_a_recipe(surplus: float) -> None:
    ours = recipe({**RUNS["a blend by weight"], "sources": ["a", "b"], "weights": [0.3, 0.7]}, "train")
    ours["order"] |= {"surplus": surplus, "split": RUN["split"]}
    ours["samples"] = 400
    given = {**RUN, "--mid-level-dataset-surplus": str(surplus)}
    assert fm.Recipe.parse(given).plan().fingerprint == fm.Recipe.parse(ours).plan().fingerprint
    with pytest.raises(ConfigError, match="'mid_level_dataset_surplus' must be a number, found 'much'"):
        fm.Recipe.parse({**RUN, "mid_level_dataset_surplus": "much"})


def test_positions_begin_at_0_in_each_document() -> None:
    for sample in samples({"dataloader_inter_document_masking": True}, "train"):
        bounds = sample["boundaries"]
        expected = [np.arange(stop - start) for start, stop in pairwise(bounds)]
        assert sample["positions"] == np.concatenate(expected).tolist()


REFUSED = [
    ("dataloader_type", "cyclic", "'dataloader_type' is unsupported: `single` is reproduced"),
    ("dataloader_type", "external", "'dataloader_type' is unsupported: `single` is reproduced"),
    ("hybrid_context_parallel", True, "samples are dealt to ranks by their length"),
    ("fim_data", True, "fill in the middle"),
    ("sft", True, "'sft' is unsupported"),
    ("mock_data", True, "there is no data"),
    ("phase_transition_iterations", "10,20", "several phases"),
    ("rampup_batch_size", ["2", "2", "9"], "the global batch changes"),
    ("step_batch_size_schedule", "0:8,100:16", "the global batch changes"),
    ("multiple_validation_sets", True, "write a recipe for each"),
]


@pytest.mark.parametrize(("name", "value", "words"), REFUSED)
def test_what_is_not_reproduced_is_refused_in_files_and_commands(name: str, value: Any, words: str, data: Path) -> None:
    (data / "run.yaml").write_text(yaml.safe_dump({**RUN, name: value}))
    with pytest.raises(ConfigError, match=rf"run\.yaml:\d+: .*{words}"):
        fm.Recipe.load("run.yaml")
    listed = [] if value is True else value if isinstance(value, list) else [value]
    done = CliRunner().invoke(
        app, ["compat", "megatron", "recipe", *command(RUN), f"--{name.replace('_', '-')}", *listed]
    )
    assert done.exit_code == 1
    assert words in done.output


def test_every_refused_argument_has_its_test() -> None:
    assert {name for name, *_ in REFUSED} == set(ARGUMENTS.names(Fate.REFUSED))
    saved = {**RUN, "dataloader_type": "single", "fim_data": False, "sft": False, "rampup_batch_size": None}
    assert samples(saved, "train") == samples({}, "train")


def command(run: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in run.items():
        words += [f"--{name.replace('_', '-')}", *(value if isinstance(value, list) else [str(value)])]
    return words


def test_what_is_not_followed_is_named() -> None:
    more = ["--bf16", "--num-layers", "2", "--num-workers", "8", "--reset-position-ids", "--fim-rate", "0.1"]
    done = CliRunner().invoke(app, ["compat", "megatron", "recipe", *command(RUN), *more])
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "note: 'num_workers' has no effect: the samples and their order are the same",
        "note: 'fim_rate' has no effect: only with `--fim-data`",
        "note: not used: bf16, num_layers",
        "note: reset_position_ids: not in the recipe, as it makes no batches: pass **gpt_settings(RUN) to gpt_fields"
        " (feedmill.compat.megatron.fields)",
    ]
    assert yaml.safe_load(done.stdout)["samples"] == 400


def test_a_file_warns_of_what_is_not_followed(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    (data / "noted.yaml").write_text(yaml.safe_dump({**RUN, "num_layers": 2, "hidden_size": 8}))
    for _ in range(2):
        fm.Recipe.load("noted.yaml")
    assert [record.getMessage().rpartition("/")[2] for record in caplog.records] == [
        "noted.yaml: not used: hidden_size, num_layers"
    ]


def test_other_arguments_of_the_release_are_no_misspellings() -> None:
    names = {name for face in (ARGUMENTS.face,) for origin in GOLDEN[face] for name in origin[4]}
    others = sorted(names - set(ARGUMENTS.settings))
    assert len(others) > 300
    assert ARGUMENTS.take({**RUN, **dict.fromkeys(others, True)}).notes == [f"not used: {', '.join(others)}"]


BATCH = np.array([[5, 0, 6, 7, 0, 3, 2]])


@pytest.mark.parametrize("name", batch_settings(ARGUMENTS.settings))
def test_a_setting_of_batches_changes_their_fields(name: str, data: Path) -> None:
    (data / "batch.yaml").write_text(yaml.safe_dump({**RUN, name: True}))
    options = gpt_settings(data / "batch.yaml")
    assert options == gpt_settings({f"--{name.replace('_', '-')}": True})
    plain, changed = gpt_fields(BATCH, eod=0), gpt_fields(BATCH, eod=0, **options)
    assert {key: value.tolist() for key, value in plain.items()} != {
        key: value.tolist() for key, value in changed.items()
    }
    with pytest.raises(ConfigError, match=f"'{name}' must be true or false, found 3"):
        gpt_settings({name: 3})


OF_CONFIG = {
    "random_seed": "seed",
    "sequence_length": "seq_length",
    "blend": "data_path",
    "blend_per_split": "per_split_data_args_path",
    "path_to_cache": "data_cache_path",
    "inter_document_masking": "dataloader_inter_document_masking",
    "create_attention_mask": "no_create_attention_mask_in_dataloader",
}


def test_fields_of_the_configuration_are_arguments_by_other_names() -> None:
    """So the tests of arguments are those of the fields."""
    for name in CONFIG.names(Fate.MAPPED):
        assert ARGUMENTS.settings[OF_CONFIG.get(name, name)].fate is Fate.MAPPED, name


TOKENS = Path(__file__).parents[2] / "golden" / "nanosets"
GIVEN = Path(__file__).parents[2] / "golden" / "megatron"
TOOL: dict[str, Any] = {
    "input": "in.jsonl",
    "output_prefix": "out",
    "tokenizer_type": "HuggingFaceTokenizer",
    "tokenizer_model": str(TOKENS / "tok1k"),
}
SPLIT = {"split_sentences": True, "punkt": str(GIVEN / "sentences")}
BOS = {"tokenizer_model": str(TOKENS / "tok1k_bos")}
BPE = {"tokenizer_model": None, "tokenizer_type": "GPT2BPETokenizer", "vocab_file": "bpe/vocab.json"}
OF_TOOL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "input": ({}, {"input": "other.jsonl"}),
    "json_keys": ({}, {"json_keys": ["text", "more"]}),
    "output_prefix": ({}, {"output_prefix": "there"}),
    "split_sentences": ({}, SPLIT),
    "keep_newlines": (SPLIT, {**SPLIT, "keep_newlines": True}),
    "lang": (SPLIT, {**SPLIT, "lang": "german"}),
    "append_eod": ({}, {"append_eod": True}),
    "partitions": ({}, {"partitions": 3}),
    "keep_sequential_samples": ({"partitions": 3}, {"partitions": 3, "keep_sequential_samples": True}),
    "tokenizer_type": ({}, {"tokenizer_type": "SentencePieceTokenizer"}),
    "tokenizer_model": ({}, {"tokenizer_model": "bpe/nothing"}),
    "tokenizer_hf_no_include_special_tokens": (BOS, {**BOS, "tokenizer_hf_no_include_special_tokens": True}),
    "vocab_file": (BPE, {**BPE, "vocab_file": "small/vocab.json"}),
    "merge_file": ({**BPE, "merge_file": "bpe/merges.txt"}, {**BPE, "merge_file": "small/merges.txt"}),
}
IDLE_FLAGS = dict.fromkeys(FLAGS, True)


def used_tool(verb: str, given: dict[str, Any]) -> Any:
    """The files that a tool writes, or its error."""
    words = []
    for name, value in given.items():
        if value is not None:
            listed = value if isinstance(value, list) else [] if value is True else [value]
            words += [f"--{name.replace('_', '-')}", *map(str, listed)]
    before = set(Path().iterdir())
    done = CliRunner().invoke(app, ["compat", "megatron", verb, *words])
    new = {path: path.read_bytes() for path in set(Path().iterdir()) - before}
    for path in new:
        path.unlink()
    return done.output if done.exit_code else {str(p): data for p, data in new.items() if p.suffix in (".bin", ".idx")}


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, end in (("in", ""), ("other", " End.")):
        texts = [f"One line of {n}. Another line.\n  And a third{end}" for n in range(9)]
        rows = [json.dumps({"text": text, "more": text[:9]}) for text in texts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    model = json.loads((TOKENS / "tok1k/tokenizer.json").read_text())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    for name, kept in (("bpe", len(merges)), ("small", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.json").write_text(json.dumps(model["vocab"]))
        (tmp_path / name / "merges.txt").write_text("\n".join(["#version: 0.2", *merges[:kept]]))


@pytest.mark.parametrize("name", OF_TOOL)
def test_an_argument_of_preprocess_data_has_an_effect(name: str, tool: None) -> None:
    before, after = OF_TOOL[name]
    found = used_tool("preprocess_data", {**TOOL, **before})
    assert isinstance(found, dict), found
    assert found != used_tool("preprocess_data", {**TOOL, **after})


def test_the_number_of_workers_does_not_change_the_files(tool: None) -> None:
    assert used_tool("preprocess_data", TOOL) == used_tool("preprocess_data", {**TOOL, "workers": 2})


def test_every_argument_of_the_tools_has_its_test() -> None:
    assert {*OF_TOOL, "workers"} == set(PREPROCESS.names(Fate.MAPPED))
    assert {*OF_MERGE} == set(MERGE.names(Fate.MAPPED))


@pytest.mark.parametrize("name", PREPROCESS.names(Fate.REFUSED, Fate.NO_EFFECT))
def test_an_argument_that_is_not_used_is_refused_or_named(name: str, tool: None) -> None:
    given = {**TOOL, name: IDLE_FLAGS.get(name, "1")}
    setting = PREPROCESS.settings[name]
    words = [part for key, value in given.items() for part in (f"--{key.replace('_', '-')}", value) if part is not True]
    done = CliRunner().invoke(app, ["compat", "megatron", "preprocess_data", *words])
    if setting.fate is Fate.REFUSED:
        assert done.exit_code == 1
        assert f"'{name}' is unsupported: {setting.words}" in done.output
    else:
        assert f"note: '{name}' has no effect: {setting.words}" in done.stderr


OF_MERGE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "input": ({}, {"input": str(GIVEN / "multimodal")}),
    "output_prefix": ({}, {"output_prefix": "there"}),
    "multimodal": ({"input": str(GIVEN / "multimodal")}, {"input": str(GIVEN / "multimodal"), "multimodal": True}),
}


@pytest.mark.parametrize("name", OF_MERGE)
def test_an_argument_of_merge_datasets_has_an_effect(name: str, tool: None) -> None:
    base = {"input": str(GIVEN / "sequences"), "output_prefix": "out"}
    before, after = OF_MERGE[name]
    assert used_tool("merge_datasets", {**base, **before}) != used_tool("merge_datasets", {**base, **after})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("skip_train", "false"),
        ("full_validation", 1),
        ("dataloader_inter_document_masking", "no"),
        ("add_extra_token_to_sequence", "true"),
        ("eod_mask_loss", "false"),
        ("data_path", 1.5),
        ("data_path", {"a_text_document": 1}),
        ("split", ["80", "20", "0"]),
        ("split", False),
    ],
)
def test_a_value_of_another_type_is_an_error(name: str, value: Any) -> None:
    for part in ("train", "valid"):
        with pytest.raises(ConfigError, match=f"'{name}' must be "):
            samples({name: value}, part)
