"""The same bytes as Modalities, datatrove and Nanotron wrote, where these do the right thing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from feedmill.tokens.verbs.tokenize import tokenize
from helpers.tokenizer_data import EOS, MODALITIES, NANOSETS, tokenizer_file

PACKED = json.loads((MODALITIES / "expected.json").read_text())["pack_config"]
RUNS = json.loads((NANOSETS / "expected.json").read_text())
DS = ["nt_default", "nt_eos", "single_file", "bos_template", "bos_template_eos_override", "four_byte", "loss"]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("backend", ["fastokens", "hf"])
@pytest.mark.parametrize("name", sorted(PACKED))
def test_pbin(name: str, backend: Any, tmp_path: Path) -> None:
    config = PACKED[name]
    tokenize(
        [MODALITIES / config["src"]],
        tmp_path / name,
        tokenizer=tokenizer_file(config["tokenizer"]),
        text=config["jq_pattern"],
        eos=config["eod_token"],
        backend=backend,
        unit_bytes=20_000,
        workers=1,
    )
    assert (tmp_path / name).read_bytes() == (MODALITIES / name).read_bytes()


@pytest.mark.parametrize("run", DS)
def test_ds(run: str, tmp_path: Path) -> None:
    """datatrove with an EOS replaces the template by "text, then EOS"; empty texts are left out."""
    facts = RUNS["runs"][run]
    eos = facts["options"]["eos_token"]
    source = NANOSETS / facts["src"]
    files = sorted(source.glob("*.jsonl")) if source.is_dir() else [source]
    for task in range(facts["tasks"]):
        tokenize(
            files[task :: facts["tasks"]],
            tmp_path / f"{task:05d}_unshuffled",
            formats=["ds"],
            tokenizer=tokenizer_file(facts["tokenizer"].partition("/")[0]),
            tokenizer_name=facts["tokenizer"],
            workers=1,
            loss=run == "loss",
            loss_rule="datatrove",
            unit_bytes=10_000,
            eos=eos,
            rule="always",
            template=eos is None,
            on_error="skip",
        )
    found = digests(tmp_path)
    for file, about in facts["files"].items():
        assert found[file] == about["sha256"], file


@pytest.mark.parametrize("run", ["meg_2b", "meg_4b"])
def test_megatron(run: str, tmp_path: Path) -> None:
    tasks = 2
    files = sorted((NANOSETS / "jsonl").glob("*.jsonl"))
    for task in range(tasks):
        tokenize(
            files[task::tasks],
            tmp_path / f"m_{task:05d}_tokens",
            formats=["megatron"],
            tokenizer=tokenizer_file("tok1k" if run == "meg_2b" else "tok66k"),
            eos=EOS,
            rule="always",
            template=False,
            on_error="skip",
            workers=1,
        )
    found = digests(tmp_path)
    for file, about in RUNS["megatron"][run].items():
        assert found[file] == about["sha256"], file
