"""Each setting of Modalities that is mapped has an effect; what is refused or not used is named."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.compat.modalities.cli import app as modalities
from feedmill.compat.modalities.dataloader import dataset as datasets
from feedmill.compat.modalities.settings import CLASSES, COMMANDS, INSTRUCTION, PACKING, TOKENIZER
from feedmill.compat.modalities.tokenization import tokenizer_wrapper as tokenizers
from feedmill.errors import ConfigError, FeedmillError
from feedmill.formats.settings import Fate
from helpers.chat_families import no_child
from helpers.tokenizer_data import MODALITIES, tokenizer_file

__all__ = ["no_child"]
pytestmark = pytest.mark.usefixtures("no_child")

GOLDEN = Path(__file__).parents[2] / "golden"
EXPECTED = json.loads((MODALITIES / "expected.json").read_text())
TOK = str(tokenizer_file("tok1k").parent)
MODEL = str(GOLDEN / "tokenizers/bpe.model")
BASE: dict[str, Any] = {
    "settings": {
        "src_path": str(MODALITIES / "main.jsonl"),
        "dst_path": "a.pbin",
        "jq_pattern": ".text",
        "eod_token": "<|endoftext|>",
        "processing_batch_size": 4,
        "raw_samples_queue_size": 10,
        "processed_samples_queue_size": 10,
    },
    "tokenizer": {
        "component_key": "tokenizer",
        "variant_key": "pretrained_hf_tokenizer",
        "config": {"pretrained_model_name_or_path": TOK},
    },
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["compat", "modalities", "data", *map(str, words)], prog_name="feedmill")
    assert done.exit_code == status, done.output
    return done.output


def put(into: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A configuration with other values at dotted names; None removes one."""
    into = json.loads(json.dumps(into))
    for name, value in change.items():
        *parents, last = name.split(".")
        at = into
        for parent in parents:
            at = at[parent]
        at[last] = value
        if value is None:
            del at[last]
    return into


def packed(folder: str, **change: Any) -> Any:
    """The name and bytes of the packed file, or the error."""
    Path(folder).mkdir()
    config = put(BASE, {name.replace("__", "."): value for name, value in change.items()})
    given = config["settings"].get("dst_path")
    if given:
        config["settings"]["dst_path"] = f"{folder}/{given}"
    Path("c.yaml").write_text(yaml.dump(config))
    done = CliRunner().invoke(app, ["compat", "modalities", "data", "pack_encoded_data", "c.yaml"])
    if done.exit_code:
        return done.output
    path = Path(folder, given) if given else Path(config["settings"]["src_path"]).with_suffix(".pbin")
    return path.name, path.read_bytes()


@cache
def usual(make: Any) -> Any:
    """What is made without a change, for all tests."""
    return make("one")


OF_PACKING: dict[str, dict[str, Any]] = {
    "src_path": {"settings__src_path": str(MODALITIES / "nonl.jsonl")},
    "dst_path": {"settings__dst_path": "b.pbin"},
    "index_path": {"settings__index_path": "nowhere.idx"},
    "jq_pattern": {"settings__jq_pattern": ".text[:3]"},
    "eod_token": {"settings__eod_token": "<|im_end|>"},
}
OF_TOKENIZERS: dict[str, dict[str, Any]] = {
    "pretrained_model_name_or_path": {
        "tokenizer__config__pretrained_model_name_or_path": str(tokenizer_file("tok256").parent)
    },
    "special_tokens": {"tokenizer__config__special_tokens": {"pad_token": "nothing"}},
    "tokenizer_model_file": {
        "tokenizer__config": {"tokenizer_model_file": MODEL},
        "tokenizer__variant_key": "pretrained_sp_tokenizer",
        "settings__eod_token": "</s>",
    },
}


@pytest.mark.parametrize("name", [*OF_PACKING, *OF_TOKENIZERS])
def test_a_setting_of_packing_has_an_effect(name: str) -> None:
    assert usual(packed) != packed("two", **{**OF_PACKING, **OF_TOKENIZERS}[name])


def test_every_mapped_setting_of_packing_has_its_test() -> None:
    assert set(OF_PACKING) == set(PACKING.names(Fate.MAPPED))
    assert set(OF_TOKENIZERS) == set(TOKENIZER.names(Fate.MAPPED))


@pytest.mark.parametrize("at", ["beside", "elsewhere"])
def test_an_index_that_lacks_lines_is_refused_wherever_it_is(at: str) -> None:
    """Modalities packs the lines of the index alone."""
    lines = (MODALITIES / "main.jsonl").read_bytes().splitlines(keepends=True)
    Path("data").mkdir()
    Path("data/a.jsonl").write_bytes(b"".join(lines[:3]))
    index = "data/a.idx" if at == "beside" else "few.idx"
    run("create_raw_index", "data/a.jsonl", "--index_path", index)
    given = {"settings__src_path": "data/a.jsonl", "settings__index_path": index}
    whole = packed("whole", **given)
    assert whole == packed("none", settings__src_path="data/a.jsonl", settings__index_path=None)
    Path("data/a.jsonl").write_bytes(b"".join(lines[:5]))
    said = packed("few", **given)
    assert "the index does not cover the file: it has 3 lines" in said
    assert index in said
    Path("data/a.jsonl").write_bytes(b"".join(lines[5:9]))
    assert "this is not the index of" in packed("other", **given)


@pytest.mark.parametrize("name", TOKENIZER.names(Fate.REFUSED))
def test_what_would_change_documents_is_refused(name: str) -> None:
    assert f"'{name}' is unsupported" in packed("x", **{f"tokenizer__config__{name}": True})
    assert "unknown setting 'max_lenght' (did you mean 'max_length'?)" in packed("y", tokenizer__config__max_lenght=3)
    assert "'component_key' must be tokenizer" in packed("z", tokenizer__component_key="model")


def test_what_is_not_used_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "feedmill"):
        packed(
            "x",
            settings__mine=3,
            settings__num_cpus=1,
            tokenizer__config__max_length=4,
            tokenizer__padding=True,
            num_cpus=2,
            eod_token="x",
        )
    assert {(record.levelname, record.getMessage()) for record in caplog.records} >= {
        ("WARNING", "c.yaml: not used: mine (references may use them)"),
        ("WARNING", "c.yaml: not used: tokenizer.padding (references may use them)"),
        ("WARNING", "c.yaml: not used: eod_token, num_cpus (references may use them)"),
        ("INFO", "c.yaml: 'num_cpus' has no effect: number of processes; the file is the same"),
        ("INFO", "c.yaml: 'max_length' has no effect: only with truncation or padding"),
    }


def prepared(folder: str, **change: Any) -> Any:
    """Names (without the hash of the configuration) and bytes of all files, or the error."""
    config = put(EXPECTED["instruction_tuning"]["config"], {
        "settings.src_path": str(MODALITIES / "chat.jsonl"),
        "settings.dst_path": "out/chat.jsonl",
        "settings.pbin_creation_config_file_path": "pbin.yaml",
    })  # fmt: skip
    for path, pattern in (("pbin.yaml", ".chat"), ("other.yaml", ".chat[:9]")):
        Path(path).write_text(yaml.dump(put(BASE, {"settings.jq_pattern": pattern})))
    config = put(config, {name.replace("__", "."): value for name, value in change.items()})
    config["settings"]["dst_path"] = f"{folder}/{config['settings']['dst_path']}"
    Path("i.yaml").write_text(yaml.dump(config))
    done = CliRunner().invoke(
        app, ["compat", "modalities", "data", "prepare_instruction_tuning_data", "--config_file_path", "i.yaml"]
    )
    if done.exit_code:
        return done.output
    files = [path for path in Path(folder).rglob("*") if path.suffix in (".jsonl", ".pbin")]
    return sorted((path.name.split(".")[0], path.suffix, path.read_bytes()) for path in files)


TEMPLATE = EXPECTED["instruction_tuning"]["config"]["jinja2_chat_template"]
DATA = EXPECTED["instruction_tuning"]["config"]["chat_template_data"]
SPLIT = {"train": 70, "val": 20, "test": 10}
OF_INSTRUCTIONS: dict[str, Any] = {
    "jinja2_chat_template": TEMPLATE + "x",
    "chat_template_data": {**DATA, "system_instruction": "Be brief."},
    "settings.src_path": str(MODALITIES / "main.jsonl"),
    "settings.dst_path": "out/other.jsonl",
    "settings.messages_key": "id",
    "settings.pbin_creation_config_file_path": "other.yaml",
    "settings.split_config": None,
    "instruction_data_transformation.role_mapping": {"human": "Human", "gpt": "Assistant"},
    "settings.split_config.seed": 5,
    "settings.split_config.splitting.train": {**SPLIT, "train": 80, "val": 10},
    "settings.split_config.splitting.val": {**SPLIT, "val": 0, "test": 30},
    "settings.split_config.splitting.test": {**SPLIT, "test": 0, "val": 30},
}


@pytest.mark.parametrize("name", OF_INSTRUCTIONS)
def test_a_setting_of_instruction_tuning_has_an_effect(name: str) -> None:
    at = name.rpartition(".")[0] if "splitting." in name else name
    assert usual(prepared) != prepared("two", **{at.replace(".", "__"): OF_INSTRUCTIONS[name]})


def test_every_mapped_setting_of_instruction_tuning_has_its_test(caplog: pytest.LogCaptureFixture) -> None:
    assert set(OF_INSTRUCTIONS) == set(INSTRUCTION.names(Fate.MAPPED))
    prepared("x", mine=4)
    assert "i.yaml: not used: mine (references may use them)" in [record.getMessage() for record in caplog.records]
    assert "unknown setting 'settings.mesages_key'" in prepared(
        "y", settings__mesages_key="a", settings__messages_key=None
    )


def test_the_commands_have_the_options_of_the_release() -> None:
    """Their effects are those of the golden files in ``tests/compat/test_modalities.py``."""
    commands = get_command(modalities).commands["data"].commands  # type: ignore[attr-defined]
    theirs = {"prepare_instruction_tuning_data": 0, "create_raw_index": 1, "pack_encoded_data": 2}
    theirs |= {"create_shuffled_dataset_chunk": 3, "create_shuffled_jsonl_chunk": 4, "merge_packed_data": 5}
    theirs |= {"shuffle_tokenized_data": 6, "shuffle_jsonl_data": 7}
    origins = json.loads((GOLDEN / "settings/modalities.json").read_text())[COMMANDS.face]
    assert set(theirs) == set(commands)
    for name, number in theirs.items():
        ours = {parameter.name for parameter in commands[name].params}
        assert set(origins[number][4]) - ours == set(), name


CHUNK = ["--input_file_list_path", "l.txt", "--input_data_root_path", ".", "--chunk_id", 0, "--num_chunks", 2]
CHUNK += ["--global_seed", 3, "--output_chunk_file_path"]
SHUFFLE = ["shuffle_jsonl_data", "--input_data_path", "a.jsonl", "--output_data_path"]


def made(*words: object) -> dict[str, bytes]:
    """The files that a command makes, beside those that are there."""
    Path("l.txt").write_text("a.jsonl\n")
    for name in ("a", "b"):
        lines = (MODALITIES / "main.jsonl").read_bytes().splitlines(keepends=True)
        Path(f"{name}.jsonl").write_bytes(b"".join(lines[: 20 if name == "a" else 30]))
    Path("m.txt").write_text("b.jsonl\n")
    Path("below").mkdir(exist_ok=True)
    Path("below/a.jsonl").write_bytes(b'{"text": "other"}\n' * 5)
    before = {path for path in Path().iterdir() if path.is_file()}
    done = CliRunner().invoke(app, ["compat", "modalities", "data", *map(str, words)])
    new = {path for path in Path().iterdir() if path.is_file()} - before
    found = {path.name: path.read_bytes() for path in new} if done.exit_code == 0 else {"error": done.output.encode()}
    for path in new:
        path.unlink()
    return found


def swapped(words: list[Any], option: str, value: object) -> list[Any]:
    at = words.index(option)
    return [*words[: at + 1], value, *words[at + 2 :]]


WORDS = ["create_shuffled_jsonl_chunk", *CHUNK, "x.jsonl"]
SEEDED = [*SHUFFLE, "x.jsonl", "--seed", 1]
MERGE = ["merge_packed_data", MODALITIES / "main_2b.pbin", "m.pbin"]
OF_COMMANDS: dict[str, tuple[list[Any], list[Any]]] = {
    "src_path": (["create_raw_index", "a.jsonl"], ["create_raw_index", "b.jsonl"]),
    "index_path": (["create_raw_index", "a.jsonl"], ["create_raw_index", "a.jsonl", "--index_path", "z.idx"]),
    "src_paths": (MERGE, ["merge_packed_data", MODALITIES / "crlf_2b.pbin", "m.pbin"]),
    "target_path": (MERGE, [*MERGE[:2], "n.pbin"]),
    "input_data_path": (SEEDED, swapped(SEEDED, "--input_data_path", "b.jsonl")),
    "output_data_path": (SEEDED, swapped(SEEDED, "--output_data_path", "y.jsonl")),
    "seed": (SEEDED, swapped(SEEDED, "--seed", 2)),
    "input_file_list_path": (WORDS, swapped(WORDS, "--input_file_list_path", "m.txt")),
    "input_data_root_path": (WORDS, swapped(WORDS, "--input_data_root_path", "below")),
    "output_chunk_file_path": (WORDS, swapped(WORDS, "--output_chunk_file_path", "y.jsonl")),
    "chunk_id": (WORDS, swapped(WORDS, "--chunk_id", 1)),
    "num_chunks": (WORDS, swapped(WORDS, "--num_chunks", 3)),
    "global_seed": (WORDS, swapped(WORDS, "--global_seed", 4)),
    "file_existence_policy": (
        [*SHUFFLE, "b.jsonl", "--seed", 1],
        [*SHUFFLE, "b.jsonl", "--seed", 1, "--file_existence_policy", "skip"],
    ),
    "config_path": (["pack_encoded_data", "none.yaml"], ["pack_encoded_data", "nowhere.yaml"]),
    "config_file_path": (
        ["prepare_instruction_tuning_data", "--config_file_path", "none.yaml"],
        ["prepare_instruction_tuning_data", "--config_file_path", "nowhere.yaml"],
    ),
}


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_an_option_has_an_effect(name: str) -> None:
    before, after = OF_COMMANDS[name]
    assert made(*before) != made(*after)


def test_every_mapped_option_has_its_test() -> None:
    assert set(OF_COMMANDS) == set(COMMANDS.names(Fate.MAPPED))


def read(make: Callable[[], Any]) -> Any:
    """All samples, or the error."""
    try:
        data = make()
        if isinstance(data, tokenizers.TokenizerWrapper):
            return data.tokenize("Some words, and more of them."), data.vocab_size
        samples = [data[number] for number in range(min(9, len(data)))]
    except (FeedmillError, OSError, NotImplementedError) as error:
        return str(error)
    return [{key: np.asarray(value).tolist() for key, value in sample.items()} for sample in samples]


class Letters:
    """A tokenizer; `MemMapDataset` takes any object."""

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    def tokenize(self, text: str) -> dict[str, list[int]]:
        return {"x": [ord(letter) + self.shift for letter in text[:9]]}


PBIN, LINES = MODALITIES / "main_2b.pbin", MODALITIES / "main.jsonl"
KEYED = {"raw_data_path": PBIN, "sample_key": "x"}
GIVEN: dict[str, dict[str, Any]] = {
    "MemMapDataset": {"raw_data_path": LINES, "tokenizer": Letters(), "sample_key": "x"},
    "PackedMemMapDatasetBase": KEYED,
    "PackedMemMapDatasetContinuous": {**KEYED, "block_size": 8, "reuse_last_target": True},
    "PackedMemMapDatasetMegatron": {**KEYED, "block_size": 8},
    "CombinedDataset": {"datasets": [datasets.PackedMemMapDatasetBase(PBIN, "x")]},
    "PreTrainedHFTokenizer": {"pretrained_model_name_or_path": TOK, "truncation": True, "max_length": 3},
    "PreTrainedSPTokenizer": {"tokenizer_model_file": MODEL},
}
OTHER: dict[str, Any] = {
    "raw_data_path": MODALITIES / "crlf_2b.pbin",
    "MemMapDataset.raw_data_path": MODALITIES / "crlf.jsonl",
    "tokenizer": Letters(1),
    "sample_key": "y",
    "index_path": Path("nowhere.idx"),
    "jq_pattern": ".text[2:]",
    "block_size": 9,
    "reuse_last_target": False,
    "datasets": [datasets.PackedMemMapDatasetBase(MODALITIES / "crlf_2b.pbin", "x")],
    "pretrained_model_name_or_path": str(tokenizer_file("tok256").parent),
    "truncation": False,
    "max_length": 4,
    "special_tokens": {"pad_token": "nothing"},
    "tokenizer_model_file": str(GOLDEN / "tokenizers/unigram.model"),
}


@pytest.mark.parametrize("name", CLASSES.names(Fate.MAPPED))
def test_a_parameter_has_an_effect(name: str) -> None:
    kind, key = name.split(".")
    made = getattr(datasets, kind, None) or getattr(tokenizers, kind)
    given = GIVEN[kind]
    other = OTHER.get(name, OTHER.get(key))
    assert read(lambda: made(**given)) != read(lambda: made(**{**given, key: other}))


def test_padding_is_refused_unless_it_is_none() -> None:
    for padding in (None, False, "do_not_pad"):
        tokenizers.PreTrainedHFTokenizer(TOK, padding=padding)
    with pytest.raises(ConfigError, match="padding"):
        tokenizers.PreTrainedHFTokenizer(TOK, padding="longest")
