"""Modalities' dataset classes by a changed import: samples of the originals (recorded), and their errors."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.compat.modalities.dataloader.dataset import (
    CombinedDataset,
    MemMapDataset,
    PackedMemMapDatasetBase,
    PackedMemMapDatasetContinuous,
    PackedMemMapDatasetMegatron,
)
from feedmill.compat.modalities.dataloader.dataset_factory import DatasetFactory
from feedmill.compat.modalities.tokenization.tokenizer_wrapper import PreTrainedHFTokenizer, PreTrainedSPTokenizer
from feedmill.errors import ConfigError
from helpers.tokenizer_data import EOS, MODALITIES, tokenizer_file, write_lines
from helpers.tokenizer_kinds import KINDS

EXPECTED = json.loads((MODALITIES / "expected.json").read_bytes())


def digest(samples: list[Any]) -> str:
    return hashlib.sha256(np.concatenate(samples).astype("<i8").tobytes()).hexdigest()


@pytest.mark.parametrize("case", EXPECTED["continuous"], ids=lambda c: f"{c['file']} {c['block_size']}")
def test_continuous_windows(case: dict[str, Any]) -> None:
    data = DatasetFactory.get_packed_mem_map_dataset_continuous(
        MODALITIES / case["file"], case["sequence_length"], "input_ids", case["reuse_last_target"]
    )
    assert len(data) == case["len"] and data.block_size == case["block_size"]
    samples = [sample["input_ids"] for sample in data.__getitems__(range(len(data)))]
    assert samples[0].dtype == case["dtype"] and digest(samples) == case["all_sha256_as_i64le"]
    for number, window in case["windows"].items():
        assert data[int(number)]["input_ids"][: len(window)].tolist() == window
    assert data[-1].input_ids.tolist() == samples[-1].tolist() and list(data[0].keys()) == ["input_ids"]


def test_documents_and_slices() -> None:
    data = PackedMemMapDatasetBase(MODALITIES / "main_2b.pbin", sample_key="x", load_index=True)
    assert len(data) == EXPECTED["memmap_dataset"]["len"] and data.token_size_in_bytes == 2
    for number, tokens in EXPECTED["memmap_dataset"]["samples"].items():
        assert data[int(number)]["x"].tolist() == [*tokens, 0]
    for case in EXPECTED["base_slices"]:
        assert [len(part) for part in data[slice(*case["slice"])]["x"]] == case["lengths"]
    assert data[3:3]["x"] == [] and data[np.int64(2)]["x"].tolist() == data[2:3]["x"][0].tolist()
    with pytest.raises(ValueError, match="step != 1"):
        data[::2]
    for number in (len(data), -len(data) - 1):
        with pytest.raises(IndexError):
            data[number]


def test_the_lines_of_a_file_tokenized_when_they_are_read(tmp_path: Path) -> None:
    tokenizer = PreTrainedHFTokenizer(str(tokenizer_file("tok1k").parent))
    data = DatasetFactory.get_mem_map_dataset(MODALITIES / "main.jsonl", tokenizer, sample_key="text")
    assert len(data) == EXPECTED["memmap_dataset"]["len"]
    for number, tokens in EXPECTED["memmap_dataset"]["samples"].items():
        assert data[int(number)] == tokens
    again = pickle.loads(pickle.dumps(data))
    assert again.__getitems__(range(len(data))) == [data[i] for i in range(len(data))]
    with pytest.raises(IndexError, match="Index out of bounds"):
        data[len(data)]
    pairs = DatasetFactory.get_raw_index(MODALITIES / "main.idx")
    content = (MODALITIES / "main.jsonl").read_bytes()
    assert [content[start : start + length] for start, length in pairs] == content.split(b"\n")[: len(pairs)]
    source = write_lines(tmp_path / "a.jsonl", [{"a": {"b": "one two"}}, {"a": {"b": ""}}, {"a": 3}])
    nested = MemMapDataset(source, tokenizer, "text", jq_pattern=".a | .b")
    assert not (tmp_path / "a.idx").exists() and len(nested) == 3
    assert tokenizer.decode(nested[0]) == "one two" and nested[1] == []
    with pytest.raises(ValueError, match=r"a.jsonl, line 3: jq"):
        nested[2]
    with pytest.raises(FileNotFoundError):
        MemMapDataset(source, tokenizer, "text", index_path=tmp_path / "none.idx")
    with pytest.raises(FileNotFoundError):
        MemMapDataset(tmp_path / "none.jsonl", tokenizer, "text")


def test_combined_and_blocks() -> None:
    case = EXPECTED["combined"]
    make = DatasetFactory.get_packed_mem_map_dataset_continuous
    parts = [make(MODALITIES / name, case["sequence_length"], "x", True) for name in case["files"]]
    data = DatasetFactory.get_combined_dataset(parts)
    assert data.cumulative_sizes.tolist() == case["cumulative_sizes"] and len(data) == case["cumulative_sizes"][-1]
    for number, tokens in case["samples"].items():
        assert data[int(number)]["x"][: len(tokens)].tolist() == tokens
    with pytest.raises(IndexError):
        CombinedDataset(parts)[len(data)]
    blocks = DatasetFactory.get_packed_mem_map_dataset_megatron(MODALITIES / "main_2b.pbin", 15, "x")
    assert isinstance(blocks, PackedMemMapDatasetMegatron) and blocks.block_size == 16
    documented = fm.open(MODALITIES / "main_2b.pbin", block_size=16)
    assert [sample["x"].tolist() for sample in blocks.__getitems__(range(len(blocks)))] == [
        sample["input_ids"].tolist() for sample in documented.read_raw(range(len(documented)))
    ]


def test_errors_are_those_of_the_original(tmp_path: Path) -> None:
    path = MODALITIES / "main_2b.pbin"
    for size, said in ((10**9, r"Block size \(1000000000\) is larger"), (1, "at least 2")):
        with pytest.raises(ValueError, match=said):
            PackedMemMapDatasetContinuous(path, "x", block_size=size, reuse_last_target=True)
    with pytest.raises(ValueError, match="window of 1000000000 tokens"):
        PackedMemMapDatasetMegatron(path, "x", block_size=10**9)
    with pytest.raises(FileNotFoundError, match="Packed Data was not found"):
        PackedMemMapDatasetBase(tmp_path / "none.pbin", "x")


def test_tokenizers() -> None:
    tokenizer = PreTrainedHFTokenizer(str(tokenizer_file("tok1k").parent), special_tokens={"eos_token": EOS})
    assert tokenizer.vocab_size == 1084 and tokenizer.get_token_id(EOS) == 0 and tokenizer.is_special_token_id(0)
    assert tokenizer.decode(tokenizer.tokenize("some words")) == "some words"
    assert tokenizer.tokenize_many(["some", "words"]) == [tokenizer.tokenize("some"), tokenizer.tokenize("words")]
    around = PreTrainedHFTokenizer(str(tokenizer_file("tok1k_bos").parent), truncation=True, max_length=5)
    whole = PreTrainedHFTokenizer(str(tokenizer_file("tok1k_bos").parent)).tokenize("one two three four five")
    assert around.tokenize("one two three four five") == [*whole[:4], whole[-1]]
    with pytest.raises(NotImplementedError, match="unknown: '<none>'"):
        PreTrainedHFTokenizer(str(tokenizer_file("tok1k").parent), special_tokens={"pad_token": "<none>"})
    with pytest.raises(ConfigError, match="padding"):
        PreTrainedHFTokenizer(str(tokenizer_file("tok1k").parent), padding=True)
    with pytest.raises(ValueError, match="not represented by a single token id"):
        tokenizer.get_token_id("<none>")
    pieces = PreTrainedSPTokenizer(str(KINDS / "bpe.model"))
    assert pieces.decode(pieces.tokenize("the dog")) == "the dog" and pieces.is_special_token_id(
        pieces.get_token_id("</s>")
    )
    with pytest.raises(ValueError, match="cannot be represented"):
        pieces.get_token_id("<none>")


def test_torch_loads_them_in_processes_and_samplers_accept_them() -> None:
    torch = pytest.importorskip("torch")
    data = PackedMemMapDatasetContinuous(MODALITIES / "main_2b.pbin", "x", 65, reuse_last_target=True)
    assert isinstance(data, torch.utils.data.Dataset)
    loader = torch.utils.data.DataLoader(
        data, batch_size=50, num_workers=1, collate_fn=lambda batch: np.stack([sample["x"] for sample in batch])
    )
    assert np.array_equal(np.concatenate(list(loader)), np.stack([data[i]["x"] for i in range(len(data))]))
