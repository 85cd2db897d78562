"""``feedmill compat modalities data ...`` against the files that Modalities 0.5.0 wrote."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from feedmill.cli.app import app
from helpers.tokenizer_data import tokenizer_file

GOLDEN = Path(__file__).parents[1] / "golden"
MODALITIES = GOLDEN / "modalities"
EXPECTED = json.loads((MODALITIES / "expected.json").read_text())


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(*words: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["compat", "modalities", "data", *map(str, words)], prog_name="feedmill")
    assert done.exit_code == status, done.output
    return done.output


def packing(path: Path, source: Path | None, tokenizer: Path, **settings: Any) -> Path:
    fixed = {"processing_batch_size": 4, "raw_samples_queue_size": 10, "processed_samples_queue_size": 10}
    options = {"pretrained_model_name_or_path": str(tokenizer), "truncation": False, "padding": False}
    config = {
        "settings": {"src_path": str(source), "num_cpus": 1, "eod_token": "<|endoftext|>", **fixed, **settings},
        "tokenizer": {
            "component_key": "tokenizer",
            "variant_key": "pretrained_hf_tokenizer",
            "config": options,
        },
    }
    path.write_text(yaml.dump(config))
    return path


@pytest.mark.parametrize("name", EXPECTED["idx"])
def test_create_raw_index(name: str, tmp_path: Path) -> None:
    source = MODALITIES / name.replace(".idx", ".jsonl")
    run("create_raw_index", source, "--index_path", tmp_path / "x.idx")
    assert digest(tmp_path / "x.idx") == EXPECTED["idx"][name]["sha256"]


@pytest.mark.parametrize("name", EXPECTED["pack_config"])
def test_pack_encoded_data(name: str, tmp_path: Path) -> None:
    facts = EXPECTED["pack_config"][name]
    tokenizer = tokenizer_file(facts["tokenizer"]).parent
    target = tmp_path / "out.pbin"
    words = {"dst_path": str(target), "jq_pattern": facts["jq_pattern"], "eod_token": facts["eod_token"]}
    run("pack_encoded_data", packing(tmp_path / "c.yaml", MODALITIES / facts["src"], tokenizer, **words))
    assert digest(target) == EXPECTED["pbin"][name]["sha256"]


def test_documents_without_tokens_do_not_end_the_file(tmp_path: Path) -> None:
    tokenizer = tokenizer_file("tok1k").parent
    source = tmp_path / "empty_text.jsonl"
    source.write_bytes((MODALITIES / "empty_text.jsonl").read_bytes())
    config = packing(tmp_path / "c.yaml", source, tokenizer, jq_pattern=".text")
    assert "line 4" in run("pack_encoded_data", config, status=1)
    assert not (tmp_path / "empty_text.pbin").exists()
    shown = run("pack_encoded_data", config, "--on-error", "skip", status=1)
    assert "20 documents" in shown and "line 4: " in shown  # the original keeps 3 of the 20, or none
    assert "nothing was done" in run("pack_encoded_data", config, "--file_existence_policy", "skip")
    assert "error: " in run("pack_encoded_data", config.rename(tmp_path / "d.yaml"), status=1)


def test_the_index_may_be_there_if_it_is_whole(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "a"}\n{"text": "b"}\n')
    tokenizer = tokenizer_file("tok1k").parent
    config = packing(tmp_path / "c.yaml", source, tokenizer, jq_pattern=".text")
    run("create_raw_index", source)
    assert "exists" in run("create_raw_index", source, "--file_existence_policy", "skip")
    assert "the index already exists" in run("create_raw_index", source, status=1)
    run("create_raw_index", source, "--file_existence_policy", "override")
    source.write_text('{"text": "a"}\n{"text": "b"}\n{"text": "c"}\n')
    assert "does not cover the file" in run("pack_encoded_data", config, status=1)
    run("create_raw_index", source, "--file_existence_policy", "override")
    run("pack_encoded_data", config)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer": {"config": {"truncation": True}}}, "'truncation' is unsupported"),
        ({"tokenizer": {"config": {"special_tokens": {"pad_token": "nothing"}}}}, "not a special token"),
        ({"tokenizer": {"variant_key": "other"}}, "unknown tokenizer variant"),
        ({"settings": {"eod_token": "<|nothing|>"}}, "<|nothing|>"),
        ({"settings": {"num_cpus": 0}}, "num_cpus"),
        ({"settings": {"jq_pattern": None}}, "jq_pattern"),
        ({"settings": {"dst_path": "x.bin"}}, "dst_path"),
        ({"settings": {"src_path": "${settings.nothing}"}}, "cannot resolve"),
    ],
)
def test_settings_that_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_file("tok1k").parent
    path = packing(tmp_path / "c.yaml", MODALITIES / "main.jsonl", tokenizer, jq_pattern=".text", dst_path="x.pbin")
    config = yaml.safe_load(path.read_text())

    def put(into: dict[str, Any], values: dict[str, Any]) -> None:
        for key, value in values.items():
            put(into[key], value) if isinstance(value, dict) and key != "special_tokens" else into.update({key: value})

    put(config, change)
    path.write_text(yaml.dump(config))
    shown = run("pack_encoded_data", path, status=1)
    assert shown.startswith("error: ") and words in shown


def chunk_words(name: str) -> list[str]:
    return [f"--{word.replace('=', ' ')}" for word in name.split()]


@pytest.mark.parametrize("name", list(EXPECTED["chunks"])[:6])
@pytest.mark.parametrize("kind", ["dataset", "jsonl"])
def test_shuffled_chunks(name: str, kind: str, tmp_path: Path) -> None:
    sources = EXPECTED["merged"]["sources"] if kind == "dataset" else ["main.jsonl", "nested.jsonl"]
    (tmp_path / "list.txt").write_text("".join(f"{Path(source).stem}.x\n" for source in sources) + "\n")
    target = tmp_path / ("c.pbin" if kind == "dataset" else "c.jsonl")
    words = [word for entry in chunk_words(name) if "None" not in entry for word in entry.split()]
    inputs = ["--input_file_list_path", tmp_path / "list.txt", "--input_data_root_path", MODALITIES]
    run(f"create_shuffled_{kind}_chunk", *inputs, "--output_chunk_file_path", target, *words)
    facts = EXPECTED["chunks" if kind == "dataset" else "jsonl_chunks"].get(name)
    if "None" not in name:
        assert digest(target) == facts["sha256"]


def test_shuffles(tmp_path: Path) -> None:
    for kind, name in (("tokenized", "main_2b.pbin"), ("jsonl", "main.jsonl")):
        source = MODALITIES / name
        target = tmp_path / name
        words = ["--input_data_path", source, "--output_data_path", target, "--seed", 11]
        run(f"shuffle_{kind}_data", *words)
        assert digest(target) == EXPECTED[f"shuffle_{kind}"]["11"]["sha256"]
        assert "already exists" in run(f"shuffle_{kind}_data", *words, status=1)
        assert "nothing was done" in run(f"shuffle_{kind}_data", *words, "--file_existence_policy", "skip")
        run(f"shuffle_{kind}_data", *words, "--file_existence_policy", "override")


def test_merge_packed_data(tmp_path: Path) -> None:
    (tmp_path / "in/below").mkdir(parents=True)
    for name, place in zip(EXPECTED["merged"]["sources"], ("a", "below/b", "c"), strict=True):
        shutil.copy(MODALITIES / name, tmp_path / f"in/{place}.pbin")
    (tmp_path / "in/notes.jsonl").write_text("{}\n")
    run("merge_packed_data", tmp_path / "in/a.pbin", tmp_path / "in/below", tmp_path / "in/c.pbin", tmp_path / "m.pbin")
    data, theirs = (tmp_path / "m.pbin").read_bytes(), (MODALITIES / "merged_2b.pbin").read_bytes()
    assert data[: 12 + EXPECTED["merged"]["data_len"]] == theirs[: 12 + EXPECTED["merged"]["data_len"]]
    assert "already exists" in run("merge_packed_data", tmp_path / "in", tmp_path / "m.pbin", status=1)


def instruction_config(tmp_path: Path) -> Path:
    config = json.loads(json.dumps(EXPECTED["instruction_tuning"]["config"]))
    tokenizer = tokenizer_file("tok1k").parent
    pbin = packing(tmp_path / "pbin.yaml", tmp_path, tokenizer, jq_pattern=".chat", index_path=None, dst_path=None)
    config["settings"] |= {
        "src_path": str(MODALITIES / "chat.jsonl"),
        "dst_path": str(tmp_path / "out/chat.jsonl"),
        "pbin_creation_config_file_path": str(pbin),
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.dump(config))
    return path


def test_prepare_instruction_tuning_data(tmp_path: Path) -> None:
    path = instruction_config(tmp_path)
    run("prepare_instruction_tuning_data", "--config_file_path", path)
    hash = digest(path)[:7]
    for name, facts in EXPECTED["instruction_tuning"]["files"].items():
        assert digest(tmp_path / name.replace("HASH", hash)) == facts["sha256"], name
    folder = tmp_path / f"out/chat_{hash}"
    assert (folder / f"instruction_chat_template_config.{hash}.yaml").read_bytes() == path.read_bytes()
    packed = yaml.safe_load((folder / f"pbin_config_val.{hash}.yaml").read_text())
    assert packed["settings"]["src_path"] == str(folder / f"chat_val.{hash}.jsonl")
    run("prepare_instruction_tuning_data", "--config_file_path", path)  # files are replaced, as in the original


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("splitting", {"train": 70, "val": 20, "test": 20}),
        ("splitting", {"train": 100}),
        ("seed", None),
    ],
)
def test_splits_that_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    path = instruction_config(tmp_path)
    config = yaml.safe_load(path.read_text())
    config["settings"]["split_config"][key] = value
    path.write_text(yaml.dump(config))
    assert run("prepare_instruction_tuning_data", "--config_file_path", path, status=1).startswith("error: ")


def test_targets_beside_a_source_that_is_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    source = tmp_path / "data" / "a.jsonl"
    source.write_text('{"text": "some words"}\n')
    config = packing(tmp_path / "pack.yaml", None, tokenizer_file("tok1k").parent, jq_pattern=".text")
    config.write_text(config.read_text().replace("src_path: None", f"src_path: file://{source}"))
    run("pack_encoded_data", config)
    run("create_raw_index", f"file://{source}")
    assert {path.name for path in (tmp_path / "data").iterdir()} >= {"a.jsonl", "a.pbin", "a.idx"}
    assert {path.name for path in tmp_path.iterdir()} == {"data", "pack.yaml"}


def test_prepare_instruction_tuning_data_at_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = instruction_config(tmp_path)
    settings = yaml.safe_load(path.read_text())["settings"]
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    out = tmp_path / "out"
    path.write_text(path.read_text().replace(settings["dst_path"], f"file://{out}/chats.jsonl"))
    run("prepare_instruction_tuning_data", "--config_file_path", path)
    assert not list((tmp_path / "cwd").iterdir()) and any(out.rglob("*.pbin"))


@pytest.mark.parametrize("path", [".", "..", "/"])
def test_an_index_of_a_folder_is_refused(path: str) -> None:
    assert "expected a file, found a folder" in run("create_raw_index", path, status=1)


def test_pack_encoded_data_of_documents_names_what_was_expected(tmp_path: Path) -> None:
    """Modalities' own page gives it the JSONL file."""
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"text": "a"}\n{"text": "b"}\n')
    said = run("pack_encoded_data", lines, status=1)
    assert "expected a YAML configuration that names it as 'settings.src_path'" in said


def test_misspelt_settings_and_policies(tmp_path: Path) -> None:
    lines, tokenizer = tmp_path / "x.jsonl", tokenizer_file("tok256").parent
    lines.write_text('{"text": "a"}\n')
    config = packing(tmp_path / "c.yaml", lines, tokenizer, jq_pattern=".text", dst_pth="y.pbin", mine="z")
    said = run("pack_encoded_data", config, status=1)
    assert "c.yaml: unknown setting 'dst_pth'. Did you mean 'dst_path'?" in said
    config = packing(tmp_path / "c.yaml", lines, tokenizer, jq_pattern=".text", mine="z")
    assert "unknown error policy 'skp'" in run("pack_encoded_data", config, "--on-error", "skp", status=1)
    assert "1 documents" in run("pack_encoded_data", config)
