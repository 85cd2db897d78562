"""What goes around every text: the ids of transformers' AutoTokenizer (golden), or a refusal that names the setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from feedmill.cli.app import app
from feedmill.errors import ConfigError
from feedmill.formats.tokens.manifest import read_manifest
from feedmill.storage import open_store
from feedmill.tokens.template import Template, around
from feedmill.tokens.tokenizer import Tokenizer, load_tokenizer
from helpers.tokenizer_data import GOLDEN, pbin_documents, tokenizer_file, write_lines

GIVEN = json.loads((GOLDEN / "templates/autotokenizer.json").read_bytes())
TEXTS = GIVEN["texts"]
CASES = {case["name"]: case for case in GIVEN["cases"]}
UNDECIDED = {name for name in CASES if "contradiction" in name}


def folder_of(case: dict[str, Any], folder: Path, **model: Any) -> Path:
    """The tokenizer of a case, on disk."""
    document = json.loads(tokenizer_file(GIVEN["base"]).read_bytes())
    document["post_processor"] = GIVEN["posts"][case["post"]]
    document["pre_tokenizer"]["add_prefix_space"] = case["prefix"]
    document["model"].update(model)
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps(case["tokenizer_config"]))
    if case["config"] is not None:
        (folder / "config.json").write_text(json.dumps(case["config"]))
    return folder


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    ids, lengths = tokenizer.encode(texts)
    return [piece.tolist() for piece in np.split(ids, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "ids" in case and name not in UNDECIDED])
def test_ids_are_those_of_autotokenizer(name: str, tmp_path: Path) -> None:
    found = load_tokenizer(folder_of(CASES[name], tmp_path / "t"), check=False, template_source="transformers4")
    assert found.settings[-1] == "as transformers 4.57" and ids_of(found, TEXTS) == CASES[name]["ids"]
    assert ids_of(found, []) == [[]]
    assert [found.offsets(text)[0].tolist() for text in TEXTS] == CASES[name]["ids"]
    found.template = False
    plain = [[i for i in ids if i not in (1, 2)] for ids in CASES[name]["ids"]]
    assert [[i for i in ids if i != 2] for ids in ids_of(found, TEXTS)] == plain


@pytest.mark.parametrize("name", sorted(UNDECIDED))
def test_settings_that_programs_follow_differently_are_refused_until_the_user_decides(
    name: str, tmp_path: Path
) -> None:
    folder = folder_of(CASES[name], tmp_path / "t")
    with pytest.raises(ConfigError, match=r"add_bos_token .*--template-source file") as error:
        load_tokenizer(folder, check=False)
    assert error.value.kind == "undecided-template"
    (tmp_path / "alone").mkdir()
    (folder / "tokenizer.json").rename(tmp_path / "alone/tokenizer.json")
    alone = ids_of(load_tokenizer(tmp_path / "alone", check=False), TEXTS)
    (tmp_path / "alone/tokenizer.json").rename(folder / "tokenizer.json")
    assert ids_of(load_tokenizer(folder, check=False, template_source="file"), TEXTS) == alone
    on = CASES[name]["tokenizer_config"]["add_bos_token"]
    flags = ids_of(load_tokenizer(folder, check=False, template_source="flags"), TEXTS)
    assert [ids[0] == 1 for ids in flags] == [on] * len(TEXTS)
    assert flags != alone


def test_a_setting_that_names_no_token_is_refused(tmp_path: Path) -> None:
    folder = folder_of(CASES["Llama, no bos"], tmp_path / "t")
    with pytest.raises(ConfigError, match="add_bos_token is true, and no bos_token is set"):
        load_tokenizer(folder, check=False)
    settings = {**CASES["Llama, no bos"]["tokenizer_config"], "bos_token": "<bos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    found = load_tokenizer(folder, check=False, template_source="transformers4")  # it gets the next id
    assert "token '<bos>'" in found.settings and found.encode(["a"]).ids[0] == found.require("<bos>") >= 1084
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match="settings cannot be read"):
        load_tokenizer(folder, check=False)


def test_tokens_that_only_the_settings_have_are_added_unless_the_file_alone_counts(tmp_path: Path) -> None:
    case = CASES["PreTrainedTokenizerFast, none"]
    settings = {**case["tokenizer_config"], "added_tokens_decoder": {"9000": {"content": "<|tool|>", "special": True}}}
    folder = folder_of({**case, "tokenizer_config": settings}, tmp_path / "t")
    found = load_tokenizer(folder, check=False)
    assert found.settings == ["token '<|tool|>'"] and found.encode(["<|tool|>"]).ids.tolist() == [1084]
    assert found.vocab_size == 1085 and found.size == 1085
    alone = load_tokenizer(folder, check=False, template_source="file")
    assert alone.settings == [] and len(alone.encode(["<|tool|>"]).ids) > 1 and alone.hash == found.hash
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"x": 3}}))
    with pytest.raises(ConfigError, match="the added tokens are not a mapping"):
        load_tokenizer(folder, check=False)


def packed_by_modalities(folder: Path, source: Path, tokenizer: Path, *options: str) -> Any:
    settings = {
        "src_path": str(source), "dst_path": str(folder / "out.pbin"), "jq_pattern": ".text", "num_cpus": 1,
        "eod_token": "<|im_end|>", "processing_batch_size": 1, "raw_samples_queue_size": 1,
        "processed_samples_queue_size": 1,
    }  # fmt: skip
    entry = {
        "component_key": "tokenizer",
        "variant_key": "pretrained_hf_tokenizer",
        "config": {"pretrained_model_name_or_path": str(tokenizer)},
    }
    (folder / "c.yaml").write_text(yaml.dump({"settings": settings, "tokenizer": entry}))
    return CliRunner().invoke(
        app, ["compat", "modalities", "data", "pack_encoded_data", str(folder / "c.yaml"), *options]
    )


def test_both_tokenize_and_modalities_command_add_what_the_settings_say(tmp_path: Path) -> None:
    """As in the report of the defect: the template is null, and the settings ask for BOS."""
    case = CASES["LlamaTokenizerFast, True False, none"]
    tokenizer = folder_of(case, tmp_path / "t")
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    wanted = [[*ids, 2] for ids in case["ids"]]
    words = ["tokenize", source, "-o", tmp_path / "a", "-t", tokenizer, "--eos", "<|im_end|>", "--workers", "2"]
    refused = CliRunner().invoke(app, [*map(str, words)])
    assert refused.exit_code == 1 and "--template-source transformers5 or" in refused.output
    as_four = ("--template-source", "transformers4")
    done = CliRunner().invoke(app, [*map(str, words), *as_four])
    assert done.exit_code == 0 and "as transformers 4.57" in done.output, done.output
    assert "template on: <|im_start|> before (by tokenizer_config.json)" in done.output
    assert pbin_documents(tmp_path / "a.pbin") == wanted
    manifest = read_manifest(open_store(tmp_path), "a.pbin")
    assert manifest is not None
    assert manifest.options["template_adds"] == "<|im_start|> before (by tokenizer_config.json)"
    assert packed_by_modalities(tmp_path, source, tokenizer, *as_four).exit_code == 0
    assert pbin_documents(tmp_path / "out.pbin") == wanted


def test_modalities_command_refuses_a_contradiction_and_takes_the_option(tmp_path: Path) -> None:
    tokenizer = folder_of(CASES["PreTrainedTokenizerFast, contradiction"], tmp_path / "t")
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    done = packed_by_modalities(tmp_path, source, tokenizer)
    assert done.exit_code == 1 and "add_bos_token is true" in done.output
    assert packed_by_modalities(tmp_path, source, tokenizer, "--template-source", "flags").exit_code == 0
    assert [ids[0] for ids in pbin_documents(tmp_path / "out.pbin")] == [1, 1, 1]


def test_datatroves_tool_reads_the_file_alone(tmp_path: Path) -> None:
    tokenizer = folder_of(CASES["PreTrainedTokenizerFast, contradiction"], tmp_path / "t")
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    words = [
        "compat",
        "nanotron",
        "preprocess_data",
        "--tokenizer-name-or-path",
        tokenizer,
        "--output-folder",
        tmp_path / "o",
    ]
    done = CliRunner().invoke(app, [*map(str, words), "--n-tasks", "1", "jsonl", "--dataset", str(source)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "o/00000_unshuffled.ds").stat().st_size == 2 * sum(
        len(ids) for ids in CASES["PreTrainedTokenizerFast, contradiction"]["ids"]
    )


def test_tokens_around_texts() -> None:
    ids, lengths = np.array([5, 6, 7], np.uint32), np.array([2, 0, 1])
    found, longer = around(ids, lengths, Template((1, 2), (3,), (("a", "b"), ("c",)), False))
    assert found.tolist() == [1, 2, 5, 6, 3, 1, 2, 3, 1, 2, 7, 3] and longer.tolist() == [5, 3, 4]
    assert around(ids, lengths, Template((), (), ((), ()), False))[0] is ids


@pytest.mark.parametrize("backend", ["auto", "hf"])
def test_dropout_in_the_file_is_switched_off_and_said(backend: str, tmp_path: Path) -> None:
    case = CASES["PreTrainedTokenizerFast, none"]
    folder = folder_of(case, tmp_path / "t", dropout=0.5)
    found = load_tokenizer(folder, backend)  # type: ignore[arg-type]
    assert ids_of(found, TEXTS * 20) == case["ids"] * 20
    assert found.switched_off == {"dropout": 0.5} and found.backend == "hf"
    with pytest.raises(ConfigError, match="fastokens cannot disable the dropout"):
        load_tokenizer(folder, "fastokens")
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    words = ["tokenize", source, "-o", tmp_path / "a", "-t", folder, "--tokenizer-backend", backend]
    done = CliRunner().invoke(app, [*map(str, words), "--eos", "none"])
    assert done.exit_code == 0 and "dropout 0.5 of the tokenizer is disabled" in done.output
    assert pbin_documents(tmp_path / "a.pbin") == case["ids"]
    manifest = read_manifest(open_store(tmp_path), "a.pbin")
    assert manifest is not None and manifest.options["switched_off"] == {"dropout": 0.5}


@pytest.mark.parametrize("number", ["5", -1, 1.5, 1 << 40, None])
def test_an_id_that_is_no_number_is_a_message(number: object, tmp_path: Path) -> None:
    folder = folder_of(CASES["PreTrainedTokenizerFast, none"], tmp_path / "t")
    document = json.loads((folder / "tokenizer.json").read_bytes())
    document["model"]["vocab"]["zz"] = number
    (folder / "tokenizer.json").write_text(json.dumps(document))
    source = write_lines(tmp_path / "a.jsonl", TEXTS)
    done = CliRunner().invoke(app, ["tokenize", str(source), "-o", str(tmp_path / "a"), "-t", str(folder)])
    assert done.exit_code == 1 and "invalid id of 'zz'" in done.output and "Traceback" not in done.output
