"""``feedmill compat megatron preprocess_data`` and ``merge_datasets``: the original's arguments and bytes.

The golden files are what ``tools/preprocess_data.py`` and ``tools/merge_datasets.py`` of Megatron-LM wrote.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import feedmill as fm
from feedmill.cli.app import app

GOLDEN = Path(__file__).parents[2] / "golden"
RUNS = json.loads((GOLDEN / "megatron" / "expected.json").read_text())["runs"]
TOKENIZED = [name for name, run in RUNS.items() if "arguments" in run]
HF = ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "tok1k")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the golden runs were made: the tokenizers and the input, under the names that they had."""
    for name in ("tok1k", "tok1k_bos"):
        shutil.copytree(GOLDEN / "nanosets" / name, tmp_path / name)
    (tmp_path / "tok66k").mkdir()
    shutil.copy(tmp_path / "tok1k" / "tokenizer_config.json", tmp_path / "tok66k")
    packed = (GOLDEN / "nanosets" / "tok66k" / "tokenizer.json.xz").read_bytes()
    (tmp_path / "tok66k" / "tokenizer.json").write_bytes(lzma.decompress(packed))
    for name in ("in.jsonl", "sequences", "multimodal"):
        copy = shutil.copytree if name != "in.jsonl" else shutil.copy
        copy(GOLDEN / "megatron" / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def megatron(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["compat", "megatron", *map(str, arguments)])


def preprocess(*arguments: Any, prefix: str = "out") -> Result:
    return megatron("preprocess_data", "--input", "in.jsonl", "--output-prefix", prefix, "--workers", 1, *arguments)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", TOKENIZED)
def test_the_bytes_are_those_of_the_original(name: str, folder: Path) -> None:
    result = preprocess(*RUNS[name]["arguments"])
    assert result.exit_code == 0, result.output
    assert {file: sha256(folder / file) for file in RUNS[name]["files"]} == RUNS[name]["files"]


def test_the_texts_come_back_in_the_order_of_the_partitions(folder: Path) -> None:
    preprocess(*HF, prefix="plain")
    preprocess(*HF, "--partitions", 7, prefix="dealt")
    plain, dealt = (fm.open(folder / f"{name}_text_document.bin") for name in ("plain", "dealt"))
    expected = [row for part in range(7) for row in range(part, len(plain), 7)]
    assert [s["input_ids"].tolist() for s in dealt] == [plain[row]["input_ids"].tolist() for row in expected]
    origins = CliRunner().invoke(app, ["trace", "dealt_text_document.bin", "--help"])
    assert origins.exit_code == 0


def test_documents_without_tokens_are_kept(folder: Path) -> None:
    preprocess(*HF, "--json-keys", "the title", "--append-eod")
    dataset = fm.open(folder / "out_the title_document.bin")
    empty = [number for number, length in enumerate(dataset.lengths.tolist()) if not length]
    assert empty == list(range(0, 60, 5)) and dataset.describe()["sequences"] == 48 and len(dataset) == 60


def test_the_report_and_the_second_run(folder: Path) -> None:
    report = json.loads(preprocess(*HF, "--json").stdout)
    assert (report["keys"]["text"]["documents"], report["notes"]) == (60, [])
    assert "nothing was done" in preprocess(*HF).output
    assert "the output already exists" in preprocess(*HF, "--append-eod").output
    assert preprocess(*HF, "--append-eod", "--overwrite").exit_code == 0


def test_arguments_without_effect_are_named() -> None:
    result = preprocess(*HF, "--log-interval", 7, "--vocab-extra-ids", 3)
    assert result.exit_code == 0
    assert "'log_interval' has no effect" in result.output and "'vocab_extra_ids' has no effect" in result.output


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([*HF, "--find-optimal-num-workers"], 1, "'find_optimal_num_workers' is unsupported"),
        ([*HF, "--no-such-thing"], 2, "unrecognized arguments: --no-such-thing"),
        ([*HF, "--partitions", "0"], 1, "--partitions 0 is invalid"),
        ([*HF, "--json-keys", "text", "text"], 1, "a key was passed twice"),
        ([*HF, "--json-keys", "body"], 1, "there is no .body"),
        (["--tokenizer-type", "NullTokenizer"], 2, "invalid choice: 'NullTokenizer'"),
        (["--tokenizer-type", "HuggingFaceTokenizer"], 1, "needs the path of the tokenizer"),
        (["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", "gpt2-vocab.json"], 1, "must be in one folder"),
        ([*HF[:3], "missing"], 1, "missing"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], status: int, words: str, folder: Path) -> None:
    result = preprocess(*arguments)
    assert result.exit_code == status and words in result.output
    assert not list(folder.glob("out*"))


def test_help_lists_the_arguments() -> None:
    result = megatron("preprocess_data", "--help")
    assert result.exit_code == 0 and "--keep-sequential-samples" in result.output


@pytest.mark.parametrize(("name", "more"), [("sequences", []), ("multimodal", ["--multimodal"])])
def test_merged_bytes_are_those_of_the_original(name: str, more: list[str], folder: Path) -> None:
    result = megatron("merge_datasets", "--input", name, "--output-prefix", "merged", *more)
    assert result.exit_code == 0, result.output
    wanted = RUNS["merge mm" if more else "merge m"]
    assert {suffix: sha256(folder / f"merged{suffix}") for suffix in (".bin", ".idx")} == wanted
    assert "documents  15" in result.output


def test_a_merge_that_was_killed_before_its_index_is_repeated(folder: Path) -> None:
    words = ("merge_datasets", "--input", "sequences", "--output-prefix", "merged")
    assert megatron(*words).exit_code == 0
    wanted = {suffix: sha256(folder / f"merged{suffix}") for suffix in (".bin", ".idx")}
    os.remove(folder / "merged.idx")
    assert megatron(*words).exit_code == 0
    assert {suffix: sha256(folder / f"merged{suffix}") for suffix in (".bin", ".idx")} == wanted
    os.remove(folder / "merged.idx")
    (folder / "merged.bin").write_bytes(b"mine")
    assert megatron(*words).exit_code == 1 and (folder / "merged.bin").read_bytes() == b"mine"


def test_files_that_cannot_be_merged_are_named(folder: Path) -> None:
    def fails(words: str, *more: str, source: str = "sequences", prefix: str = "merged") -> None:
        result = megatron("merge_datasets", "--input", source, "--output-prefix", prefix, *more)
        assert result.exit_code == 1 and words in result.output, result.output

    fails("its sequences have no modes", "--multimodal")
    fails("its sequences have modes", source="multimodal")
    fails("the output is one of the files to merge", prefix="sequences/a")
    (folder / "empty").mkdir()
    fails("has no .bin and .idx files", source="empty")
    preprocess(*HF, prefix="sequences/z")
    fails("its tokens have the type uint16, those of a have int32")
    (folder / "sequences" / "b.bin").unlink()
    fails("the .bin file of this prefix is missing")
    assert megatron("merge_datasets", "--input", "multimodal", "--output-prefix", "m", "--multimodal").exit_code == 0
    fails("the output already exists", "--multimodal", source="multimodal", prefix="m")
